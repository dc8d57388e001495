//! Attention against a direct f64 computation, and against itself under every way of cutting the rows.

use super::*;
use crate::kernel::{KernelLevel, KvFormat, KvShape};

struct Case {
    heads: usize,
    shape: KvShape,
    format: KvFormat,
    window: Option<usize>,
    softcap: Option<f32>,
}

fn noise(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    ((*seed >> 40) as f32 / (1 << 23) as f32) - 1.0
}

fn vector(len: usize, seed: u64) -> Vec<f32> {
    let mut seed = seed;
    (0..len).map(|_| noise(&mut seed) * 2.0).collect()
}

fn cpus() -> Vec<Cpu> {
    let levels = KernelLevel::available();
    levels
        .flat_map(|level| {
            [1, 2].map(|threads| {
                let mut cpu = Cpu::new(threads).unwrap();
                cpu.level = level;
                cpu
            })
        })
        .collect()
}

impl Case {
    fn blocks(&self, k: &[f32], v: &[f32], table: &[u32]) -> KvBlocks {
        let width = self.shape.kv_heads * self.shape.head_dim;
        let mut blocks = KvBlocks::new(self.format, self.shape, 3);
        while blocks.len() <= table.iter().copied().max().unwrap() as usize {
            assert!(blocks.grow());
        }
        for (i, (k, v)) in k.chunks(width).zip(v.chunks(width)).enumerate() {
            blocks.write(table[i / BLOCK_TOKENS], i % BLOCK_TOKENS, k, v);
        }
        blocks
    }

    fn attention(&self, cpu: &Cpu, blocks: &KvBlocks, table: &[u32], q: &[f32], first: usize) -> Vec<f32> {
        let width = self.heads * self.shape.head_dim;
        let mut out = vec![f32::NAN; q.len()];
        let shape =
            AttentionShape { heads: self.heads, scale: 0.3, softcap: self.softcap, window: self.window, sinks: 0 };
        let span = AttentionSpan { first_row: 0, rows: q.len() / width, first_index: first, table, live: None };
        attention(cpu, &shape, blocks, &[span], q, None, &mut out);
        out
    }

