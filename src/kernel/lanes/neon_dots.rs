//! How NEON's lanes multiply bytes: with `smlal`, with `sdot`, or with `usdot` and `usmmla`. The README of the kernels has the
//! pictures. Knows no formats.

use std::arch::aarch64::*;
use std::arch::asm;

use super::neon::{each, Neon};
use super::{each_column, Kernel};

/// A unit: four bytes of each of sixteen rows.
pub(super) type Unit = [int32x4_t; 4];

/// How codes are multiplied with the input's. Its functions are for use inside a kernel's `run`, as those of
/// [`Lanes`](super::Lanes).
pub(crate) trait DotProduct: Copy + 'static {
    /// Whether codes are taken as signed, so that those of 8 bits need their upper bit flipped, which subtracts 128.
    const SIGNED: bool;

    /// # Safety
    /// As [`Lanes::enter`](super::Lanes::enter).
    unsafe fn enter<K: Kernel<Neon<Self>>>(kernel: K);

    /// [`Lanes::dot`](super::Lanes::dot) for `W` columns, four at most, of the `C` whose words follow each other, from column `FIRST`, a
    /// multiple of four. Their sums begin at `starts`.
    ///
    /// # Safety
    /// As [`Lanes::dot`](super::Lanes::dot).
    unsafe fn columns<const C: usize, const FIRST: usize, const W: usize, const SUBS: usize, const BITS: u32>(
        units: *const Unit,
        words: *const i32,
        starts: [i32; W],
    ) -> [[int32x4_t; 4]; W];
}

/// A unit's codes. With `FLIP` their upper bit is flipped.
///
/// # Safety
/// A unit is readable.
#[inline(always)]
unsafe fn codes<const FLIP: bool>(unit: *const Unit) -> [int8x16_t; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        each([0, 16, 32, 48], |at| {
            let bytes = vld1q_u8(unit.cast::<u8>().add(at));
            vreinterpretq_s8_u8(if FLIP { veorq_u8(bytes, vdupq_n_u8(0x80)) } else { bytes })
        })
    }
}

/// Sums that begin at `starts`, a column each.
///
/// # Safety
/// As the functions of [`Lanes`](super::Lanes).
#[inline(always)]
unsafe fn started<const W: usize>(starts: [i32; W]) -> [[int32x4_t; 4]; W] {
    // SAFETY: NEON is in the baseline of this architecture.
    unsafe {
        let mut sums = [[vdupq_n_s32(0); 4]; W];
        for (sum, start) in sums.iter_mut().zip(starts) {
            *sum = [vdupq_n_s32(start); 4];
        }
        sums
    }
}

/// 128 times the sum of each column's bytes: what flipped codes lack.
///
/// # Safety
/// `words` holds `8 / SUBS` times `C` words.
#[inline(always)]
pub(super) unsafe fn flipped<const C: usize, const SUBS: usize>(words: *const i32) -> [i32; C] {
    // SAFETY: the caller's promise; the number of words is a multiple of four.
    unsafe {
        // A register has words of the same columns as the one so many before.
        let period = C >> C.trailing_zeros().min(2);
        let mut sums = [vdupq_n_s32(0); C];
        for i in 0..8 / SUBS * C / 4 {
            let sum = &mut sums[i % period];
            *sum = vpadalq_s16(*sum, vpaddlq_s8(vld1q_s8(words.add(4 * i).cast())));
        }
        let mut out = [0; C];
        for (i, sum) in sums.into_iter().enumerate().take(period) {
            let mut lanes = [0i32; 4];
            vst1q_s32(lanes.as_mut_ptr(), sum);
            for (j, lane) in lanes.into_iter().enumerate() {
                out[(4 * i + j) % C] += 128 * lane;
            }
        }
        out
    }
}

/// `smlal`, for processors without a dot product: products in 16 bits, of which as many are summed as fit.
#[derive(Clone, Copy)]
pub(crate) struct Widening;

impl Widening {
    /// One column, or two: their sums of 16 bits take 8 or 16 of the 32 registers.
    ///
    /// # Safety
    /// As [`DotProduct::columns`].
    #[inline(always)]
    unsafe fn sums<const C: usize, const W: usize, const SUBS: usize, const BITS: u32>(
        units: *const Unit,
        words: *const i32,
        starts: [i32; W],
    ) -> [[int32x4_t; 4]; W] {
        let count = 8 / SUBS;
        // 127 · largest code · run < 2^15. Codes of 8 bits are signed: the largest is 128.
        let run = match BITS {
            0..=5 => count,
            6 => 4,
            _ => 2,
        };
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = started(starts);
            for first in (0..count).step_by(run) {
                let mut low = [[vdupq_n_s16(0); 4]; W];
                let mut high = low;
                for u in first..first + run {
                    let unit = if BITS > 7 { codes::<true>(units.add(u)) } else { codes::<false>(units.add(u)) };
                    for c in 0..W {
                        let word = vreinterpretq_s8_s32(vld1q_dup_s32(words.add(u * C + c)));
                        for quarter in 0..4 {
                            let codes = unit[quarter];
                            low[c][quarter] = vmlal_s8(low[c][quarter], vget_low_s8(codes), vget_low_s8(word));
                            high[c][quarter] = vmlal_high_s8(high[c][quarter], codes, word);
                        }
                    }
                }
                for c in 0..W {
                    for quarter in 0..4 {
                        // Rows 0 and 1 are in the low part, two lanes of 32 bits each; 2 and 3 in the high one.
                        let (low, high) = (vpaddlq_s16(low[c][quarter]), vpaddlq_s16(high[c][quarter]));
                        sums[c][quarter] = vaddq_s32(sums[c][quarter], vpaddq_s32(low, high));
                    }
                }
            }
            sums
        }
    }
}

