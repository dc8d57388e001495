//! Tests of the kernels, and the weights and inputs they share.

mod formats;
mod fused;
mod pool;
mod products;
mod properties;
mod speed;

use half::{bf16, f16};

use super::format::layout;
use super::{Activations, Cpu, KernelLevel, PackedMatrix, Pool};
use crate::source::Dtype;

/// Every type with kernels.
fn dtypes() -> impl Iterator<Item = Dtype> {
    Dtype::ALL.iter().copied().filter(|&dtype| layout(dtype).is_some())
}

/// A small generator of test data (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Uniform in -1..1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// An input with an outlier now and then.
    fn input(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|i| self.float() * if i % 37 == 5 { 20.0 } else { 1.0 }).collect()
    }

    /// File bytes of `rows` rows: random codes, scales of ordinary size and both signs.
    fn weights(&mut self, dtype: Dtype, rows: usize, cols: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..rows * cols / dtype.block_len() {
            let start = bytes.len();
            match dtype {
                Dtype::F32 => bytes.extend(self.float().to_le_bytes()),
                Dtype::F16 => bytes.extend(f16::from_f32(self.float()).to_le_bytes()),
                Dtype::BF16 => bytes.extend(bf16::from_f32(self.float()).to_le_bytes()),
                _ => {
                    bytes.extend((0..dtype.block_bytes()).map(|_| 0u8));
                    bytes[start..].iter_mut().for_each(|byte| *byte = (self.next() >> 30) as u8);
                    if dtype == Dtype::MXFP4 {
                        bytes[start] = 116 + bytes[start] % 8;
                    }
                    for &at in factors(dtype) {
                        let factor = f16::from_f32(self.float() / 16.0).to_le_bytes();
                        bytes[start + at..start + at + 2].copy_from_slice(&factor);
                    }
                }
            }
        }
        bytes
    }
}

/// Offsets of the f16 factors of a block.
fn factors(dtype: Dtype) -> &'static [usize] {
    match dtype {
        Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 | Dtype::IQ4_NL | Dtype::IQ4_XS => &[0],
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4_K | Dtype::Q5_K => &[0, 2],
        Dtype::Q2_K => &[80, 82],
        Dtype::Q3_K => &[108],
        Dtype::Q6_K => &[208],
        _ => &[],
    }
}

fn cpu(level: KernelLevel, threads: usize) -> Cpu {
    Cpu { pool: std::sync::Arc::new(Pool::new(threads).unwrap()), level }
}

fn pack(dtype: Dtype, rows: usize, cols: usize, bytes: &[u8]) -> PackedMatrix {
    let mut matrix = PackedMatrix::allocate(dtype, rows, cols).unwrap();
    matrix.pack_rows_unchecked(&cpu(KernelLevel::Scalar, 1), 0, bytes).unwrap();
    matrix
}

fn prepare(cpu: &Cpu, x: &[f32], rows: usize, weights: &[&PackedMatrix], precision: super::Precision) -> Activations {
    let mut acts = Activations::new();
    acts.prepare(cpu, x, rows, x.len() / rows, weights, precision);
    acts
}

/// Shapes `(rows, cols)` that a type can have: partial panels, odd block counts, several chunks.
fn shapes(dtype: Dtype) -> &'static [(usize, usize)] {
    match dtype.block_len() {
        1 => &[(1, 1), (5, 7), (16, 172), (40, 256), (33, 300), (70, 515)],
        32 => &[(1, 32), (16, 64), (40, 96), (33, 256), (50, 160), (64, 544)],
        _ => &[(5, 256), (33, 512), (80, 768)],
    }
}
