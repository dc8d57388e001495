//! The two products of attention on f32 panels of a block: scores of keys, and weighted sums of values.
//!
//! Several queries share one reading of a panel. Per output one chain: over d for a score, over tokens for a value.
//! Knows no masks.

use super::super::isa::KernelLevel;
use super::super::kv::BLOCK_TOKENS;
use super::super::lanes::{each_column, with_lanes, Kernel, Lanes};
use super::{PART, SCORES};

/// Values in a vector.
pub(super) const LANES: usize = 16;

/// Runs a kernel, whose fields have the lengths that they name, for as many queries as `$count` says.
macro_rules! with_queries {
    ($level:expr, $count:expr, $queries:ident => $kernel:expr) => {
        with_queries!(@ $level, $count, $queries, $kernel, 1 2 3 4)
    };
    (@ $level:expr, $count:expr, $queries:ident, $kernel:expr, $($number:literal)*) => {
        match $count {
            $( $number => {
                const $queries: usize = $number;
                let kernel = $kernel;
                with_lanes!($level, V => {
                    // SAFETY: the kernel's promise is kept where it is made, by slices of those lengths; the machine
                    // has V.
                    unsafe { V::enter(kernel) }
                }, else kernel.scalar())
            } )*
            _ => unreachable!("`group` gives 1 to 4 queries"),
        }
    };
}

/// `scores[i][t] = scale * sum over d of queries[i][d] * keys[d][t]` for the 32 tokens of a block, d ascending.
///
/// Queries are `stride` apart, scores [`SCORES`].
pub(super) fn score(
    level: KernelLevel,
    count: usize,
    (queries, stride): (&[f32], usize),
    keys: &[f32],
    scale: f32,
    scores: &mut [f32],
) {
    let dim = keys.len() / BLOCK_TOKENS;
    assert!(count > 0 && scores.len() >= (count - 1) * SCORES + BLOCK_TOKENS, "room for the scores of a block");
    let scores = scores.as_mut_ptr();
    let mut first = 0;
    while first < count {
        let group = group(level, count - first);
        with_queries!(level, group, Q => Scores::<Q> {
            queries: std::array::from_fn(|i| &queries[(first + i) * stride..][..dim]),
            keys,
            scale,
            // SAFETY: inside the slice (checked).
            scores: std::array::from_fn(|i| unsafe { scores.add((first + i) * SCORES) }),
        });
        first += group;
    }
}

/// `out[i][d] += sum over t of weights[i][t] * values[t][d]`, t ascending, for `count` queries.
///
/// Weights of consecutive queries are `SCORES` apart, outputs `dim`; `values` is `[tokens][dim]`.
pub(super) fn weigh(
    level: KernelLevel,
    count: usize,
    weights: &[f32],
    values: &[f32],
    tokens: usize,
    dim: usize,
    out: &mut [f32],
) {
    assert!(values.len() == tokens * dim && tokens <= PART, "values of {tokens} tokens");
    let mut first = 0;
    while first < count {
        let group = group(level, count - first);
        let weights = &weights[first * SCORES..][..(group - 1) * SCORES + tokens];
        let out = &mut out[first * dim..(first + group) * dim];
        with_queries!(level, group, Q => Values::<Q> { weights, values, dim, out });
        first += group;
    }
}

/// Queries that the next kernel call takes of `count`: as many as registers hold, the rest in halves.
fn group(level: KernelLevel, count: usize) -> usize {
    let most = if level == KernelLevel::Avx2 { 2 } else { 4 };
    if count == most + 1 {
        count / 2
    } else {
        count.min(most)
    }
}

struct Scores<'a, const Q: usize> {
    queries: [&'a [f32]; Q],
    /// `[dim][32]`.
    keys: &'a [f32],
    scale: f32,
    /// 32 values each.
    scores: [*mut f32; Q],
}

impl<const Q: usize> Scores<'_, Q> {
    fn scalar(self) {
        for (q, scores) in self.queries.iter().zip(self.scores) {
            let mut sums = [0f32; BLOCK_TOKENS];
            for (q, keys) in q.iter().zip(self.keys.chunks_exact(BLOCK_TOKENS)) {
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = q.mul_add(*key, *sum);
                }
            }
            for (t, sum) in sums.into_iter().enumerate() {
                // SAFETY: t is below the 32 values that `scores` has.
                unsafe { *scores.add(t) = sum * self.scale };
            }
        }
    }
}

