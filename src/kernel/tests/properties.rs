//! Products of any shape, types, contents and way in or out: every level gives scalar's bits.

use proptest::prelude::*;

use super::{dtypes, factors, Random};
use crate::kernel::matmul::{matmul_portable, matmul_portable_pairs};
use crate::kernel::{
    matmul, matmul_add, Activation, Activations, Cpu, Input, KernelLevel, PackedMatrix, Pool, Precision,
};
use crate::source::Dtype;

/// Bits of finite f16 numbers at the edges: zeros, the least, the largest subnormal, the least normal, the largest.
const EDGES: [u16; 8] = [0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x3c00];

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[(random.next() >> 20) as usize % from.len()]
}

fn one_in(random: &mut Random, count: u64) -> bool {
    (random.next() >> 20).is_multiple_of(count)
}

/// File bytes, one in four blocks of which has extreme codes, and one in four extreme factors. All are finite.
fn contents(random: &mut Random, dtype: Dtype, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = random.weights(dtype, rows, cols);
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        match dtype {
            Dtype::F32 if one_in(random, 9) => {
                let edges = [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, f32::from_bits(1), 1e-30];
                block.copy_from_slice(&pick(random, &edges).to_le_bytes());
            }
            Dtype::F16 if one_in(random, 9) => block.copy_from_slice(&pick(random, &EDGES).to_le_bytes()),
            Dtype::BF16 if one_in(random, 9) => {
                // With the neighbours of 2^-50.
                let edges = [0u16, 0x8000, 1, 0x807f, 0x0080, 0x267f, 0xa680, 0x7f7f, 0xff7f];
                block.copy_from_slice(&pick(random, &edges).to_le_bytes());
            }
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => {}
            _ => {
                let kept: Vec<[u8; 2]> = factors(dtype).iter().map(|&at| [block[at], block[at + 1]]).collect();
                if one_in(random, 4) {
                    block.fill(pick(random, &[0x00, 0xff, 0x7f, 0x80, 0x88, 0x77, 0x0f, 0xf0]));
                }
                for (&at, kept) in factors(dtype).iter().zip(kept) {
                    let factor = if one_in(random, 4) { pick(random, &EDGES).to_le_bytes() } else { kept };
                    block[at..at + 2].copy_from_slice(&factor);
                }
                if dtype == Dtype::MXFP4 {
                    // The largest exponent with which every code is finite.
                    block[0] = if one_in(random, 4) { pick(random, &[0, 1, 2, 127, 252]) } else { block[0].min(140) };
                }
            }
        }
    }
    bytes
}

