//! From scores to weights within a part, and from parts to a whole. Knows no keys and values.

use super::super::isa::KernelLevel;
use super::super::kv::BLOCK_TOKENS;
use super::super::lanes::{with_lanes, Kernel, Lanes};
use super::super::vector::{exp, leveled, sum32, EXP_LEAST, EXP_ROUND, EXP_SERIES, LN_2};
use super::products::LANES;
use super::PART_BLOCKS;

/// The sum of weights where a query has seen nothing, in a part or so far; real sums are not negative.
pub(super) const UNSEEN: f32 = -1.0;

/// The least exponent of a weight that products of bf16 can take (`lanes::pairs`).
const LEAST_NARROW: f32 = -34.0;

/// Turns the scores of the lanes seen into `e^(score - max)`, the other lanes of their blocks into 0; gives the maximum
/// and the sum. Blocks without a lane are left as they are. With `narrow` the weights are rounded to bf16 and at least
/// e^-34, and the sum is theirs.
pub(super) fn soften(level: KernelLevel, weights: &mut [f32], seen: &[u32; PART_BLOCKS], narrow: bool) -> [f32; 2] {
    let mut max = f32::NEG_INFINITY;
    largest(level, weights, seen, &mut max);
    let exponentials = Exponentials { weights, seen, max, narrow };
    let sums = with_lanes!(level, V => {
        let mut sums = [0.0; BLOCK_TOKENS];
        // SAFETY: the machine has V.
        unsafe { V::enter(Summed(exponentials, &mut sums)) };
        sums
    }, else exponentials.scalar());
    [max, sum32(sums)]
}

/// Replaces the lanes that are not seen.
#[inline(always)]
fn hide(weights: &mut [f32], seen: u32, value: f32) {
    if seen != u32::MAX {
        for (t, weight) in weights.iter_mut().enumerate() {
            *weight = if seen >> t & 1 == 1 { *weight } else { value };
        }
    }
}

leveled! {
    /// The largest of the scores seen; the others of their blocks become -inf.
    fn largest(scores: &mut [f32], seen: &[u32; PART_BLOCKS], max: &mut f32) {
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        let mut maxima = [f32::NEG_INFINITY; BLOCK_TOKENS];
        // NaN must survive, so that a broken model is noticed. Apart, since a maximum that keeps it takes four instructions, each
        // of which waits for the one before.
        let mut unordered = [0u32; BLOCK_TOKENS];
        for (scores, &seen) in scores.chunks_exact_mut(BLOCK_TOKENS).zip(seen) {
            if seen != 0 {
                hide(scores, seen, f32::NEG_INFINITY);
                for t in 0..BLOCK_TOKENS {
                    maxima[t] = larger(maxima[t], scores[t]);
                    unordered[t] |= u32::from(scores[t].is_nan());
                }
            }
        }
        // Halves are compared until one is left.
        for width in [16, 8, 4, 2, 1] {
            for t in 0..width {
                maxima[t] = larger(maxima[t], maxima[t + width]);
            }
        }
        let broken = unordered.into_iter().fold(0, |all, lane| all | lane) != 0;
        *max = if broken { f32::NAN } else { maxima[0] };
    }
}

/// Scores of blocks that become weights.
struct Exponentials<'a> {
    weights: &'a mut [f32],
    seen: &'a [u32; PART_BLOCKS],
    max: f32,
    narrow: bool,
}

impl Exponentials<'_> {
    fn scalar(self) -> [f32; BLOCK_TOKENS] {
        let mut sums = [0f32; BLOCK_TOKENS];
        for (weights, &seen) in self.weights.chunks_exact_mut(BLOCK_TOKENS).zip(self.seen) {
            if seen != 0 {
                for weight in weights.iter_mut() {
                    let x = *weight - self.max;
                    *weight = if self.narrow { narrow_exp(x) } else { exp(x) };
                }
                hide(weights, seen, 0.0);
                sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += *weight);
            }
        }
        sums
    }
}

