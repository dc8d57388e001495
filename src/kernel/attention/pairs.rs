//! The two products of attention straight from a block's pairs of bf16, for any number of queries.
//!
//! Both are the same walk: factors of a few queries times rows of pairs, one chain of sums per column. Knows no masks.

use super::super::isa::KernelLevel;
use super::super::kv::BLOCK_TOKENS;
use super::super::lanes::pairs::{has_pairs, with_pairs, PairKernel, PairLanes};
use super::super::lanes::{each_column, Lanes};
use super::super::memory::prefetch;
use super::super::vector::leveled;
use super::products::LANES;
use super::SCORES;

/// Rounds factors to bf16, and lays them out as the products of a level want them: query i's from `i * stride` on,
/// followed by zeros where their number is odd.
pub(super) fn prepare(level: KernelLevel, factors: &mut [f32]) {
    round(level, factors);
    if has_pairs(level) {
        pack(level, factors);
    }
}

leveled! {
    fn round(values: &mut [f32]) {
        for value in values {
            *value = crate::kernel::lanes::pairs::round_bf16(*value);
        }
    }
}

leveled! {
    /// Two rounded values become one pair; the pairs take the first half.
    pub(super) fn pack(values: &mut [f32]) {
        let pair = |first: f32, second: f32| f32::from_bits(first.to_bits() | second.to_bits() >> 16);
        let whole = values.len() / 32;
        for block in 0..whole {
            // Apart from what is read, so that it is made by vectors.
            let mut pairs = [0f32; 16];
            for (pair_of, two) in pairs.iter_mut().zip(values[block * 32..][..32].as_chunks::<2>().0) {
                *pair_of = pair(two[0], two[1]);
            }
            values[block * 16..][..16].copy_from_slice(&pairs);
        }
        for i in whole * 16..values.len() / 2 {
            values[i] = pair(values[2 * i], values[2 * i + 1]);
        }
    }
}

/// What [`Chains`] starts from and ends with.
#[derive(Clone, Copy)]
enum Sums {
    /// From zero; the factor is multiplied in at the end.
    Scaled(f32),
    /// From what the output holds.
    Continued,
}

/// For `Q` queries: `out[i][c]` from `sum over p of factors[i][p] * data[p][c]`, p ascending, of a pair the upper half
/// first.
struct Chains<const Q: usize> {
    /// Rows of pairs, `stride` pairs apart.
    data: *const u32,
    stride: usize,
    rows: usize,
    /// Pairs per row; `out` takes as many.
    columns: usize,
    factors: [*const f32; Q],
    out: [*mut f32; Q],
    sums: Sums,
    /// As many bytes as the data has, in order, are brought closer meanwhile.
    next: *const u8,
}

impl<const Q: usize> Chains<Q> {
    /// Columns from `first` on one by one.
    ///
    /// # Safety
    /// The fields have the lengths that they name; `packed` tells how factors lie.
    #[inline(always)]
    unsafe fn single(&self, first: usize, packed: bool) {
        for (factors, out) in self.factors.into_iter().zip(self.out) {
            for column in first..self.columns {
                // SAFETY: inside the rows, factors and outputs.
                unsafe {
                    let out = out.add(column);
                    let mut sum = if let Sums::Continued = self.sums { *out } else { 0.0 };
                    for p in 0..self.rows {
                        let data = *self.data.add(p * self.stride + column);
                        let [high, low] = if packed {
                            let pair = (*factors.add(p)).to_bits();
                            [f32::from_bits(pair & 0xffff_0000), f32::from_bits(pair << 16)]
                        } else {
                            [*factors.add(2 * p), *factors.add(2 * p + 1)]
                        };
                        sum = high.mul_add(f32::from_bits(data & 0xffff_0000), sum);
                        sum = low.mul_add(f32::from_bits(data << 16), sum);
                    }
                    *out = if let Sums::Scaled(scale) = self.sums { sum * scale } else { sum };
                }
            }
        }
    }