/// Rows of several kinds: ordinary ones, and some of zeros, subnormal numbers, one size, one huge value, sizes around the
/// least that counts, or values that are not finite.
fn input(random: &mut Random, rows: usize, cols: usize) -> Vec<f32> {
    let mut x = random.input(rows * cols);
    for row in x.chunks_exact_mut(cols) {
        let at = (random.next() >> 20) as usize % cols;
        match (random.next() >> 20) % 14 {
            0 => row.fill(pick(random, &[0.0, -0.0])),
            1 => row.iter_mut().for_each(|value| *value *= 1e-39),
            2 => row.iter_mut().for_each(|value| *value = 3.0f32.copysign(*value)),
            3 => row[at] = pick(random, &[f32::MAX, f32::MIN, 1e30, -1e38]),
            4 => row.iter_mut().for_each(|value| *value *= 1e-30),
            // Around the least bf16 that counts, 2^-50.
            6 => row.iter_mut().for_each(|value| *value *= 1e-15),
            5 => row[at] = pick(random, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
            _ => {}
        }
    }
    x
}

/// One product: what goes in, and how.
#[derive(Clone, Debug)]
struct Case {
    dtypes: Vec<Dtype>,
    /// Rows of each matrix.
    outputs: usize,
    cols: usize,
    rows: usize,
    /// 0 for plain rows, then those made by a norm and by both gates.
    made: usize,
    precision: Precision,
    add: bool,
    threads: usize,
    /// Values before the input and the outputs in their memory, so that no alignment can be relied on.
    offset: usize,
    /// Where the rows are cut in two.
    cut: prop::sample::Index,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let types = prop::collection::vec(prop::sample::select(dtypes().collect::<Vec<_>>()), 1..=2);
    let shape = (types, 1usize..=70, prop_oneof![2 => 1usize..=16, 1 => 17usize..=40], any::<prop::sample::Index>());
    let way = (0usize..4, any::<bool>(), any::<bool>(), 1usize..=3, 0usize..16);
    (shape, way, any::<prop::sample::Index>(), 1u64..u64::MAX).prop_map(
        |((dtypes, outputs, rows, cols), (made, int8, add, threads, offset), cut, seed)| {
            let unit = dtypes.iter().map(|dtype| dtype.block_len()).max().unwrap_or(1);
            let cols = unit
                * (1 + cols.index(match unit {
                    1 => 300,
                    32 => 18,
                    _ => 3,
                }));
            let precision = if int8 { Precision::Int8Activations } else { Precision::F32 };
            Case { dtypes, outputs, cols, rows, made, precision, add, threads, offset, cut, seed }
        },
    )
}

type Matmul = fn(&Cpu, &[&PackedMatrix], &Activations, &mut [&mut [f32]]);

/// What a case multiplies.
struct Operands {
    weights: Vec<PackedMatrix>,
    x: Vec<f32>,
    up: Vec<f32>,
    norm: Vec<f32>,
    before: Vec<f32>,
}

impl Case {
    fn operands(&self) -> Operands {
        let mut random = Random(self.seed);
        let scalar = Cpu { pool: std::sync::Arc::new(Pool::new(1).unwrap()), level: KernelLevel::Scalar };
        let weights = self.dtypes.iter().map(|&dtype| {
            let mut weights = PackedMatrix::allocate(dtype, self.outputs, self.cols).unwrap();
            weights.pack_rows(&scalar, 0, &contents(&mut random, dtype, self.outputs, self.cols)).unwrap();
            weights
        });
        let weights = weights.collect();
        let shifted = |values: Vec<f32>| [vec![f32::NAN; self.offset], values].concat();
        let x = shifted(input(&mut random, self.rows, self.cols));
        let up = shifted(input(&mut random, self.rows, self.cols));
        let norm = random.input(self.cols);
        Operands { weights, x, up, norm, before: random.input(self.rows * self.outputs) }
    }

    /// All outputs of some rows, one matrix after the other.
    fn run(&self, operands: &Operands, matmul: Matmul, cpu: &Cpu, rows: std::ops::Range<usize>) -> Vec<f32> {
        let part = self.offset + rows.start * self.cols..self.offset + rows.end * self.cols;
        let (x, up) = (&operands.x[part.clone()], &operands.up[part]);
        let input = match self.made {
            0 => Input::Rows(x),
            1 => Input::Normed { x, weight: &operands.norm, eps: 1e-6 },
            2 => Input::Gated { activation: Activation::Silu, gate: x, up },
            _ => Input::Gated { activation: Activation::GeluTanh, gate: x, up },
        };
        let weights: Vec<&PackedMatrix> = operands.weights.iter().collect();
        let mut acts = Activations::new();
        acts.prepare_input(cpu, &input, rows.len(), self.cols, &weights, self.precision);
        // Values around the outputs, which nobody may write.
        let guard = vec![1.5f32; self.offset + 1];
        let before = &operands.before[rows.start * self.outputs..rows.end * self.outputs];
        let mut outs: Vec<Vec<f32>> = weights.iter().map(|_| [&guard, before, &guard].concat()).collect();
        let inside = guard.len()..guard.len() + before.len();
        let mut slices: Vec<&mut [f32]> = outs.iter_mut().map(|out| &mut out[inside.clone()]).collect();
        matmul(cpu, &weights, &acts, &mut slices);
        for out in &outs {
            assert!(out[..inside.start] == guard && out[inside.end..] == guard, "written outside of the output");
        }
        outs.iter().flat_map(|out| &out[inside.clone()]).copied().collect()
    }
}

/// Bits, with one NaN for all.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

proptest! {
    // Fewer where processors are emulated, as in the checks of this project.
    #![proptest_config(ProptestConfig { cases: if cfg!(target_arch = "x86_64") { 256 } else { 64 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_level_and_every_cut_gives_scalars_bits(case in cases()) {
        let operands = case.operands();
        let plain: Matmul = if case.add { matmul_add } else { matmul };
        let one = Cpu { pool: std::sync::Arc::new(Pool::new(1).unwrap()), level: KernelLevel::Scalar };
        let expected = bits(&case.run(&operands, plain, &one, 0..case.rows));
        let pool = std::sync::Arc::new(Pool::new(case.threads).unwrap());
        for level in KernelLevel::available() {
            let cpu = Cpu { pool: pool.clone(), level };
            let all = bits(&case.run(&operands, plain, &cpu, 0..case.rows));
            prop_assert_eq!(&all, &expected, "{}", level);
            let cut = case.cut.index(case.rows);
            let parts = [0..cut, cut..case.rows].map(|rows| bits(&case.run(&operands, plain, &cpu, rows)));
            // Each part has all its rows of one matrix, then those of the next.
            let at = cut * case.outputs;
            for (i, all) in all.chunks_exact(case.rows * case.outputs).enumerate() {
                prop_assert_eq!(&all[..at], &parts[0][i * at..(i + 1) * at], "{}, rows before {}", level, cut);
                let rest = all.len() - at;
                prop_assert_eq!(&all[at..], &parts[1][i * rest..(i + 1) * rest], "{}, rows from {}", level, cut);
            }
        }
        if !case.add {
            let cpu = Cpu { pool, level: KernelLevel::Scalar };
            for (portable, name) in [(matmul_portable as Matmul, "lanes"), (matmul_portable_pairs, "pairs")] {
                let actual = bits(&case.run(&operands, portable, &cpu, 0..case.rows));
                prop_assert_eq!(&actual, &expected, "portable {}", name);
            }
        }
    }
}