impl DotProduct for Widening {
    const SIGNED: bool = true;

    unsafe fn enter<K: Kernel<Neon<Self>>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { kernel.run() }
    }

    #[inline(always)]
    unsafe fn columns<const C: usize, const FIRST: usize, const W: usize, const SUBS: usize, const BITS: u32>(
        units: *const Unit,
        words: *const i32,
        starts: [i32; W],
    ) -> [[int32x4_t; 4]; W] {
        // SAFETY: passed on.
        unsafe {
            let mut out = [[vdupq_n_s32(0); 4]; W];
            let pairs = if BITS > 7 { 0 } else { W / 2 * 2 };
            for c in (0..pairs).step_by(2) {
                let both = Self::sums::<C, 2, SUBS, BITS>(units, words.add(FIRST + c), [starts[c], starts[c + 1]]);
                out[c..c + 2].copy_from_slice(&both);
            }
            for c in pairs..W {
                out[c] = Self::sums::<C, 1, SUBS, BITS>(units, words.add(FIRST + c), [starts[c]])[0];
            }
            out
        }
    }
}

/// [`DotProduct::columns`] by one instruction, four bytes of four rows at a time with a word of a register of four.
macro_rules! by_instruction {
    ($name:ident, $instruction:literal, feature $feature:literal, signed $signed:literal) => {
        impl $name {
            /// # Safety
            /// As [`DotProduct::columns`].
            #[inline(always)]
            unsafe fn dots<const C: usize, const FIRST: usize, const W: usize, const SUBS: usize, const BITS: u32>(
                units: *const Unit,
                words: *const i32,
                starts: [i32; W],
            ) -> [[int32x4_t; 4]; W] {
                // SAFETY: the caller's promise, and the machine has the instruction, by the contract of `Lanes`.
                unsafe {
                    let mut sums = started(starts);
                    each_column!(8 / SUBS, UNIT => {
                        let unit = units.add(UNIT);
                        let unit = if BITS > 7 && $signed { codes::<true>(unit) } else { codes::<false>(unit) };
                        each_column!(W, COLUMN => {
                            // The four words around this one; their number in all is a multiple of four.
                            let words = vld1q_s32(words.add((UNIT * C + FIRST + COLUMN) / 4 * 4));
                            let [a, b, c, d] = &mut sums[COLUMN];
                            asm!(
                                concat!(".arch_extension ", $feature),
                                concat!($instruction, " {a:v}.4s, {x:v}.16b, {words:v}.4b[{lane}]"),
                                concat!($instruction, " {b:v}.4s, {y:v}.16b, {words:v}.4b[{lane}]"),
                                concat!($instruction, " {c:v}.4s, {z:v}.16b, {words:v}.4b[{lane}]"),
                                concat!($instruction, " {d:v}.4s, {w:v}.16b, {words:v}.4b[{lane}]"),
                                a = inout(vreg) *a,
                                b = inout(vreg) *b,
                                c = inout(vreg) *c,
                                d = inout(vreg) *d,
                                x = in(vreg) unit[0],
                                y = in(vreg) unit[1],
                                z = in(vreg) unit[2],
                                w = in(vreg) unit[3],
                                words = in(vreg) words,
                                lane = const (UNIT * C + FIRST + COLUMN) % 4,
                                options(pure, nomem, nostack, preserves_flags),
                            );
                        });
                    });
                    sums
                }
            }
        }
    };
}

/// `sdot`: signed times signed. Codes below 128 are what they are.
#[derive(Clone, Copy)]
pub(crate) struct Signed;

by_instruction!(Signed, "sdot", feature "dotprod", signed true);

impl DotProduct for Signed {
    const SIGNED: bool = true;

    #[target_feature(enable = "dotprod")]
    unsafe fn enter<K: Kernel<Neon<Self>>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { kernel.run() }
    }

    #[inline(always)]
    unsafe fn columns<const C: usize, const FIRST: usize, const W: usize, const SUBS: usize, const BITS: u32>(
        units: *const Unit,
        words: *const i32,
        starts: [i32; W],
    ) -> [[int32x4_t; 4]; W] {
        // SAFETY: passed on.
        unsafe { Self::dots::<C, FIRST, W, SUBS, BITS>(units, words, starts) }
    }
}

/// `usmmla` for two columns at a time and `usdot` for one: unsigned times signed, as it is needed.
#[derive(Clone, Copy)]
pub(crate) struct Mixed;

by_instruction!(Mixed, "usdot", feature "i8mm", signed false);

