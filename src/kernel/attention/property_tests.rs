//! Attention of any shape, format and visibility: every level and every cut of the rows gives scalar's bits.

use std::ops::Range;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::kernel::{KernelLevel, KvFormat, KvShape, Pool};

/// One sequence: tokens before the computed rows, and those rows.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    first: usize,
    rows: usize,
    /// Of how many tokens one is dropped; 0 for none.
    dropped: u64,
}

#[derive(Clone, Debug)]
struct Case {
    kv: KvShape,
    group: usize,
    format: KvFormat,
    window: Option<usize>,
    sinks: usize,
    softcap: Option<f32>,
    /// Whether sinks are scored with queries of their own.
    sink_queries: bool,
    sequences: Vec<Sequence>,
    threads: usize,
    cut: prop::sample::Index,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let kv = (1usize..=3, prop_oneof![1usize..=96, Just(64), Just(32)])
        .prop_map(|(kv_heads, head_dim)| KvShape { kv_heads, head_dim });
    let sequence = |rows| {
        (prop_oneof![0usize..40, 0usize..600], rows, 0u64..5).prop_map(|(first, rows, dropped)| Sequence {
            first,
            rows,
            dropped,
        })
    };
    // Many short ones together take another path than each alone.
    let short = prop::collection::vec(sequence(1usize..=4), 4..=9);
    let sequences = prop_oneof![prop::collection::vec(sequence(1usize..=20), 1..=2), short];
    let seen = (prop::option::of(1usize..=300), 0usize..=40, any::<bool>());
    let softcap = prop::option::of(prop::sample::select(vec![0.5f32, 5.0, 50.0]));
    let rest = (1usize..=3, any::<prop::sample::Index>(), 1u64..u64::MAX);
    (kv, 1usize..=5, prop::sample::select(KvFormat::ALL), seen, softcap, sequences, rest).prop_map(
        |(kv, group, format, (window, sinks, sink_queries), softcap, sequences, (threads, cut, seed))| Case {
            kv,
            group,
            format,
            window,
            sinks,
            softcap,
            sink_queries,
            sequences,
            threads,
            cut,
            seed,
        },
    )
}

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 20
    }

    /// Heads of ordinary values, and now and then one of zeros, of subnormal numbers, or of large ones.
    fn heads(&mut self, count: usize, dim: usize) -> Vec<f32> {
        let mut out = Vec::with_capacity(count * dim);
        for _ in 0..count {
            let size = match self.next() % 40 {
                0 => 0.0,
                1 => 1e-39,
                2 => 3e4,
                _ => 2.0,
            };
            out.extend((0..dim).map(|_| ((self.next() % (1 << 24)) as f32 / (1 << 23) as f32 - 1.0) * size));
        }
        out
    }
}

/// A sequence's place among the rows, its blocks and its live tokens.
struct Placed {
    first_row: usize,
    table: Vec<u32>,
    live: Option<Vec<LiveBlock>>,
}

struct Operands {
    blocks: KvBlocks,
    q: Vec<f32>,
    sink_q: Option<Vec<f32>>,
    placed: Vec<Placed>,
}

impl Case {
    fn row(&self) -> usize {
        self.kv.kv_heads * self.group * self.kv.head_dim
    }

