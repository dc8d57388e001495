//! Products with f32 activations: panels dequantized chunk by chunk, then multiplied.
//!
//! Per output one chain over k ascending: acc ← fma(weight, activation, acc), across chunks. With BF16 weights, whose
//! activations are rounded to bf16, products of pairs give the same straight from the panel. Knows no threads.

use std::marker::PhantomData;

use super::format::PANEL;
use super::int8::put;
use super::lanes::pairs::{PairKernel, PairLanes};
use super::lanes::{each_column, Kernel, Lanes};
use super::unpack::Format;

/// Columns of weights per chunk: 16 KiB of f32 per panel, half of a first-level cache. A multiple of every block.
pub(crate) const CHUNK: usize = 256;

/// `count` columns of a quantized panel, from column `first`, to f32 `[column][16]`.
pub(crate) struct Dequantize<F: Format> {
    pub(crate) panel: *const u8,
    /// In blocks of 32.
    pub(crate) first: usize,
    pub(crate) blocks: usize,
    pub(crate) to: *mut f32,
    pub(crate) format: PhantomData<F>,
}

impl<V: Lanes, F: Format> Kernel<V> for Dequantize<F> {
    /// # Safety
    /// `panel` holds the groups of blocks below `first + blocks`, the last up to its last block; `to` takes 512 values per block.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            for b in 0..self.blocks {
                let at = self.first + b;
                let block = F::load::<V>(self.panel.add(at / F::BLOCKS * F::BYTES), at % F::BLOCKS);
                for (u, unit) in block.units.into_iter().enumerate() {
                    let sub = if F::SUBS == 2 { u / 4 } else { 0 };
                    for k in 0..4 {
                        let code = V::and(V::shr(unit, 8 * k), V::splat_i(255));
                        let code = V::to_f(V::sub(code, V::splat_i(F::OFFSET)));
                        let mut value = V::mul(block.scale[sub], code);
                        if F::HAS_MIN {
                            value = V::add(value, block.min[sub]);
                        }
                        V::store_f(self.to.add(((b * 8 + u) * 4 + k as usize) * PANEL), value);
                    }
                }
            }
        }
    }
}

/// `count` columns of a half-precision panel to f32. `BRAIN`: bfloat16, else binary16.
pub(crate) struct Widen<const BRAIN: bool> {
    pub(crate) from: *const u8,
    pub(crate) count: usize,
    pub(crate) to: *mut f32,
}

impl<V: Lanes, const BRAIN: bool> Kernel<V> for Widen<BRAIN> {
    /// # Safety
    /// `from` holds 16 numbers per column, `to` takes as many.
    #[inline(always)]
    unsafe fn run(self) {
        for k in 0..self.count {
            // SAFETY: the caller's promise.
            unsafe {
                let from = self.from.add(k * 2 * PANEL);
                let value = if BRAIN { V::load_bf16(from) } else { V::load_f16(from) };
                V::store_f(self.to.add(k * PANEL), value);
            }
        }
    }
}

/// One dequantized panel times `C` columns: continues the sums at `sums`, `[C][16]`.
pub(crate) struct FloatTile<const C: usize> {
    pub(crate) weights: *const f32,
    /// `[count][C]`.
    pub(crate) values: *const f32,
    pub(crate) count: usize,
    pub(crate) sums: *mut f32,
}

/// How many of `all` columns from `first` on are taken at once.
const fn columns(most: usize, all: usize, first: usize) -> usize {
    let rest = all.saturating_sub(first);
    if rest < most {
        rest
    } else {
        most
    }
}

/// Columns `FIRST..` of a tile, as many as registers hold.
///
/// # Safety
/// As [`FloatTile`].
#[inline(always)]
unsafe fn part<V: Lanes, const C: usize, const FIRST: usize>(tile: &FloatTile<C>) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [V::splat_f(0.0); 8];
        each_column!(columns(V::FLOAT_COLUMNS, C, FIRST), COLUMN => { sums[COLUMN] = V::load_f(tile.sums.add((FIRST + COLUMN) * PANEL)); });
        for k in 0..tile.count {
            let weight = V::load_f(tile.weights.add(k * PANEL));
            let values = tile.values.add(k * C + FIRST);
            each_column!(columns(V::FLOAT_COLUMNS, C, FIRST), COLUMN => {
                sums[COLUMN] = V::fma(weight, V::splat_f(*values.add(COLUMN)), sums[COLUMN]);
            });
        }
        each_column!(columns(V::FLOAT_COLUMNS, C, FIRST), COLUMN => { V::store_f(tile.sums.add((FIRST + COLUMN) * PANEL), sums[COLUMN]); });
    }
}

