//! From scores to weights within a part, and from parts to a whole. Knows no keys and values.

use super::super::isa::KernelLevel;
use super::super::kv::BLOCK_TOKENS;
use super::super::vector::{exp, leveled, sum32};
use super::PART_BLOCKS;

/// The sum of weights where a query has seen nothing, in a part or so far; real sums are not negative.
pub(super) const UNSEEN: f32 = -1.0;

/// e^x rounded to bf16, for x up to 0; at least e^-34, which products of bf16 can take (`lanes::pairs`). NaN stays NaN.
#[inline(always)]
fn narrow_exp(x: f32) -> f32 {
    let bits = exp(if x < -34.0 { -34.0 } else { x }).to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

leveled! {
    /// Turns the scores of the lanes seen into `e^(score - max)`, the other lanes of their blocks into 0;
    /// `total` is the maximum and the sum. Blocks without a lane are left as they are. With `narrow` the weights are
    /// rounded to bf16, and the sum is theirs.
    pub(super) fn soften(weights: &mut [f32], seen: &[u32; PART_BLOCKS], narrow: bool, total: &mut [f32]) {
        // NaN must survive, so that a broken model is noticed.
        let larger = |a: f32, b: f32| if b > a || b.is_nan() { b } else { a };
        let hide = |weights: &mut [f32], seen: u32, value: f32| {
            if seen != u32::MAX {
                for (t, weight) in weights.iter_mut().enumerate() {
                    *weight = if seen >> t & 1 == 1 { *weight } else { value };
                }
            }
        };
        let mut maxima = [f32::NEG_INFINITY; BLOCK_TOKENS];
        for (weights, &seen) in weights.chunks_exact_mut(BLOCK_TOKENS).zip(seen) {
            if seen != 0 {
                hide(weights, seen, f32::NEG_INFINITY);
                for t in 0..BLOCK_TOKENS {
                    maxima[t] = larger(maxima[t], weights[t]);
                }
            }
        }
        let max = maxima.into_iter().fold(f32::NEG_INFINITY, larger);
        let mut sums = [0f32; BLOCK_TOKENS];
        for (weights, &seen) in weights.chunks_exact_mut(BLOCK_TOKENS).zip(seen) {
            if seen != 0 {
                for weight in weights.iter_mut() {
                    *weight = if narrow { narrow_exp(*weight - max) } else { exp(*weight - max) };
                }
                hide(weights, seen, 0.0);
                for t in 0..BLOCK_TOKENS {
                    sums[t] += weights[t];
                }
            }
        }
        total.copy_from_slice(&[max, sum32(sums)]);
    }
}

/// Merges a part of `queries` queries into what came before it; both are `[queries][dim]` values, then
/// `[queries][2]` with the maximum and the sum of weights.
pub(super) fn merge(level: KernelLevel, queries: usize, part: &[f32], merged: &mut [f32], dim: usize) {
    let (values, totals) = part.split_at(queries * dim);
    let (merged, running) = merged.split_at_mut(queries * dim);
    for query in 0..queries {
        let [max, sum] = [totals[2 * query], totals[2 * query + 1]];
        if sum == UNSEEN {
            continue;
        }
        let range = query * dim..(query + 1) * dim;
        let (values, merged) = (&values[range.clone()], &mut merged[range]);
        let [old_max, old_sum] = [running[2 * query], running[2 * query + 1]];
        let mut total = [max, sum];
        if old_sum == UNSEEN {
            merged.copy_from_slice(values);
        } else {
            let new_max = if max > old_max || max.is_nan() { max } else { old_max };
            let (a, b) = (exp(old_max - new_max), exp(max - new_max));
            blend(level, values, b, a, merged);
            total = [new_max, sum.mul_add(b, old_sum * a)];
        }
        running[2 * query..2 * query + 2].copy_from_slice(&total);
    }
}

leveled! {
    /// `merged = values * b + merged * a`.
    fn blend(values: &[f32], b: f32, a: f32, merged: &mut [f32]) {
        for (m, v) in merged.iter_mut().zip(values) {
            *m = v.mul_add(b, *m * a);
        }
    }
}

leveled! {
    /// Divides by a sum of weights.
    pub(super) fn divide(values: &mut [f32], sum: f32) {
        for v in values {
            *v /= sum;
        }
    }
}

leveled! {
    /// Adds the shares of one block's weights: `mass[t] += weights[t] * e^lower / sum` for the lanes seen, which are
    /// inside of `mass`.
    pub(super) fn share(weights: &[f32], seen: u32, lower: f32, sum: f32, mass: &mut [f32]) {
        let factor = exp(lower) / sum;
        for (t, (mass, weight)) in mass.iter_mut().zip(&weights[..BLOCK_TOKENS]).enumerate() {
            *mass = if seen >> t & 1 == 1 { weight.mul_add(factor, *mass) } else { *mass };
        }
    }
}
