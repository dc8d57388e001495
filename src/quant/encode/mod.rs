//! From f32 values to the blocks of ggml's formats: one writer per type.
//!
//! Written from the layouts of the blocks (`src/kernel/scalar.rs` reads them back). Each writer fixes what a reader
//! will see of the scales first, halves included, and then takes the nearest codes. Deterministic: plain f32 arithmetic
//! in a fixed order, without fused operations, the same on every machine. Knows no tensors and no files.

mod affine;
mod plain;
mod signed;

use std::fmt;

use half::{bf16, f16};

use crate::source::Dtype;

/// Why values cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unencodable {
    /// An infinity or a NaN.
    NotFinite,
    /// A scale beyond the range of f16.
    TooLarge,
}

impl fmt::Display for Unencodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unencodable::NotFinite => "a value is infinite or not a number",
            Unencodable::TooLarge => "a value is too large for a scale in f16",
        })
    }
}

/// Whether there is a writer for a type.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn has_writer(dtype: Dtype) -> bool {
    use Dtype::*;
    matches!(dtype, F32 | F16 | BF16 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2_K | Q3_K | Q4_K | Q5_K | Q6_K)
}

/// Writes whole blocks. `out` has exactly the bytes of `values` in `dtype`, one that has a writer.
///
/// Dense types take any value: what f16 cannot hold becomes an infinity there.
pub(crate) fn encode(dtype: Dtype, values: &[f32], out: &mut [u8]) -> Result<(), Unencodable> {
    debug_assert_eq!(dtype.size_in_bytes(values.len()), Some(out.len()));
    match dtype {
        Dtype::F32 => each(values, out, |x| x.to_le_bytes()),
        Dtype::F16 => each(values, out, |x| f16::from_f32(x).to_le_bytes()),
        Dtype::BF16 => each(values, out, |x| bf16::from_f32(x).to_le_bytes()),
        _ => {
            // Far beyond every format; below it no intermediate result overflows.
            const MOST: f32 = 1.0e9;
            if !values.iter().all(|x| x.abs() <= MOST) {
                let finite = values.iter().all(|x| x.is_finite());
                return Err(if finite { Unencodable::TooLarge } else { Unencodable::NotFinite });
            }
            if dtype.block_len() == 32 {
                blocks::<32>(values, out, dtype.block_bytes(), |block, out| plain::block(dtype, block, out))
            } else {
                blocks::<256>(values, out, dtype.block_bytes(), |block, out| match dtype {
                    Dtype::Q2_K => affine::q2_k(block, out),
                    Dtype::Q4_K => affine::q4_k(block, out),
                    Dtype::Q5_K => affine::q5_k(block, out),
                    Dtype::Q3_K => signed::q3_k(block, out),
                    Dtype::Q6_K => signed::q6_k(block, out),
                    other => unreachable!("no writer for {other}"),
                })
            }
        }
    }
}

fn each<const W: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; W]) -> Result<(), Unencodable> {
    for (x, out) in values.iter().zip(out.as_chunks_mut::<W>().0) {
        *out = bytes(*x);
    }
    Ok(())
}

fn blocks<const N: usize>(
    values: &[f32],
    out: &mut [u8],
    bytes: usize,
    write: impl Fn(&[f32; N], &mut [u8]) -> Result<(), Unencodable>,
) -> Result<(), Unencodable> {
    values.as_chunks::<N>().0.iter().zip(out.chunks_exact_mut(bytes)).try_for_each(|(block, out)| write(block, out))
}

/// Writes the nearest half at `at`; answers the value that a reader will see.
fn put_half(out: &mut [u8], at: usize, value: f32) -> Result<f32, Unencodable> {
    let half = f16::from_f32(value);
    if !half.is_finite() {
        return Err(Unencodable::TooLarge);
    }
    out[at..at + 2].copy_from_slice(&half.to_le_bytes());
    Ok(half.to_f32())
}

/// 1 / x, or 0 for 0, so that values of an empty range get the code 0.
fn inverse(x: f32) -> f32 {
    if x == 0.0 {
        0.0
    } else {
        1.0 / x
    }
}

/// The nearest integer, ties to even, within bounds. For magnitudes below 2^22; beyond, still within the bounds.
#[inline(always)]
fn nearest(x: f32, low: f32, high: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves the rounded value in the low bits of the mantissa. Comparisons instead of `max` and
    // `min`, which would order NaN too.
    const MAGIC: f32 = 12_582_912.0;
    let x = if x > low { x } else { low };
    let x = if x < high { x } else { high };
    (x + MAGIC) - MAGIC
}

/// Smallest and largest value.
#[inline(always)]
fn range<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    let (mut low, mut high) = ([x[0]; 8], [x[0]; 8]);
    for x in x.as_chunks::<8>().0 {
        for i in 0..8 {
            low[i] = if x[i] < low[i] { x[i] } else { low[i] };
            high[i] = if x[i] > high[i] { x[i] } else { high[i] };
        }
    }
    (low.into_iter().fold(low[0], f32::min), high.into_iter().fold(high[0], f32::max))
}

/// The value of largest magnitude, with its sign; the positive one of two.
#[inline(always)]
fn extreme<const N: usize>(x: &[f32; N]) -> f32 {
    let (low, high) = range(x);
    if -low > high {
        low
    } else {
        high
    }
}

/// The sum of eight lanes, in order, without the rounding of f32.
#[inline(always)]
fn total(lanes: [f32; 8]) -> f64 {
    lanes.into_iter().map(f64::from).sum()
}

/// How much better a candidate must be to be taken: the noise of the sums is smaller.
const MARGIN: f64 = 1.0 + 1.0e-7;

#[cfg(test)]
mod tests;