    /// `N` vectors of every query's sums from column `first` on.
    ///
    /// # Safety
    /// As [`PairKernel::run`]; `first + 16 * N` is at most `columns`.
    #[inline(always)]
    unsafe fn vectors<P: PairLanes, const N: usize>(&self, first: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[P::V::splat_f(0.0); N]; Q];
            if let Sums::Continued = self.sums {
                each_column!(Q, I => {
                    for (n, sum) in sums[I].iter_mut().enumerate() {
                        *sum = P::V::load_f(self.out[I].add(first + n * LANES));
                    }
                });
            }
            let mut data = self.data.add(first);
            let mut next = self.next.wrapping_add(first * self.rows * size_of::<u32>());
            for p in 0..self.rows {
                // No closure, which would lose the instruction set where it is not inlined.
                let mut pairs = [P::load(data.cast()); N];
                for (n, pairs) in pairs.iter_mut().enumerate().skip(1) {
                    *pairs = P::load(data.wrapping_add(n * LANES).cast());
                }
                for line in 0..N {
                    prefetch::<true>(next.wrapping_add(line * 64));
                }
                next = next.wrapping_add(N * 64);
                each_column!(Q, I => {
                    let factor = P::splat(self.factors[I], p);
                    for (sum, pairs) in sums[I].iter_mut().zip(pairs) {
                        *sum = P::dot(factor, pairs, *sum);
                    }
                });
                data = data.wrapping_add(self.stride);
            }
            each_column!(Q, I => {
                for (n, sum) in sums[I].into_iter().enumerate() {
                    let sum = if let Sums::Scaled(scale) = self.sums { P::V::mul(sum, P::V::splat_f(scale)) } else { sum };
                    P::V::store_f(self.out[I].add(first + n * LANES), sum);
                }
            });
        }
    }
}

impl<P: PairLanes, const Q: usize> PairKernel<P> for Chains<Q> {
    /// # Safety
    /// The fields have the lengths that they name; the machine has P.
    #[inline(always)]
    unsafe fn run(self) {
        let mut first = 0;
        // SAFETY: the columns of each call are inside; the rest is the caller's promise.
        unsafe {
            while P::VECTORS == 2 && first + 2 * LANES <= self.columns {
                self.vectors::<P, 2>(first);
                first += 2 * LANES;
            }
            while first + LANES <= self.columns {
                self.vectors::<P, 1>(first);
                first += LANES;
            }
            self.single(first, P::PACKED);
        }
    }
}

/// Walks `rows` rows of pairs, `columns` wide and as far apart, for `count` queries. Query i's factors, prepared by
/// [`prepare`] or [`pack`], begin at `i * factors.1`, its outputs at `i * out.1`. Meanwhile as much data from `next` on is
/// brought closer: what follows lies anywhere in memory, where the hardware does not look.
fn walk(
    level: KernelLevel,
    count: usize,
    (data, next): (&[u32], Option<*const u8>),
    columns: usize,
    (factors, factors_apart): (&[f32], usize),
    (out, out_apart): (&mut [f32], usize),
    sums: Sums,
) {
    let rows = data.len() / columns;
    let width = if has_pairs(level) { rows } else { 2 * rows };
    assert!(
        count > 0
            && data.len() == rows * columns
            && factors.len() >= (count - 1) * factors_apart + width
            && out.len() >= (count - 1) * out_apart + columns,
        "lengths of attention's products"
    );
    let out = out.as_mut_ptr();
    let mut first = 0;
    // Queries that share a reading of the data: as many as registers hold.
    let most = if has_pairs(level) { 8 } else { 4 };
    macro_rules! chains {
        ($($queries:literal)*) => {
            match (count - first).min(most) {
                $( $queries => {
                    // SAFETY: query `first + i` exists, so its factors and outputs lie inside the slices (checked).
                    let chains = unsafe {
                        Chains::<$queries> {
                            data: data.as_ptr(),
                            stride: columns,
                            rows,
                            columns,
                            factors: std::array::from_fn(|i| factors.as_ptr().add((first + i) * factors_apart)),
                            out: std::array::from_fn(|i| out.add((first + i) * out_apart)),
                            sums,
                            next: next.filter(|_| first == 0).unwrap_or(data.as_ptr().cast()),
                        }
                    };
                    // SAFETY: the lengths are checked; the machine has P.
                    with_pairs!(level, P => unsafe { P::enter(chains) }, else unsafe { chains.single(0, false) });
                    first += $queries;
                } )*
                _ => break,
            }
        };
    }
    while first < count {
        chains!(1 2 3 4 5 6 7 8);
    }
}