    fn operands(&self) -> Operands {
        let mut noise = Noise(self.seed);
        let mut blocks = KvBlocks::new(self.format, self.kv, 3);
        let (mut placed, mut row, mut used) = (Vec::new(), 0, 0);
        for sequence in &self.sequences {
            let tokens = sequence.first + sequence.rows;
            let count = tokens.div_ceil(BLOCK_TOKENS) as u32;
            // From the last block to the first.
            let table: Vec<u32> = (0..count).map(|b| used + count - 1 - b).collect();
            used += count;
            while blocks.len() < used as usize {
                assert!(blocks.grow());
            }
            let mut lanes = vec![u32::MAX; count as usize];
            for i in 0..tokens {
                let (heads, dim) = (self.kv.kv_heads, self.kv.head_dim);
                let (mut key, mut value) = (noise.heads(heads, dim), noise.heads(heads, dim));
                // Whole stretches are dropped too, but no row that is computed.
                let dropped =
                    sequence.dropped > 0 && (noise.next().is_multiple_of(sequence.dropped) || i / 70 % 3 == 1);
                if i < sequence.first && dropped {
                    lanes[i / BLOCK_TOKENS] &= !(1 << (i % BLOCK_TOKENS));
                    // What is dropped is not read.
                    (key, value) = (vec![f32::NAN; key.len()], vec![f32::NAN; value.len()]);
                }
                blocks.write(table[i / BLOCK_TOKENS], i % BLOCK_TOKENS, &key, &value);
            }
            let live = lanes.iter().enumerate().map(|(b, &lanes)| LiveBlock { block: b as u32, lanes });
            let live = (sequence.dropped > 0).then(|| live.filter(|block| block.lanes != 0).collect());
            // A row between two sequences belongs to nobody.
            placed.push(Placed { first_row: row, table, live });
            row += sequence.rows + 1;
        }
        let heads = self.kv.kv_heads * self.group;
        let q = noise.heads(row * heads, self.kv.head_dim);
        let sink_q = self.sink_queries.then(|| noise.heads(row * heads, self.kv.head_dim));
        Operands { blocks, q, sink_q, placed }
    }

    /// Of the rows of each sequence, which are given with its place, those in `part`.
    fn run(&self, operands: &Operands, cpu: &Cpu, part: impl Fn(usize, usize) -> Range<usize>, out: &mut [f32]) {
        let shape = AttentionShape {
            heads: self.kv.kv_heads * self.group,
            scale: 0.17,
            softcap: self.softcap,
            window: self.window,
            sinks: self.sinks,
        };
        let spans = self.sequences.iter().zip(&operands.placed).enumerate().filter_map(|(s, (sequence, placed))| {
            let part = part(s, sequence.rows);
            (!part.is_empty()).then(|| AttentionSpan {
                first_row: placed.first_row + part.start,
                rows: part.len(),
                first_index: sequence.first + part.start,
                table: &placed.table,
                live: placed.live.as_deref(),
            })
        });
        let spans: Vec<_> = spans.collect();
        attention(cpu, &shape, &operands.blocks, &spans, &operands.q, operands.sink_q.as_deref(), out);
    }
}

/// Bits, with one NaN for all.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

proptest! {
    // Fewer where processors are emulated, as in the checks of this project.
    #![proptest_config(ProptestConfig { cases: if cfg!(target_arch = "x86_64") { 96 } else { 32 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_level_and_every_cut_gives_scalars_bits(case in cases()) {
        let operands = case.operands();
        let rows = operands.q.len() / case.row();
        let blank = vec![1.5f32; rows * case.row()];
        let one = Cpu { pool: Arc::new(Pool::new(1).unwrap()), level: KernelLevel::Scalar };
        let mut expected = blank.clone();
        for alone in 0..case.sequences.len() {
            case.run(&operands, &one, |s, rows| 0..if s == alone { rows } else { 0 }, &mut expected);
        }
        for (sequence, placed) in case.sequences.iter().zip(&operands.placed) {
            let after = placed.first_row + sequence.rows;
            let row = after * case.row()..(after + 1) * case.row();
            prop_assert_eq!(&expected[row.clone()], &blank[row], "a row of no sequence is written");
        }
        prop_assert!(expected.iter().all(|value| value.is_finite()));
        let expected = bits(&expected);
        let pool = Arc::new(Pool::new(case.threads).unwrap());
        for level in KernelLevel::available() {
            let cpu = Cpu { pool: pool.clone(), level };
            let mut out = blank.clone();
            case.run(&operands, &cpu, |_, rows| 0..rows, &mut out);
            prop_assert_eq!(bits(&out), &expected[..], "{}", level);
            let mut out = blank.clone();
            case.run(&operands, &cpu, |_, rows| 0..case.cut.index(rows), &mut out);
            case.run(&operands, &cpu, |_, rows| case.cut.index(rows)..rows, &mut out);
            prop_assert_eq!(bits(&out), &expected[..], "{}, cut in two", level);
        }
    }
}