    /// Direct softmax in f64 over values rounded as the cache rounds them, with queries and weights rounded likewise.
    fn expected(&self, q: &[f32], k: &[f32], v: &[f32], index: usize) -> Vec<f64> {
        let round = |x: &[f32]| -> Vec<f64> {
            match self.format {
                KvFormat::F32 => x.iter().map(|&x| x as f64).collect(),
                KvFormat::F16 => x.iter().map(|&x| half::f16::from_f32(x).to_f64()).collect(),
                KvFormat::Bf16 => x.iter().map(|&x| half::bf16::from_f32(x).to_f64()).collect(),
                KvFormat::Q8 => x
                    .chunks(self.shape.head_dim)
                    .flat_map(|head| {
                        let scale = head.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
                        head.iter().map(move |x| f64::from((x / scale).round_ties_even() * scale))
                    })
                    .collect(),
            }
        };
        let narrow = self.format == KvFormat::Bf16;
        let (k, v) = (round(k), round(v));
        let q = if narrow { round(q) } else { q.iter().map(|&x| f64::from(x)).collect() };
        let KvShape { kv_heads, head_dim } = self.shape;
        let first = self.window.map_or(0, |w| (index + 1).saturating_sub(w));
        let mut out = Vec::new();
        for head in 0..self.heads {
            let kv_head = head / (self.heads / kv_heads);
            let at = |i: usize, d: usize| (i * kv_heads + kv_head) * head_dim + d;
            let scores: Vec<f64> = (first..=index)
                .map(|i| {
                    let dot: f64 = (0..head_dim).map(|d| q[head * head_dim + d] * k[at(i, d)]).sum();
                    let s = dot * 0.3f32 as f64;
                    self.softcap.map_or(s, |cap| cap as f64 * (s / cap as f64).tanh())
                })
                .collect();
            let largest = |scores: &[f64]| scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let max = largest(&scores);
            let weight = |i: usize, score: f64| {
                if !narrow {
                    return (score - max).exp();
                }
                // Rounded relative to the largest of the part.
                let part = (i / PART * PART).max(first) - first..scores.len().min((i / PART + 1) * PART - first);
                let part = largest(&scores[part]);
                f64::from(half::bf16::from_f64((score - part).exp())) * (part - max).exp()
            };
            let weights: Vec<f64> = scores.iter().enumerate().map(|(i, s)| weight(first + i, *s)).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..head_dim {
                out.push((first..=index).zip(&weights).map(|(i, w)| w * v[at(i, d)]).sum::<f64>() / sum);
            }
        }
        out
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &format in KvFormat::ALL {
        for (heads, kv_heads, head_dim) in [(4, 2, 16), (3, 1, 40), (2, 2, 7)] {
            for window in [None, Some(1), Some(33), Some(300)] {
                let softcap = (head_dim == 40).then_some(5.0);
                cases.push(Case { heads, shape: KvShape { kv_heads, head_dim }, format, window, softcap });
            }
        }
    }
    cases
}

#[test]
fn equals_a_direct_computation_at_every_level() {
    for case in cases() {
        let tokens = 531;
        let width = case.shape.kv_heads * case.shape.head_dim;
        let (k, v) = (vector(tokens * width, 1), vector(tokens * width, 2));
        let q = vector(tokens * case.heads * case.shape.head_dim, 3);
        // Blocks out of order, with gaps.
        let table: Vec<u32> = (0..tokens.div_ceil(BLOCK_TOKENS) as u32).map(|b| (b * 7 + 3) % 23).collect();
        let blocks = case.blocks(&k, &v, &table);
        let mut first: Option<Vec<f32>> = None;
        for cpu in cpus() {
            let out = case.attention(&cpu, &blocks, &table, &q, 0);
            if let Some(first) = &first {
                assert_eq!(first, &out, "{:?} differs from scalar", cpu.level);
                continue;
            }
            let row = case.heads * case.shape.head_dim;
            for index in [0, 1, 31, 32, 255, 256, 300, 512, tokens - 1] {
                let expected = case.expected(&q[index * row..(index + 1) * row], &k, &v, index);
                for (a, b) in out[index * row..(index + 1) * row].iter().zip(expected) {
                    // A weight next to a tie may be rounded the other way.
                    let bound = if case.format == KvFormat::Bf16 { 1e-3 } else { 3e-5 };
                    assert!((*a as f64 - b).abs() < bound, "index {index}: {a} {b}");
                }
            }
            first = Some(out);
        }
    }
}

#[test]
fn a_row_does_not_depend_on_how_rows_are_cut() {
    let cpu = Cpu::new(2).unwrap();
    for case in cases() {
        let tokens = 290;
        let width = case.shape.kv_heads * case.shape.head_dim;
        let row = case.heads * case.shape.head_dim;
        let (k, v) = (vector(tokens * width, 4), vector(tokens * width, 5));
        let q = vector(tokens * row, 6);
        let table: Vec<u32> = (0..tokens.div_ceil(BLOCK_TOKENS) as u32).collect();
        let blocks = case.blocks(&k, &v, &table);
        let whole = case.attention(&cpu, &blocks, &table, &q, 0);
        for cut in [1, 7, 16, 17, 100, 257] {
            let mut parts = Vec::new();
            for first in (0..tokens).step_by(cut) {
                let last = (first + cut).min(tokens);
                parts.extend(case.attention(&cpu, &blocks, &table, &q[first * row..last * row], first));
            }
            assert_eq!(whole, parts, "cut {cut}");
        }
    }
}

#[test]
fn what_a_query_cannot_see_is_never_read() {
    let cpu = Cpu::new(1).unwrap();
    let shape = KvShape { kv_heads: 1, head_dim: 8 };
    let case = Case { heads: 2, shape, format: KvFormat::F32, window: Some(40), softcap: None };
    let (mut k, mut v) = (vector(400 * 8, 7), vector(400 * 8, 8));
    let q = vector(16, 9);
    let index = 350;
    let table: Vec<u32> = (0..13).collect();
    let clean = case.attention(&cpu, &case.blocks(&k, &v, &table), &table, &q, index);
    for i in (0..400).filter(|i| !(index + 1 - 40..=index).contains(i)) {
        k[i * 8..(i + 1) * 8].fill(f32::NAN);
        v[i * 8..(i + 1) * 8].fill(f32::NAN);
    }
    let mut freed = table.clone();
    let blocks = case.blocks(&k, &v, &table);
    freed[..(index + 1 - 40) / BLOCK_TOKENS].fill(u32::MAX);
    assert_eq!(clean, case.attention(&cpu, &blocks, &freed, &q, index));
    // And what it sees is read.
    v[index * 8] = f32::NAN;
    assert!(case.attention(&cpu, &case.blocks(&k, &v, &table), &table, &q, index)[0].is_nan());
}

#[test]
fn dropped_tokens_beside_live_ones_are_not_read() {
    let shape = KvShape { kv_heads: 1, head_dim: 7 };
    // Runs of one token at even and odd places, and of several that begin and end at either.
    let live = [0b1000_0100_1110_0111_1011_0100_1001_0110_u32, 0x7fff_fffe, 0x8000_0001];
    let tokens = 3 * BLOCK_TOKENS;
    let is_live = |t: usize| live[t / BLOCK_TOKENS] >> (t % BLOCK_TOKENS) & 1 == 1;
    let blocks: Vec<LiveBlock> =
        live.iter().enumerate().map(|(b, &lanes)| LiveBlock { block: b as u32, lanes }).collect();
    let (mut k, mut v) = (vector(tokens * 7, 1), vector(tokens * 7, 2));
    let table = [2, 0, 1];
    for &format in KvFormat::ALL {
        let case = Case { heads: 3, shape, format, window: None, softcap: None };
        // Two rows have six queries, which products of pairs take as they lie; nine rows have more.
        for rows in [2, 9] {
            let q = vector(rows * 21, 3);
            let run = |cpu: &Cpu, k: &[f32], v: &[f32]| {
                let mut out = vec![0.0; q.len()];
                let shape = AttentionShape { heads: 3, scale: 0.3, softcap: None, window: None, sinks: 0 };
                let span = AttentionSpan {
                    first_row: 0,
                    rows,
                    first_index: tokens - rows,
                    table: &table,
                    live: Some(&blocks),
                };
                attention(cpu, &shape, &case.blocks(k, v, &table), &[span], &q, None, &mut out);
                out
            };
            let clean = run(&Cpu::new(1).unwrap(), &k, &v);
            assert!(clean.iter().all(|x| x.is_finite()));
            for t in (0..tokens).filter(|&t| !is_live(t)) {
                k[t * 7..(t + 1) * 7].fill(f32::NAN);
                v[t * 7..(t + 1) * 7].fill(f32::NAN);
            }
            for cpu in cpus() {
                assert_eq!(run(&cpu, &k, &v), clean, "{format:?}, {rows} rows, {:?}", cpu.level);
            }
            (k, v) = (vector(tokens * 7, 1), vector(tokens * 7, 2));
        }
    }
}
