//! Windows, sinks and dropped tokens against a direct computation that knows distances only, and against each other.

use super::visible::{between, runs};
use super::*;
use crate::kernel::{KernelLevel, KvFormat, KvShape};

const TOKENS: usize = 420;

fn noise(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    ((*seed >> 40) as f32 / (1 << 23) as f32) - 1.0
}

fn vector(len: usize, mut seed: u64) -> Vec<f32> {
    (0..len).map(|_| noise(&mut seed) * 2.0).collect()
}

/// Rotates pairs of neighbors (the last value of an odd head stays) by `position`, with slow and fast frequencies.
fn rotate(head: &[f32], position: f64) -> Vec<f64> {
    let mut out: Vec<f64> = head.iter().map(|&x| f64::from(x)).collect();
    for (j, pair) in out.chunks_exact_mut(2).enumerate() {
        let (sin, cos) = (position * 0.7 / (1 + j) as f64).sin_cos();
        (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
    }
    out
}

/// Every head of every row rotated for `position(row)`.
fn rotated(values: &[f32], width: usize, head_dim: usize, position: impl Fn(usize) -> usize) -> Vec<f32> {
    let rows = values.chunks(width).enumerate();
    rows.flat_map(|(i, row)| row.chunks(head_dim).flat_map(|h| rotate(h, position(i) as f64)).collect::<Vec<_>>())
        .map(|x| x as f32)
        .collect()
}

struct Case {
    shape: AttentionShape,
    kv: KvShape,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Live tokens.
    live: Vec<bool>,
}

impl Case {
    fn new(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>, sinks: usize) -> Case {
        Case {
            shape: AttentionShape { heads, scale: 0.3, softcap: (head_dim == 7).then_some(5.0), window, sinks },
            kv: KvShape { kv_heads, head_dim },
            q: vector(TOKENS * heads * head_dim, 1),
            k: vector(TOKENS * kv_heads * head_dim, 2),
            v: vector(TOKENS * kv_heads * head_dim, 3),
            live: vec![true; TOKENS],
        }
    }

    fn live_blocks(&self) -> Vec<LiveBlock> {
        let lanes =
            |block: &[bool]| (0..BLOCK_TOKENS).filter(|&t| *block.get(t).unwrap_or(&true)).fold(0, |m, t| m | 1 << t);
        let blocks = self.live.chunks(BLOCK_TOKENS).enumerate();
        blocks.map(|(b, live)| LiveBlock { block: b as u32, lanes: lanes(live) }).filter(|b| b.lanes != 0).collect()
    }

    /// The kernel's answer for rows `first..last`. What the rows must not read is NaN or has no block.
    fn run(&self, cpu: &Cpu, first: usize, last: usize) -> Vec<f32> {
        let Case { shape, kv, .. } = self;
        let (width, kv_width) = (shape.heads * kv.head_dim, kv.kv_heads * kv.head_dim);
        let k = rotated(&self.k, kv_width, kv.head_dim, |i| i);
        let seen =
            |i: usize| self.live[i] && i < last && (i < shape.sinks || shape.window.is_none_or(|w| i + w > first));
        let mut blocks = KvBlocks::new(KvFormat::F32, *kv, 4);
        let mut table = Vec::new();
        for start in (0..TOKENS).step_by(BLOCK_TOKENS) {
            let inside = start..(start + BLOCK_TOKENS).min(TOKENS);
            if !inside.clone().any(seen) {
                table.push(u32::MAX);
                continue;
            }
            let block = (start / BLOCK_TOKENS) as u32;
            while blocks.len() <= block as usize {
                assert!(blocks.grow());
            }
            for i in inside {
                let row = i * kv_width..(i + 1) * kv_width;
                let nan = vec![f32::NAN; kv_width];
                let (key, value) = if seen(i) { (&k[row.clone()], &self.v[row]) } else { (&nan[..], &nan[..]) };
                blocks.write(block, i % BLOCK_TOKENS, key, value);
            }
            table.push(block);
        }
        let rows = &self.q[first * width..last * width];
        let q = rotated(rows, width, kv.head_dim, |r| first + r);
        let moved = shape.window.map_or(usize::MAX, |w| w + shape.sinks - 1);
        let sink_q = rotated(rows, width, kv.head_dim, |r| (first + r).min(moved));
        let live = self.live_blocks();
        let live = self.live.contains(&false).then_some(&live[..]);
        let span = AttentionSpan { first_row: 0, rows: last - first, first_index: first, table: &table, live };
        let mut out = vec![f32::NAN; q.len()];
        attention(cpu, shape, &blocks, &[span], &q, Some(&sink_q), &mut out);
        out
    }

    /// Softmax over the visible tokens, each at its distance: queries rotated by it, keys not at all.
    fn expected(&self, p: usize) -> Vec<f64> {
        let Case { shape, kv: KvShape { kv_heads, head_dim }, .. } = self;
        let window = shape.window.unwrap_or(usize::MAX);
        let distance = |i: usize| if p - i < window { p - i } else { shape.sinks + window - 1 - i };
        let visible: Vec<usize> = (0..=p).filter(|&i| self.live[i] && (p - i < window || i < shape.sinks)).collect();
        let mut out = Vec::new();
        for head in 0..shape.heads {
            let at = |i: usize| (i * kv_heads + head / (shape.heads / kv_heads)) * head_dim;
            let q = &self.q[(p * shape.heads + head) * head_dim..][..*head_dim];
            let scores: Vec<f64> = visible
                .iter()
                .map(|&i| {
                    // Once everything fits the window the sinks' distance is the plain one.
                    let d = if p < window.saturating_add(shape.sinks) { p - i } else { distance(i) };
                    let k = &self.k[at(i)..at(i) + head_dim];
                    let dot: f64 = rotate(q, d as f64).iter().zip(k).map(|(a, &b)| a * f64::from(b)).sum();
                    let s = dot * f64::from(shape.scale);
                    shape.softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..*head_dim {
                let mixed = visible.iter().zip(&weights).map(|(&i, w)| w * f64::from(self.v[at(i) + d])).sum::<f64>();
                out.push(mixed / sum);
            }
        }
        out
    }

    fn check(&self, cpu: &Cpu, index: usize) {
        let expected = self.expected(index);
        let size = expected.iter().fold(0f64, |a, b| a.max(b.abs()));
        let alone = self.run(cpu, index, index + 1);
        // Three threads divide the parts of the context among them.
        assert_eq!(self.run(&Cpu::new(3).unwrap(), index, index + 1), alone, "{:?} index {index}", self.shape);
        for (a, b) in alone.iter().zip(expected) {
            assert!((f64::from(*a) - b).abs() <= 1e-5 * size, "{:?} index {index}: {a} {b}", self.shape);
        }
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (heads, kv_heads, head_dim) in [(4, 2, 16), (2, 2, 7), (3, 1, 40)] {
        for (size, sinks) in [(1, 0), (1, 1), (33, 4), (40, 33), (100, 1), (64, 64), (300, 4), (270, 0)] {
            cases.push(Case::new(heads, kv_heads, head_dim, Some(size), sinks));
        }
    }
    cases
}

/// Drops about a third of the tokens before `end`, and whole stretches.
fn scatter(case: &mut Case, end: usize, mut seed: u64) {
    for i in 0..end {
        let stretch = i / 50 % 3 == 1;
        case.live[i] = !stretch && noise(&mut seed) < 0.3;
    }
}

#[test]
fn windows_and_sinks_equal_a_direct_computation_over_distances() {
    let cpu = Cpu::new(1).unwrap();
    for case in cases() {
        for index in [0, 1, 5, 33, 36, 37, 72, 73, 101, 128, 255, 256, 303, 304, TOKENS - 1] {
            case.check(&cpu, index);
        }
    }
}

#[test]
fn dropped_tokens_get_no_attention_and_are_not_read() {
    let cpu = Cpu::new(1).unwrap();
    for (seed, mut case) in cases().into_iter().chain([Case::new(4, 2, 16, None, 0)]).enumerate() {
        scatter(&mut case, 380, seed as u64);
        for index in [380, 383, 384, TOKENS - 1] {
            case.check(&cpu, index);
        }
    }
}

#[test]
fn a_row_is_the_same_alone_in_a_chunk_and_at_every_level() {
    for (seed, mut case) in cases().into_iter().enumerate() {
        if seed % 2 == 0 {
            scatter(&mut case, 290, seed as u64);
        }
        let row = case.shape.heads * case.kv.head_dim;
        let whole = case.run(&Cpu::new(2).unwrap(), 290, 350);
        for level in KernelLevel::available() {
            let mut cpu = Cpu::new(1).unwrap();
            cpu.level = level;
            for (first, last) in [(290, 291), (290, 297), (301, 333), (349, 350)] {
                let part = case.run(&cpu, first, last);
                assert_eq!(part, whole[(first - 290) * row..(last - 290) * row], "{:?} {first} {level:?}", case.shape);
            }
        }
    }
}

#[test]
fn nothing_changes_until_something_is_out_of_sight() {
    let cpu = Cpu::new(1).unwrap();
    let full = Case::new(4, 2, 16, None, 0);
    for (size, sinks) in [(100, 4), (64, 40), (103, 1)] {
        let case = Case::new(4, 2, 16, Some(size), sinks);
        let (last, row) = (size + sinks, 64);
        let whole = full.run(&cpu, 0, last + 1);
        let windowed = case.run(&cpu, 0, last + 1);
        assert_eq!(whole[..last * row], windowed[..last * row]);
        assert_ne!(whole[last * row..], windowed[last * row..]);
    }
}

#[test]
fn lanes_and_runs() {
    assert_eq!(between(0, 0, 32), u32::MAX);
    assert_eq!((between(1, 0, 33), between(1, 63, 70), between(2, 0, 64)), (1, 1 << 31, 0));
    assert_eq!(between(0, 5, 3), 0);
    let of = |lanes| runs(lanes).collect::<Vec<_>>();
    assert!(of(0).is_empty());
    assert_eq!(of(u32::MAX), vec![0..32]);
    assert_eq!(of(0b1011 | 1 << 31), [0..2, 3..4, 31..32]);
}