impl<V: Lanes, const Q: usize> Kernel<V> for Scores<'_, Q> {
    /// # Safety
    /// The fields have the lengths that they name; the machine has V.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::splat_f(0.0); 2]; Q];
            let dim = self.keys.len() / BLOCK_TOKENS;
            let queries = self.queries.map(<[f32]>::as_ptr);
            let mut keys = self.keys.as_ptr();
            for d in 0..dim {
                let (low, high) = (V::load_f(keys), V::load_f(keys.add(LANES)));
                keys = keys.add(BLOCK_TOKENS);
                each_column!(Q, I => {
                    let q = V::splat_f(*queries[I].add(d));
                    sums[I] = [V::fma(q, low, sums[I][0]), V::fma(q, high, sums[I][1])];
                });
            }
            let scale = V::splat_f(self.scale);
            each_column!(Q, I => {
                V::store_f(self.scores[I], V::mul(sums[I][0], scale));
                V::store_f(self.scores[I].add(LANES), V::mul(sums[I][1], scale));
            });
        }
    }
}

struct Values<'a, const Q: usize> {
    /// Query i's weights from `i * SCORES`, one per token.
    weights: &'a [f32],
    /// `[tokens][dim]`.
    values: &'a [f32],
    dim: usize,
    /// `[Q][dim]`.
    out: &'a mut [f32],
}

impl<const Q: usize> Values<'_, Q> {
    fn scalar(self) {
        for (i, out) in self.out.chunks_exact_mut(self.dim).enumerate() {
            for (w, values) in self.weights[i * SCORES..].iter().zip(self.values.chunks_exact(self.dim)) {
                for (out, value) in out.iter_mut().zip(values) {
                    *out = w.mul_add(*value, *out);
                }
            }
        }
    }

    /// `N` vectors of every query's output from column `d`.
    ///
    /// # Safety
    /// As [`Kernel::run`]; `d + 16 * N` is at most `dim`.
    #[inline(always)]
    unsafe fn columns<V: Lanes, const N: usize>(&mut self, d: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let (dim, tokens) = (self.dim, self.values.len() / self.dim);
            let out = self.out.as_mut_ptr().add(d);
            let mut sums = [[V::splat_f(0.0); N]; Q];
            each_column!(Q, I => {
                for (n, sum) in sums[I].iter_mut().enumerate() {
                    *sum = V::load_f(out.add(I * dim + n * LANES));
                }
            });
            let (mut values, mut weights) = (self.values.as_ptr().add(d), self.weights.as_ptr());
            for _ in 0..tokens {
                let mut row = [V::splat_f(0.0); N];
                for (n, row) in row.iter_mut().enumerate() {
                    *row = V::load_f(values.add(n * LANES));
                }
                each_column!(Q, I => {
                    let w = V::splat_f(*weights.add(I * SCORES));
                    for (sum, row) in sums[I].iter_mut().zip(row) {
                        *sum = V::fma(w, row, *sum);
                    }
                });
                values = values.wrapping_add(dim);
                weights = weights.wrapping_add(1);
            }
            each_column!(Q, I => {
                for (n, sum) in sums[I].into_iter().enumerate() {
                    V::store_f(out.add(I * dim + n * LANES), sum);
                }
            });
        }
    }
}

impl<V: Lanes, const Q: usize> Kernel<V> for Values<'_, Q> {
    /// # Safety
    /// The fields have the lengths that they name; the machine has V.
    #[inline(always)]
    unsafe fn run(mut self) {
        let mut d = 0;
        // SAFETY: d and the vectors stay below dim; the rest is the caller's promise.
        unsafe {
            while d + 2 * LANES <= self.dim {
                self.columns::<V, 2>(d);
                d += 2 * LANES;
            }
            if d + LANES <= self.dim {
                self.columns::<V, 1>(d);
                d += LANES;
            }
        }
        for i in 0..if d < self.dim { Q } else { 0 } {
            for (w, values) in self.weights[i * SCORES..].iter().zip(self.values.chunks_exact(self.dim)) {
                let out = &mut self.out[i * self.dim + d..(i + 1) * self.dim];
                for (out, value) in out.iter_mut().zip(&values[d..]) {
                    *out = w.mul_add(*value, *out);
                }
            }
        }
    }
}