impl<V: Lanes, const C: usize> Kernel<V> for FloatTile<C> {
    /// # Safety
    /// `weights` holds 16 values per k, `values` `C` per k, `sums` 16 per column.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: passed on.
        unsafe {
            part::<V, C, 0>(&self);
            if const { C > V::FLOAT_COLUMNS } {
                part::<V, C, 4>(&self);
            }
        }
    }
}

/// `N` BF16 panels without tiny weights times `C` columns of pairs.
pub(crate) struct PairTile<const N: usize, const C: usize> {
    pub(crate) panels: [*const u8; N],
    pub(crate) cols: usize,
    /// `[cols / 2][C]`, the columns rounded up.
    pub(crate) pairs: *const u32,
    /// Column c's `16 * N` results go to `out + c * stride`, or are added to what is there.
    pub(crate) out: *mut f32,
    pub(crate) stride: usize,
    pub(crate) add: bool,
}

impl<P: PairLanes, const N: usize, const C: usize> PairKernel<P> for PairTile<N, C> {
    /// # Safety
    /// The fields hold what they name; the machine has P, which takes factors as pairs.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[P::V::splat_f(0.0); C]; N];
            let factors = self.pairs.cast::<f32>();
            macro_rules! step {
                ($load:ident, $j:expr) => {{
                    let at = $j * 4 * PANEL;
                    // No closure, which would lose the instruction set where it is not inlined.
                    let mut weights = [P::$load(self.panels[0].add(at)); N];
                    for (panel, weights) in self.panels.into_iter().zip(&mut weights).skip(1) {
                        *weights = P::$load(panel.add(at));
                    }
                    each_column!(C, COLUMN => {
                        let factor = P::splat(factors, $j * C + COLUMN);
                        for (sums, weights) in sums.iter_mut().zip(weights) {
                            sums[COLUMN] = P::dot(factor, weights, sums[COLUMN]);
                        }
                    });
                }};
            }
            for j in 0..self.cols / 2 {
                step!(load_columns, j);
            }
            if !self.cols.is_multiple_of(2) {
                step!(load_column, self.cols / 2);
            }
            for (n, sums) in sums.into_iter().enumerate() {
                each_column!(C, COLUMN => {
                    put::<P::V>(self.out.add(COLUMN * self.stride + n * PANEL), sums[COLUMN], self.add);
                });
            }
        }
    }
}

/// Panels of a [`FloatColumn`]: as many independent chains as hide the latency of one addition.
pub(crate) const QUAD: usize = 4;

/// Four dequantized panels times one column: continues the sums at `sums`, `[4][16]`.
pub(crate) struct FloatColumn {
    /// Panels `CHUNK` columns apart.
    pub(crate) weights: *const f32,
    pub(crate) values: *const f32,
    pub(crate) count: usize,
    pub(crate) sums: *mut f32,
}

impl<V: Lanes> Kernel<V> for FloatColumn {
    /// # Safety
    /// As [`FloatTile`], for each panel; `count` is at most [`CHUNK`].
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [V::splat_f(0.0); QUAD];
            for (p, sum) in sums.iter_mut().enumerate() {
                *sum = V::load_f(self.sums.add(p * PANEL));
            }
            for k in 0..self.count {
                let value = V::splat_f(*self.values.add(k));
                let weights = self.weights.add(k * PANEL);
                for (p, sum) in sums.iter_mut().enumerate() {
                    *sum = V::fma(V::load_f(weights.add(p * CHUNK * PANEL)), value, *sum);
                }
            }
            for (p, sum) in sums.into_iter().enumerate() {
                V::store_f(self.sums.add(p * PANEL), sum);
            }
        }
    }
}