/// e^x rounded to bf16, for x up to 0; at least e^-34. NaN stays NaN.
fn narrow_exp(x: f32) -> f32 {
    let bits = exp(if x < LEAST_NARROW { LEAST_NARROW } else { x }).to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// What [`Exponentials::scalar`] computes, by lanes. Step by step for all lanes of a block: a step waits for the one before it.
struct Summed<'a, 'b>(Exponentials<'a>, &'b mut [f32; BLOCK_TOKENS]);

impl<V: Lanes> Kernel<V> for Summed<'_, '_> {
    /// # Safety
    /// The machine has V.
    #[inline(always)]
    unsafe fn run(self) {
        let Summed(Exponentials { weights, seen, max, narrow }, sums) = self;
        /// An expression for both halves of a block.
        macro_rules! halves {
            (|$half:ident| $value:expr) => {
                [
                    {
                        let $half = 0;
                        $value
                    },
                    {
                        let $half = 1;
                        $value
                    },
                ]
            };
        }
        // SAFETY: blocks have 32 values, two vectors; the rest is the caller's promise.
        unsafe {
            let (max, least) = (V::splat_f(-max), V::splat_f(if narrow { LEAST_NARROW } else { EXP_LEAST }));
            let mut all = [V::splat_f(0.0); 2];
            for (weights, &seen) in weights.chunks_exact_mut(BLOCK_TOKENS).zip(seen) {
                if seen == 0 {
                    continue;
                }
                let to = weights.as_mut_ptr();
                let x = halves!(|h| V::at_least(V::add(V::load_f(to.add(h * LANES)), max), least));
                // From here to `e` the steps of `vector::exp`; x is at most 0, or NaN where the maximum is.
                let shifted = halves!(|h| V::fma(x[h], V::splat_f(std::f32::consts::LOG2_E), V::splat_f(EXP_ROUND)));
                let n = halves!(|h| V::add(shifted[h], V::splat_f(-EXP_ROUND)));
                let r = halves!(|h| V::fma(n[h], V::splat_f(-LN_2[0]), x[h]));
                let r = halves!(|h| V::fma(n[h], V::splat_f(-LN_2[1]), r[h]));
                let mut p = [V::splat_f(EXP_SERIES[0]); 2];
                for term in &EXP_SERIES[1..] {
                    p = halves!(|h| V::fma(p[h], r[h], V::splat_f(*term)));
                }
                // Integers are subtracted only, so what is added is negated.
                let minus_one = V::splat_i(1f32.to_bits().cast_signed().wrapping_neg());
                let power = halves!(|h| V::from_bits(V::sub(V::shl(V::to_bits(shifted[h]), 23), minus_one)));
                let mut e = halves!(|h| V::mul(p[h], power[h]));
                if narrow {
                    let bits = halves!(|h| V::to_bits(e[h]));
                    let odd = halves!(|h| V::and(V::shr(bits[h], 16), V::splat_i(1)));
                    let up = halves!(|h| V::sub(bits[h], V::sub(V::splat_i(-0x7fff), odd[h])));
                    e = halves!(|h| V::from_bits(V::and(up[h], V::splat_i(0xffff_0000u32.cast_signed()))));
                }
                halves!(|h| V::store_f(to.add(h * LANES), e[h]));
                if seen != u32::MAX {
                    hide(weights, seen, 0.0);
                    e = halves!(|h| V::load_f(weights.as_ptr().add(h * LANES)));
                }
                all = halves!(|h| V::add(all[h], e[h]));
            }
            halves!(|h| V::store_f(sums.as_mut_ptr().add(h * LANES), all[h]));
        }
    }
}

/// Queries whose factors are computed side by side.
const TOGETHER: usize = 16;

leveled! {
    /// Merges a part of `queries` queries into what came before it; both are `[queries][dim]` values, then
    /// `[queries][2]` with the maximum and the sum of weights.
    pub(super) fn merge(queries: usize, part: &[f32], merged: &mut [f32], dim: usize) {
        let (values, totals) = part.split_at(queries * dim);
        let (merged, running) = merged.split_at_mut(queries * dim);
        for first in (0..queries).step_by(TOGETHER) {
            let some = first..queries.min(first + TOGETHER);
            // Queries that do not exist have a maximum of zero.
            let (mut old, mut new, mut largest) = ([0f32; TOGETHER], [0f32; TOGETHER], [0f32; TOGETHER]);
            for (i, query) in some.clone().enumerate() {
                (old[i], new[i]) = (running[2 * query], totals[2 * query]);
            }
            for i in 0..TOGETHER {
                largest[i] = if new[i] > old[i] || new[i].is_nan() { new[i] } else { old[i] };
            }
            for i in 0..TOGETHER {
                (old[i], new[i]) = (exp(old[i] - largest[i]), exp(new[i] - largest[i]));
            }
            for (i, query) in some.enumerate() {
                let (sum, old_sum) = (totals[2 * query + 1], running[2 * query + 1]);
                if sum == UNSEEN {
                    continue;
                }
                let range = query * dim..(query + 1) * dim;
                let (values, merged) = (&values[range.clone()], &mut merged[range]);
                let mut total = [totals[2 * query], sum];
                if old_sum == UNSEEN {
                    merged.copy_from_slice(values);
                } else {
                    let (a, b) = (old[i], new[i]);
                    for (m, v) in merged.iter_mut().zip(values) {
                        *m = v.mul_add(b, *m * a);
                    }
                    total = [largest[i], sum.mul_add(b, old_sum * a)];
                }
                running[2 * query..2 * query + 2].copy_from_slice(&total);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights and totals at a level; every NaN is the same one.
    fn softened(level: KernelLevel, scores: &[f32], seen: &[u32; PART_BLOCKS], narrow: bool) -> Vec<u32> {
        let mut weights = scores.to_vec();
        let totals = soften(level, &mut weights, seen, narrow);
        weights.extend(totals);
        weights.into_iter().map(|x| if x.is_nan() { f32::NAN } else { x }.to_bits()).collect()
    }

    #[test]
    fn weights_are_those_of_the_scalar_level() {
        let seen = [u32::MAX, 0, 1, 0x8000_0000, 0xffff_0001, u32::MAX, 0, 0x7fff_fffe];
        let plain: Vec<f32> = (0..PART_BLOCKS * BLOCK_TOKENS).map(|i| (i * 37 % 211) as f32 * 0.7 - 140.0).collect();
        let with = |places: &[(usize, f32)]| {
            let mut scores = plain.clone();
            places.iter().for_each(|&(i, score)| scores[i] = score);
            scores
        };
        let (lowest, largest) = (f32::NEG_INFINITY, f32::INFINITY);
        // Infinite and missing numbers where they are seen and where they are not.
        let cases = [
            plain.clone(),
            with(&[(3, lowest), (40, f32::NAN), (65, largest)]),
            with(&[(3, f32::NAN)]),
            with(&[(3, largest), (4, largest)]),
            vec![lowest; plain.len()],
        ];
        for (case, scores) in cases.iter().enumerate() {
            for narrow in [false, true] {
                let expected = softened(KernelLevel::Scalar, scores, &seen, narrow);
                for level in KernelLevel::available() {
                    assert_eq!(
                        softened(level, scores, &seen, narrow),
                        expected,
                        "case {case}, {level}, narrow {narrow}"
                    );
                }
            }
        }
        // Against plain arithmetic: what is not seen weighs nothing, the rest e^(score - max).
        let mut weights = plain.clone();
        let [max, sum] = soften(KernelLevel::Scalar, &mut weights, &seen, false);
        let mut expected = 0.0;
        for (i, (weight, score)) in weights.iter().zip(&plain).enumerate() {
            match seen[i / BLOCK_TOKENS] {
                0 => assert_eq!(weight, score),
                lanes if lanes >> (i % BLOCK_TOKENS) & 1 == 0 => assert_eq!(*weight, 0.0),
                _ => {
                    let exact = f64::from(score - max).max(-87.0).exp();
                    assert!((f64::from(*weight) - exact).abs() <= 3e-7 * exact, "{i}: {weight}, not {exact}");
                    expected += exact;
                }
            }
        }
        assert!((f64::from(sum) - expected).abs() <= 1e-5 * expected);
    }
}