impl Mixed {
    /// Pairs of columns; a last one without a partner is its own. `usmmla` multiplies eight bytes of two rows with eight of
    /// two columns, and adds to rows of two sums: former row and column first.
    ///
    /// # Safety
    /// As [`DotProduct::columns`].
    #[inline(always)]
    unsafe fn matrices<const C: usize, const FIRST: usize, const W: usize, const SUBS: usize>(
        units: *const Unit,
        words: *const i32,
        starts: [i32; W],
    ) -> [[int32x4_t; 4]; W] {
        const { assert!(SUBS == 1 || SUBS == 2, "units go in pairs") };
        // SAFETY: the caller's promise, and the machine has the instruction, by the contract of `Lanes`.
        unsafe {
            let zero = vdupq_n_s32(0);
            // Of each pair of columns, the sums of rows 0 and 1, 2 and 3, and so on.
            let mut sums = [[zero; 8]; 2];
            each_column!(W.div_ceil(2), PAIR => {
                let (former, latter) = (starts[2 * PAIR], starts[(2 * PAIR + 1).min(W - 1)]);
                sums[PAIR.min(1)] = [vzip1q_s32(vdupq_n_s32(former), vdupq_n_s32(latter)); 8];
            });
            each_column!(4 / SUBS, EIGHT => {
                let (former, latter) = (*units.add(2 * EIGHT), *units.add(2 * EIGHT + 1));
                // Every row's eight bytes side by side, two rows to a register.
                let mut rows = [zero; 8];
                for q in 0..4 {
                    rows[2 * q] = vzip1q_s32(former[q], latter[q]);
                    rows[2 * q + 1] = vzip2q_s32(former[q], latter[q]);
                }
                each_column!(W.div_ceil(2), PAIR => {
                    let at = words.add(2 * EIGHT * C + FIRST + 2 * PAIR);
                    // Two columns' words; of a lone one the same twice, since there may be none behind it.
                    let (former, latter) = if 2 * PAIR + 1 < W {
                        (vld1_s32(at), vld1_s32(at.add(C)))
                    } else {
                        (vld1_dup_s32(at), vld1_dup_s32(at.add(C)))
                    };
                    let both = vzip1q_s32(vcombine_s32(former, former), vcombine_s32(latter, latter));
                    let [a, b, c, d, e, f, g, h] = &mut sums[PAIR.min(1)];
                    asm!(
                        ".arch_extension i8mm",
                        "usmmla {a:v}.4s, {i:v}.16b, {both:v}.16b",
                        "usmmla {b:v}.4s, {j:v}.16b, {both:v}.16b",
                        "usmmla {c:v}.4s, {k:v}.16b, {both:v}.16b",
                        "usmmla {d:v}.4s, {l:v}.16b, {both:v}.16b",
                        "usmmla {e:v}.4s, {m:v}.16b, {both:v}.16b",
                        "usmmla {f:v}.4s, {n:v}.16b, {both:v}.16b",
                        "usmmla {g:v}.4s, {o:v}.16b, {both:v}.16b",
                        "usmmla {h:v}.4s, {p:v}.16b, {both:v}.16b",
                        a = inout(vreg) *a,
                        b = inout(vreg) *b,
                        c = inout(vreg) *c,
                        d = inout(vreg) *d,
                        e = inout(vreg) *e,
                        f = inout(vreg) *f,
                        g = inout(vreg) *g,
                        h = inout(vreg) *h,
                        i = in(vreg) rows[0],
                        j = in(vreg) rows[1],
                        k = in(vreg) rows[2],
                        l = in(vreg) rows[3],
                        m = in(vreg) rows[4],
                        n = in(vreg) rows[5],
                        o = in(vreg) rows[6],
                        p = in(vreg) rows[7],
                        both = in(vreg) both,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                });
            });
            let mut out = [[zero; 4]; W];
            each_column!(W.div_ceil(2), PAIR => {
                let sums = sums[PAIR.min(1)];
                for q in 0..4 {
                    out[2 * PAIR][q] = vuzp1q_s32(sums[2 * q], sums[2 * q + 1]);
                    if 2 * PAIR + 1 < W {
                        out[(2 * PAIR + 1).min(W - 1)][q] = vuzp2q_s32(sums[2 * q], sums[2 * q + 1]);
                    }
                }
            });
            out
        }
    }
}

impl DotProduct for Mixed {
    const SIGNED: bool = false;

    #[target_feature(enable = "i8mm")]
    unsafe fn enter<K: Kernel<Neon<Self>>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { kernel.run() }
    }

    #[inline(always)]
    unsafe fn columns<const C: usize, const FIRST: usize, const W: usize, const SUBS: usize, const BITS: u32>(
        units: *const Unit,
        words: *const i32,
        starts: [i32; W],
    ) -> [[int32x4_t; 4]; W] {
        // SAFETY: passed on.
        unsafe {
            if W == 1 {
                Self::dots::<C, FIRST, W, SUBS, BITS>(units, words, starts)
            } else {
                Self::matrices::<C, FIRST, W, SUBS>(units, words, starts)
            }
        }
    }
}
