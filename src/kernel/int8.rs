//! Products with int8 activations: straight from the panel for few rows, through an unpacked copy for many.
//!
//! Both give, per output and per sub-block in order: acc ← fma(dot, weight scale · activation scale, acc), then
//! with a min acc ← fma(min, activation scale · sum, acc). Knows no threads and no output matrix.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;

use super::activations::Operands;
use super::format::PANEL;
use super::lanes::{each_column, each_part, Kernel, Lanes};
use super::memory::prefetch;
use super::unpack::Format;

/// Panels of a tile, at most.
pub(crate) const MOST_PANELS: usize = 2;
/// How far ahead of the products a panel is prefetched, in bytes.
const AHEAD: usize = 4608;

/// One panel times `C` columns, from the packed form.
pub(crate) struct Direct<'a, F: Format, const C: usize> {
    pub(crate) panel: *const u8,
    pub(crate) blocks: usize,
    /// Not by value: copies of what was just written would wait for it to reach the cache.
    pub(crate) operands: &'a Operands,
    /// Column c's 16 results go to `out + c * stride`, or are added to what is there.
    pub(crate) out: *mut f32,
    pub(crate) stride: usize,
    pub(crate) add: bool,
    pub(crate) format: PhantomData<F>,
}

/// Stores a vector, or adds it to what is there.
///
/// # Safety
/// As the functions of [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn put<V: Lanes>(to: *mut f32, value: V::F, add: bool) {
    // SAFETY: the caller's promise.
    unsafe { V::store_f(to, if add { V::add(V::load_f(to), value) } else { value }) }
}

/// Units of `P` panels, `apart` bytes apart.
#[derive(Clone, Copy)]
pub(crate) struct Units<I> {
    pub(crate) first: *const I,
    pub(crate) apart: usize,
    /// Whether they were in memory before, and not just computed.
    pub(crate) in_memory: bool,
}

/// Adds block `b` to the sums of `W` of `C` columns, from column `from` on, of `P` panels. `factors` are the scale and the
/// min of each part of the block.
///
/// # Safety
/// As the functions of [`Lanes`]; operands hold the block; there are 8 units per panel.
#[inline(always)]
pub(crate) unsafe fn accumulate<
    V: Lanes,
    const P: usize,
    const C: usize,
    const W: usize,
    const SUBS: usize,
    const HAS_MIN: bool,
    const BITS: u32,
>(
    sums: &mut [[V::F; W]; P],
    units: Units<V::I>,
    operands: &Operands,
    (b, from): (usize, usize),
    factors: &[[(V::F, V::F); 2]; P],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = operands.scales.add(b * C + from);
        each_column!(SUBS, SUB => {
            let at = (b * SUBS + SUB) * C + from;
            let words = operands.codes.add(b * 8 * C + SUB * 4 * C + from);
            let starts = operands.starts.wrapping_add(at);
            let first_unit = units.first.wrapping_add(SUB * 4);
            macro_rules! part {
                ($width:expr, $first:expr) => {{
                    let first = $first;
                    // Else the compiler copies them to the stack, to have them there for all parts.
                    let first_unit =
                        if units.in_memory && W > V::DOT_COLUMNS { black_box(first_unit) } else { first_unit };
                    let (words, starts) = (words.add(first), starts.wrapping_add(first));
                    let dots =
                        V::dots::<P, C, { $width }, SUBS, HAS_MIN, BITS>(first_unit, units.apart, words, starts);
                    each_column!($width, COLUMN => {
                        let column = first + COLUMN;
                        let act = V::splat_f(*scales.add(column));
                        for (p, sums) in sums.iter_mut().enumerate() {
                            let factor = V::mul(factors[p][SUB.min(1)].0, act);
                            sums[column] = V::fma(V::to_f(dots[p][COLUMN]), factor, sums[column]);
                        }
                        if HAS_MIN {
                            let sum = V::splat_f(*operands.sums.add(at + column));
                            for (p, sums) in sums.iter_mut().enumerate() {
                                sums[column] = V::fma(factors[p][SUB.min(1)].1, sum, sums[column]);
                            }
                        }
                    });
                }};
            }
            each_part!(V::DOT_COLUMNS, W, part);
        });
    }
}

impl<V: Lanes, F: Format, const C: usize> Kernel<V> for Direct<'_, F, C> {
    /// # Safety
    /// `panel` holds the groups of `blocks` blocks, the last up to its last block; `operands` hold `blocks` blocks of `C` columns; `out`
    /// takes 16 values per column.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let ahead = V::prefetches(C);
            let mut sums = [[V::splat_f(0.0); C]];
            let mut group = self.panel;
            let mut b = 0;
            while b < self.blocks {
                for j in 0..F::BLOCKS.min(self.blocks - b) {
                    if ahead {
                        // Spread over the blocks: all of a group's lines at once would stall it.
                        let lines = F::BYTES.div_ceil(64 * F::BLOCKS);
                        for line in 0..lines {
                            prefetch::<true>(group.wrapping_add(AHEAD + (j * lines + line) * 64));
                        }
                    }
                    let block = F::load::<V>(group, j);
                    let factors = [(block.scale[0], block.min[0]), (block.scale[1], block.min[1])];
                    let units = Units { first: block.units.as_ptr(), apart: 0, in_memory: false };
                    F::accumulate::<V, C>(&mut sums, units, self.operands, b, &[factors]);
                    b += 1;
                }
                group = group.wrapping_add(F::BYTES);
            }
            each_column!(C, COLUMN => { put::<V>(self.out.add(COLUMN * self.stride), sums[0][COLUMN], self.add); });
        }
    }
}

