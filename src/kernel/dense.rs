//! The product for matrices that no kernel knows: weights come as f32, some rows at a time, from whoever has them.
//!
//! Public, so that a quantizer outside of this crate has a product that keeps rows independent of each other. Knows no
//! storage types.

use std::ops::Range;

use super::chunks::Shared;
use super::vector::{leveled, sum32};
use super::Cpu;

/// Weights that a task holds at a time: half of a small second-level cache.
const TILE_BYTES: usize = 64 << 10;

/// `out`, `[n][rows]`, becomes `x`, `[n][cols]`, times the matrix `[rows, cols]` transposed.
///
/// `weights(range, values)` fills `values`, `[range.len()][cols]`, with those rows; it is called from several threads,
/// once per row of the matrix. Every output is summed in one order that depends on `cols` alone: 32 lanes of fused
/// multiply-adds, added by a fixed tree. So a row of `out` does not depend on the other rows, the number of threads or
/// the kernel level. NaN and infinities follow IEEE arithmetic and stay in their row.
///
/// ```
/// use candlewick::kernel::{matmul_f32, Cpu};
///
/// let (weights, mut out) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0; 2]);
/// matmul_f32(&Cpu::new(1)?, &[1.0, 0.0, -1.0], (2, 3), &|rows, w| w.copy_from_slice(&weights[3 * rows.start..3 * rows.end]), &mut out);
/// assert_eq!(out, [-2.0, -2.0]);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// If `x` is not whole rows of `cols`, or `out` not a value per row of `x` and row of the matrix.
pub fn matmul_f32(
    cpu: &Cpu,
    x: &[f32],
    (rows, cols): (usize, usize),
    weights: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
    out: &mut [f32],
) {
    assert!(x.len().is_multiple_of(cols.max(1)), "matmul_f32: an input of rows of {cols}");
    let n = x.len() / cols.max(1);
    assert_eq!(Some(out.len()), n.checked_mul(rows), "matmul_f32: the length of the output");
    if out.is_empty() {
        return;
    }
    let tile = (TILE_BYTES / 4 / cols).clamp(1, rows);
    let shared = Shared::new(out);
    cpu.pool.run(rows.div_ceil(tile), &|task| {
        let range = task * tile..rows.min((task + 1) * tile);
        let mut values = vec![0.0; range.len() * cols];
        weights(range.clone(), &mut values);
        for (m, x) in x.chunks_exact(cols).enumerate() {
            // SAFETY: tasks have disjoint ranges of rows, hence disjoint parts of every row of the output.
            let out = unsafe { shared.slice(m * rows + range.start, range.len()) };
            dots(cpu, x, &values, out);
        }
    });
}

leveled! {
    /// `out[r]` becomes `x` times row r of `weights`.
    fn dots(x: &[f32], weights: &[f32], out: &mut [f32]) {
        for (weights, out) in weights.chunks_exact(x.len()).zip(out) {
            let mut lanes = [0f32; 32];
            let (x, weights) = (x.as_chunks::<32>(), weights.as_chunks::<32>());
            for (x, w) in x.0.iter().zip(weights.0) {
                for i in 0..32 {
                    lanes[i] = w[i].mul_add(x[i], lanes[i]);
                }
            }
            for ((lane, x), w) in lanes.iter_mut().zip(x.1).zip(weights.1) {
                *lane = w.mul_add(*x, *lane);
            }
            *out = sum32(lanes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{KernelLevel, Pool};
    use super::*;
    use crate::testing::normal;

    fn product(cpu: &Cpu, x: &[f32], weights: &[f32], cols: usize) -> Vec<f32> {
        let rows = weights.len() / cols;
        // What is there before must not count.
        let mut out = vec![f32::NAN; x.len() / cols * rows];
        let fill = |range: Range<usize>, values: &mut [f32]| {
            values.copy_from_slice(&weights[range.start * cols..range.end * cols]);
        };
        matmul_f32(cpu, x, (rows, cols), &fill, &mut out);
        out
    }

    #[test]
    fn sums_are_right_and_rows_are_independent_at_every_level_and_thread_count() {
        for (n, rows, cols) in [(1, 1, 1), (3, 5, 31), (2, 40, 32), (5, 67, 700), (4, 3, 20_000)] {
            let (x, weights) = (normal(1, "x", n * cols), normal(2, "w", rows * cols));
            let cpu = Cpu { pool: Arc::new(Pool::new(1).unwrap()), level: KernelLevel::Scalar };
            let expected = product(&cpu, &x, &weights, cols);
            for (m, x) in x.chunks_exact(cols).enumerate() {
                assert_eq!(product(&cpu, x, &weights, cols), expected[m * rows..(m + 1) * rows]);
                for (r, w) in weights.chunks_exact(cols).enumerate() {
                    let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    let error = (f64::from(expected[m * rows + r]) - sum).abs();
                    assert!(error < 1e-5 * (cols as f64).sqrt(), "{n} x {rows} x {cols}: {error}");
                }
            }
            for level in KernelLevel::available() {
                for threads in [1, 2, 3] {
                    let cpu = Cpu { pool: Arc::new(Pool::new(threads).unwrap()), level };
                    assert_eq!(product(&cpu, &x, &weights, cols), expected, "{level}, {threads} threads");
                }
            }
        }
    }

    #[test]
    fn nothing_is_not_a_number_beyond_its_row() {
        let cpu = Cpu::new(2).unwrap();
        let out = product(&cpu, &[f32::NAN, 1.0, 2.0, 3.0], &[1.0; 6], 2);
        assert!(out[..3].iter().all(|x| x.is_nan()));
        assert_eq!(out[3..], [5.0; 3]);
        assert!(product(&cpu, &[], &[1.0; 6], 2).is_empty());
    }
}
