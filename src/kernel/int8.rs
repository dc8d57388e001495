//! Products with int8 activations: straight from the panel for few rows, through an unpacked copy for many.
//!
//! Both give, per output and per sub-block in order: acc ← fma(dot, weight scale · activation scale, acc), then
//! with a min acc ← fma(min, activation scale · sum, acc). Knows no threads and no output matrix.

use std::hint::black_box;
use std::marker::PhantomData;

use super::activations::Operands;
use super::format::PANEL;
use super::lanes::{each_column, each_part, Kernel, Lanes};
use super::memory::prefetch;
use super::unpack::Format;

/// How far ahead of the products a panel is prefetched, in bytes.
const AHEAD: usize = 4608;

/// One panel times `C` columns, from the packed form.
pub(crate) struct Direct<F: Format, const C: usize> {
    pub(crate) panel: *const u8,
    pub(crate) blocks: usize,
    pub(crate) operands: Operands,
    /// Column c's 16 results go to `out + c * stride`.
    pub(crate) out: *mut f32,
    pub(crate) stride: usize,
    pub(crate) format: PhantomData<F>,
}

/// Adds one block to the sums. `factors` are the scale and the min of each part of it; `in_memory` says that the units were
/// not just computed.
///
/// # Safety
/// As the functions of [`Lanes`]; operands hold the block at `b`; `units` holds 8 vectors.
#[inline(always)]
pub(crate) unsafe fn accumulate<V: Lanes, const C: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32>(
    sums: &mut [V::F; C],
    units: *const V::I,
    operands: &Operands,
    b: usize,
    factors: [(V::F, V::F); 2],
    in_memory: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = operands.scales.add(b * C);
        each_column!(SUBS, SUB => {
            let (scale, min) = factors[SUB.min(1)];
            let at = (b * SUBS + SUB) * C;
            let words = operands.codes.add(b * 8 * C + SUB * 4 * C);
            let starts = operands.starts.wrapping_add(at);
            let units = units.add(SUB * 4);
            macro_rules! part {
                ($width:expr, $first:expr) => {{
                    let first = $first;
                    // Else the compiler copies them to the stack, to have them there for all parts.
                    let units = if in_memory && C > V::DOT_COLUMNS { black_box(units) } else { units };
                    let starts = starts.wrapping_add(first);
                    let dots = V::dot::<C, { $width }, SUBS, HAS_MIN, BITS>(units, words.add(first), starts);
                    each_column!($width, COLUMN => {
                        let column = first + COLUMN;
                        let factor = V::mul(scale, V::splat_f(*scales.add(column)));
                        sums[column] = V::fma(V::to_f(dots[COLUMN]), factor, sums[column]);
                        if HAS_MIN {
                            let sum = V::splat_f(*operands.sums.add(at + column));
                            sums[column] = V::fma(min, sum, sums[column]);
                        }
                    });
                }};
            }
            each_part!(V, C, part);
        });
    }
}

impl<V: Lanes, F: Format, const C: usize> Kernel<V> for Direct<F, C> {
    /// # Safety
    /// `panel` holds the groups of `blocks` blocks, the last up to its last block; `operands` hold `blocks` blocks of `C` columns; `out`
    /// takes 16 values per column.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [V::splat_f(0.0); C];
            let mut group = self.panel;
            let mut b = 0;
            while b < self.blocks {
                for j in 0..F::BLOCKS.min(self.blocks - b) {
                    if C >= V::PREFETCH_COLUMNS {
                        // Spread over the blocks: all of a group's lines at once would stall it.
                        let lines = F::BYTES.div_ceil(64 * F::BLOCKS);
                        for line in 0..lines {
                            prefetch::<true>(group.wrapping_add(AHEAD + (j * lines + line) * 64));
                        }
                    }
                    let block = F::load::<V>(group, j);
                    let factors = [(block.scale[0], block.min[0]), (block.scale[1], block.min[1])];
                    let units = block.units.as_ptr();
                    F::accumulate::<V, C>(&mut sums, units, &self.operands, b, factors);
                    b += 1;
                }
                group = group.wrapping_add(F::BYTES);
            }
            each_column!(C, COLUMN => { V::store_f(self.out.add(COLUMN * self.stride), sums[COLUMN]); });
        }
    }
}

/// Bytes of one unpacked block: 8 units, then scale and min per sub-block.
pub(crate) const fn unpacked_bytes(subs: usize, has_min: bool) -> usize {
    512 + subs * if has_min { 128 } else { 64 }
}

/// A panel to units and f32 factors, once for all columns.
pub(crate) struct Unpack<F: Format> {
    pub(crate) panel: *const u8,
    pub(crate) blocks: usize,
    pub(crate) to: *mut u8,
    pub(crate) format: PhantomData<F>,
}

impl<V: Lanes, F: Format> Kernel<V> for Unpack<F> {
    /// # Safety
    /// `panel` holds the groups of `blocks` blocks, the last up to its last block; `to` has [`unpacked_bytes`] per block.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let step = unpacked_bytes(F::SUBS, F::HAS_MIN);
            for b in 0..self.blocks {
                let block = F::load::<V>(self.panel.add(b / F::BLOCKS * F::BYTES), b % F::BLOCKS);
                let to = self.to.add(b * step);
                for (u, unit) in block.units.into_iter().enumerate() {
                    V::store_i(to.add(u * 64), unit);
                }
                for sub in 0..F::SUBS {
                    let to = to.add(512 + sub * if F::HAS_MIN { 128 } else { 64 });
                    V::store_f(to.cast(), block.scale[sub]);
                    if F::HAS_MIN {
                        V::store_f(to.add(64).cast(), block.min[sub]);
                    }
                }
            }
        }
    }
}

/// An unpacked panel times `C` columns.
pub(crate) struct Tile<const C: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32> {
    pub(crate) unpacked: *const u8,
    pub(crate) blocks: usize,
    pub(crate) operands: Operands,
    pub(crate) out: *mut f32,
    pub(crate) stride: usize,
    /// Where the next packed panel lies, brought closer meanwhile.
    pub(crate) next: *const u8,
    /// Lines of it per block.
    pub(crate) next_lines: usize,
}

impl<V: Lanes, const C: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32> Kernel<V>
    for Tile<C, SUBS, HAS_MIN, BITS>
{
    /// # Safety
    /// `unpacked` is 64-byte aligned and holds `blocks` blocks that [`Unpack`] wrote for a format of these
    /// parameters; the rest as for [`Direct`].
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [V::splat_f(0.0); C];
            let mut from = self.unpacked;
            let mut next = self.next;
            for b in 0..self.blocks {
                for _ in 0..self.next_lines {
                    prefetch::<false>(next);
                    next = next.wrapping_add(64);
                }
                // No closure here: one that is not inlined loses the instruction set, and calls a function per load.
                let first: *const f32 = from.add(512).cast();
                let second = first.add((SUBS - 1) * if HAS_MIN { 2 * PANEL } else { PANEL });
                let mut factors = [(V::load_f(first), V::splat_f(0.0)), (V::load_f(second), V::splat_f(0.0))];
                if HAS_MIN {
                    factors[0].1 = V::load_f(first.add(PANEL));
                    factors[1].1 = V::load_f(second.add(PANEL));
                }
                accumulate::<V, C, SUBS, HAS_MIN, BITS>(&mut sums, from.cast(), &self.operands, b, factors, true);
                from = from.add(unpacked_bytes(SUBS, HAS_MIN));
            }
            each_column!(C, COLUMN => { V::store_f(self.out.add(COLUMN * self.stride), sums[COLUMN]); });
        }
    }
}