/// `scores[i][t] = scale * sum over d of queries[i][d] * keys[d][t]` for the 32 tokens of a block, d ascending.
///
/// Queries are prepared and `stride` apart, scores [`SCORES`] apart; `keys` is a K panel and where the next panel lies.
pub(super) fn score(
    level: KernelLevel,
    count: usize,
    (queries, stride): (&[f32], usize),
    keys: (&[u32], Option<*const u8>),
    scale: f32,
    scores: &mut [f32],
) {
    walk(level, count, keys, BLOCK_TOKENS, (queries, stride), (scores, SCORES), Sums::Scaled(scale));
}

/// `out[i][d] += sum over t of weights[i][t] * values[t][d]`, t ascending, for `count` queries.
///
/// Weights are rounded and packed where the level wants that, [`SCORES`] apart; outputs are `dim` apart; `values` are
/// rows of pairs of a V panel, and where the rows lie that are wanted next.
pub(super) fn weigh(
    level: KernelLevel,
    count: usize,
    weights: &[f32],
    values: (&[u32], Option<*const u8>),
    dim: usize,
    out: &mut [f32],
) {
    walk(level, count, values, dim, (weights, SCORES), (out, dim), Sums::Continued);
}

#[cfg(test)]
mod tests {
    use super::super::super::lanes::pairs::{round_bf16, Packed, Widened};
    use super::super::super::lanes::Portable;
    use super::*;
    use crate::testing::normal;

    /// Queries over 5 rows of 39 pairs: vectors by two and by one, then single columns.
    fn run<const Q: usize>(sums: Sums, packed: bool, how: impl Fn(Chains<Q>)) -> Vec<u32> {
        let data: Vec<u32> = normal(1, "data", 2 * 5 * 39)
            .chunks(2)
            .map(|pair| round_bf16(pair[0]).to_bits() | round_bf16(pair[1]).to_bits() >> 16)
            .collect();
        let mut factors = normal(2, "factors", Q * 10);
        round(KernelLevel::Scalar, &mut factors);
        let mut out = normal(3, "out", Q * 39);
        if packed {
            factors.chunks_mut(10).for_each(|factors| pack(KernelLevel::Scalar, factors));
        }
        let base = out.as_mut_ptr();
        how(Chains {
            data: data.as_ptr(),
            stride: 39,
            rows: 5,
            columns: 39,
            factors: std::array::from_fn(|i| factors[10 * i..].as_ptr()),
            out: std::array::from_fn(|i| base.wrapping_add(39 * i)),
            sums,
            next: data.as_ptr().cast(),
        });
        out.into_iter().map(f32::to_bits).collect()
    }

    fn same_sums<const Q: usize>() {
        for sums in [Sums::Scaled(0.3), Sums::Continued] {
            let single = |packed: bool| {
                // SAFETY: the lengths are those above.
                run::<Q>(sums, packed, |chains| unsafe { chains.single(0, packed) })
            };
            let expected = single(false);
            assert_eq!(single(true), expected, "{Q} queries");
            // SAFETY: as above; portable lanes run everywhere.
            assert_eq!(run::<Q>(sums, false, |chains| unsafe { Widened::<Portable>::enter(chains) }), expected);
            // SAFETY: as above.
            assert_eq!(run::<Q>(sums, true, |chains| unsafe { Packed::<Portable>::enter(chains) }), expected);
        }
    }

    #[test]
    fn factors_as_pairs_give_the_same_sums() {
        same_sums::<3>();
        same_sums::<8>();
    }
}
