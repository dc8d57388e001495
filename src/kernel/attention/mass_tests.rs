//! Attention mass against the direct softmax in f64, and against itself under every way of cutting the rows.

use super::*;
use crate::kernel::{KernelLevel, KvFormat, KvShape};
use crate::testing::normal;

const TOKENS: usize = 610;

struct Case {
    shape: AttentionShape,
    kv: KvShape,
    format: KvFormat,
    /// Tokens that are dropped.
    dropped: fn(usize) -> bool,
}

impl Case {
    fn sees(&self, row: usize, key: usize) -> bool {
        let near = self.shape.window.is_none_or(|window| key + window > row);
        key <= row && !(self.dropped)(key) && (near || key < self.shape.sinks)
    }

    /// The mass that rows `first..last` add, over `indices` indices, computed `cut` rows at a time.
    fn mass(&self, cpu: &Cpu, (first, last): (usize, usize), cut: usize) -> Vec<f32> {
        let (width, row) = (self.kv.kv_heads * self.kv.head_dim, self.shape.heads * self.kv.head_dim);
        let (k, q) = (normal(1, "k", TOKENS * width), normal(2, "q", TOKENS * row));
        let mut blocks = KvBlocks::new(self.format, self.kv, 7);
        let table: Vec<u32> = (0..TOKENS.div_ceil(BLOCK_TOKENS) as u32).rev().collect();
        while blocks.len() < table.len() {
            assert!(blocks.grow());
        }
        for (i, k) in k.chunks(width).enumerate() {
            // Values are of no matter; dropped tokens are not to be read.
            let k = if (self.dropped)(i) { vec![f32::NAN; width] } else { k.to_vec() };
            blocks.write(table[i / BLOCK_TOKENS], i % BLOCK_TOKENS, &k, &vec![f32::NAN; width]);
        }
        let lanes = |b: usize| (0..32).filter(|t| !(self.dropped)(b * 32 + t)).fold(0, |lanes, t| lanes | 1 << t);
        let live: Vec<LiveBlock> = (0..table.len())
            .map(|b| LiveBlock { block: b as u32, lanes: lanes(b) })
            .filter(|block| block.lanes != 0)
            .collect();
        let mut mass = vec![0.0; self.kv.kv_heads * last];
        for start in (first..last).step_by(cut) {
            let end = last.min(start + cut);
            let span =
                AttentionSpan { first_row: 0, rows: end - start, first_index: start, table: &table, live: Some(&live) };
            let mut part: Vec<f32> = mass.chunks(last).flat_map(|head| &head[..end]).copied().collect();
            attention_mass(cpu, &self.shape, &blocks, &span, &q[start * row..end * row], None, &mut part);
            for (mass, part) in mass.chunks_mut(last).zip(part.chunks(end)) {
                mass[..end].copy_from_slice(part);
            }
        }
        mass
    }

    fn expected(&self, (first, last): (usize, usize)) -> Vec<f64> {
        let (width, row) = (self.kv.kv_heads * self.kv.head_dim, self.shape.heads * self.kv.head_dim);
        let (k, q) = (normal(1, "k", TOKENS * width), normal(2, "q", TOKENS * row));
        let dim = self.kv.head_dim;
        let group = self.shape.heads / self.kv.kv_heads;
        let mut mass = vec![0.0; self.kv.kv_heads * last];
        for i in first..last {
            for head in 0..self.shape.heads {
                let q = &q[i * row + head * dim..][..dim];
                let weight = |key: usize| {
                    let k = &k[key * width + head / group * dim..][..dim];
                    let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    if self.sees(i, key) {
                        (dot * f64::from(self.shape.scale)).exp()
                    } else {
                        0.0
                    }
                };
                let weights: Vec<f64> = (0..last).map(weight).collect();
                let sum: f64 = weights.iter().sum();
                for (mass, weight) in mass[head / group * last..][..last].iter_mut().zip(&weights) {
                    *mass += if sum > 0.0 { weight / sum } else { 0.0 };
                }
            }
        }
        mass
    }
}

fn cases() -> Vec<Case> {
    let kv = |kv_heads, head_dim| KvShape { kv_heads, head_dim };
    let shape = |heads, window, sinks| AttentionShape { heads, scale: 0.2, softcap: None, window, sinks };
    vec![
        Case { shape: shape(4, None, 0), kv: kv(2, 16), format: KvFormat::F32, dropped: |_| false },
        Case { shape: shape(3, Some(70), 2), kv: kv(1, 7), format: KvFormat::F32, dropped: |t| t % 3 == 1 },
        Case { shape: shape(6, None, 0), kv: kv(2, 33), format: KvFormat::Bf16, dropped: |t| t < 300 },
        Case { shape: shape(2, None, 0), kv: kv(1, 32), format: KvFormat::Q8, dropped: |t| t % 64 > 40 },
    ]
}

#[test]
fn mass_is_the_sum_of_softmax_weights() {
    for case in cases() {
        let rows = (TOKENS - 21, TOKENS);
        let (mass, expected) = (case.mass(&Cpu::new(2).unwrap(), rows, 21), case.expected(rows));
        let bound = match case.format {
            KvFormat::F32 => 1e-5,
            _ => 0.02,
        };
        for (i, (a, b)) in mass.iter().zip(&expected).enumerate() {
            assert!((f64::from(*a) - b).abs() < bound * b.max(0.1), "{:?} {i}: {a} {b}", case.format);
            assert!(*b != 0.0 || *a == 0.0, "index {i} is not seen and has {a}");
        }
        let total: f32 = mass.iter().sum();
        assert!((total - (21 * case.shape.heads) as f32).abs() < 1e-2, "{total}");
    }
}

#[test]
fn mass_depends_on_neither_level_nor_threads_nor_cuts() {
    for case in cases() {
        let rows = (TOKENS - 19, TOKENS);
        let expected = case.mass(&Cpu::new(1).unwrap(), rows, 19);
        for level in KernelLevel::available() {
            for (threads, cut) in [(1, 19), (2, 1), (3, 8)] {
                let cpu = Cpu { level, ..Cpu::new(threads).unwrap() };
                assert_eq!(case.mass(&cpu, rows, cut), expected, "{level}, {threads} threads, {cut} rows");
            }
        }
    }
}

#[test]
fn rows_that_see_nothing_add_nothing() {
    let mut case = cases().remove(0);
    case.dropped = |_| true;
    assert_eq!(case.mass(&Cpu::new(2).unwrap(), (5, 9), 4), vec![0.0; 2 * 9]);
}