/// Bytes of one unpacked block: 8 units, then scale and min per sub-block.
pub(crate) const fn unpacked_bytes(subs: usize, has_min: bool) -> usize {
    512 + subs * if has_min { 128 } else { 64 }
}

/// Blocks of a panel to units and f32 factors, once for all columns.
pub(crate) struct Unpack<F: Format> {
    pub(crate) panel: *const u8,
    pub(crate) blocks: Range<usize>,
    pub(crate) to: *mut u8,
    pub(crate) format: PhantomData<F>,
}

impl<V: Lanes, F: Format> Kernel<V> for Unpack<F> {
    /// # Safety
    /// `panel` holds the groups of the blocks, the last up to its last block; `to` has [`unpacked_bytes`] per block.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let step = unpacked_bytes(F::SUBS, F::HAS_MIN);
            for (i, b) in self.blocks.enumerate() {
                let block = F::load::<V>(self.panel.add(b / F::BLOCKS * F::BYTES), b % F::BLOCKS);
                let to = self.to.add(i * step);
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

/// Unpacked blocks of some panels, and what they are multiplied with.
pub(crate) struct Unpacked<'a> {
    /// The panels' blocks, one panel behind the other.
    pub(crate) units: *const u8,
    pub(crate) blocks: Range<usize>,
    pub(crate) operands: &'a Operands,
    /// The sums of the blocks before, `[C][P][16]`; null where these are the first.
    pub(crate) sums: *const f32,
    /// Where the packed blocks of each panel lie that come next, brought closer meanwhile.
    pub(crate) next: [*const u8; MOST_PANELS],
    /// Lines of them per block and panel.
    pub(crate) next_lines: usize,
}

/// Where a tile's results go.
pub(crate) struct To {
    /// Column c's `16 * P` sums go to `out + c * stride`, which may be the place where they were.
    pub(crate) out: *mut f32,
    pub(crate) stride: usize,
    /// Whether they are added to what is there.
    pub(crate) add: bool,
}

/// Some unpacked blocks of `P` panels times `C` columns.
pub(crate) struct Tile<'a, const P: usize, const C: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32> {
    /// Not by value, as above.
    pub(crate) from: &'a Unpacked<'a>,
    pub(crate) to: &'a To,
}

impl<const P: usize, const C: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32>
    Tile<'_, P, C, SUBS, HAS_MIN, BITS>
{
    /// `W` columns from `first` on.
    ///
    /// # Safety
    /// As for all columns.
    #[inline(always)]
    unsafe fn columns<V: Lanes, const W: usize>(&self, first: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let Unpacked { units, blocks, operands, sums: sums_before, next, next_lines } = self.from;
            let step = unpacked_bytes(SUBS, HAS_MIN);
            let apart = blocks.len() * step;
            let mut sums = [[V::splat_f(0.0); W]; P];
            if !sums_before.is_null() {
                for (p, sums) in sums.iter_mut().enumerate() {
                    each_column!(W, COLUMN => {
                        sums[COLUMN] = V::load_f(sums_before.add(((first + COLUMN) * P + p) * PANEL));
                    });
                }
            }
            let mut from = *units;
            let (mut next, next_lines) = (*next, if first == 0 { *next_lines } else { 0 });
            for b in blocks.clone() {
                for _ in 0..next_lines {
                    for next in &mut next[..P] {
                        prefetch::<false>(*next);
                        *next = next.wrapping_add(64);
                    }
                }
                let mut factors = [[(V::splat_f(0.0), V::splat_f(0.0)); 2]; P];
                // No closure here: one that is not inlined loses the instruction set, and calls a function per load.
                for (p, factors) in factors.iter_mut().enumerate() {
                    let scales: *const f32 = from.add(p * apart + 512).cast();
                    for (sub, factors) in factors.iter_mut().enumerate().take(SUBS) {
                        let scale = scales.add(sub * if HAS_MIN { 2 * PANEL } else { PANEL });
                        factors.0 = V::load_f(scale);
                        if HAS_MIN {
                            factors.1 = V::load_f(scale.add(PANEL));
                        }
                    }
                }
                let block = Units { first: from.cast(), apart, in_memory: true };
                let at = (b, first);
                accumulate::<V, P, C, W, SUBS, HAS_MIN, BITS>(&mut sums, block, operands, at, &factors);
                from = from.add(step);
            }
            let To { out, stride, add } = self.to;
            for (p, sums) in sums.into_iter().enumerate() {
                each_column!(W, COLUMN => {
                    put::<V>(out.add((first + COLUMN) * stride + p * PANEL), sums[COLUMN], *add);
                });
            }
        }
    }
}

impl<V: Lanes, const P: usize, const C: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32> Kernel<V>
    for Tile<'_, P, C, SUBS, HAS_MIN, BITS>
{
    /// # Safety
    /// The units are 64-byte aligned, of `P` panels with blocks that [`Unpack`] wrote for a format of these
    /// parameters; the rest as for [`Direct`].
    #[inline(always)]
    unsafe fn run(self) {
        macro_rules! part {
            ($width:expr, $first:expr) => {
                // SAFETY: the columns exist; the rest is the caller's promise.
                unsafe { self.columns::<V, { $width }>($first) }
            };
        }
        each_part!(V::TILE.1, C, part);
    }
}
