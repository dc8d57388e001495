//! Lanes in four 128-bit registers of 64-bit Arm: rows 0 to 3, 4 to 7, 8 to 11 and 12 to 15.
//!
//! What processors differ in is the dot product of bytes, so that is a parameter: [`Neon`] over a [`DotProduct`],
//! which [`with_neon`] chooses at run time. Its instructions are written as assembly, as is the conversion of
//! halves: their intrinsics are newer than the compilers that this crate supports. Knows no formats.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::neon_dots::{flipped, DotProduct, Unit};
use super::{each_column, Kernel, Lanes};

/// NEON with one of its dot products.
#[derive(Clone, Copy)]
pub(crate) struct Neon<D: DotProduct>(PhantomData<D>);

/// Which dot products of bytes the machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// None: [`Widening`](super::neon_dots::Widening).
    Baseline,
    /// Signed times signed: [`Signed`](super::neon_dots::Signed).
    Dotprod,
    /// Unsigned times signed, and products of small matrices: [`Mixed`](super::neon_dots::Mixed).
    I8mm,
}

impl Variant {
    /// The best of this machine.
    pub(crate) fn detect() -> Variant {
        if !std::arch::is_aarch64_feature_detected!("dotprod") {
            Variant::Baseline
        } else if std::arch::is_aarch64_feature_detected!("i8mm") {
            Variant::I8mm
        } else {
            Variant::Dotprod
        }
    }

    /// The level's name with what it uses.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Variant::Baseline => "neon",
            Variant::Dotprod => "neon+dotprod",
            Variant::I8mm => "neon+dotprod+i8mm",
        }
    }
}

/// Runs an expression with `$lanes` as the NEON lanes of a variant that this machine has.
macro_rules! with_neon {
    ($variant:expr, $lanes:ident => $body:expr) => {{
        use $crate::kernel::lanes::neon::{Neon, Variant};
        use $crate::kernel::lanes::neon_dots::{Mixed, Signed, Widening};
        match $variant {
            Variant::I8mm => {
                type $lanes = Neon<Mixed>;
                $body
            }
            Variant::Dotprod => {
                type $lanes = Neon<Signed>;
                $body
            }
            Variant::Baseline => {
                type $lanes = Neon<Widening>;
                $body
            }
        }
    }};
}
pub(crate) use with_neon;

#[inline(always)]
pub(super) fn each<A: Copy, B>(a: [A; 4], f: impl Fn(A) -> B) -> [B; 4] {
    [f(a[0]), f(a[1]), f(a[2]), f(a[3])]
}

#[inline(always)]
fn pairs<A: Copy, B>(a: [A; 4], b: [A; 4], f: impl Fn(A, A) -> B) -> [B; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

/// 16 numbers of 16 bits to 32, by a function of eight of them.
///
/// # Safety
/// 32 bytes are readable.
#[inline(always)]
unsafe fn widened<T: Copy>(from: *const u8, f: impl Fn(uint16x8_t) -> [T; 2]) -> [T; 4] {
    // SAFETY: the caller's promise.
    let (first, second) = unsafe { (f(vld1q_u16(from.cast())), f(vld1q_u16(from.add(16).cast()))) };
    [first[0], first[1], second[0], second[1]]
}

// SAFETY of every block: NEON is in the baseline of this architecture; memory is the caller's promise. Shorter
// comments point here.
impl<D: DotProduct> Lanes for Neon<D> {
    type F = [float32x4_t; 4];
    type I = Unit;
    // Sixteen sums, a column of weights in four registers, and the input's values.
    const FLOAT_COLUMNS: usize = 4;
    const DOT_COLUMNS: usize = 8;
    const DIRECT_ROWS: usize = 16;

    fn prefetches(columns: usize) -> bool {
        columns >= 6
    }

    unsafe fn enter<K: Kernel<Self>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { D::enter(kernel) }
    }

    #[inline(always)]
    unsafe fn splat_f(value: f32) -> Self::F {
        // SAFETY: see above.
        unsafe { [vdupq_n_f32(value); 4] }
    }
    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> Self::F {
        // SAFETY: see above.
        unsafe { [vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))] }
    }
    #[inline(always)]
    unsafe fn store_f(to: *mut f32, value: Self::F) {
        // SAFETY: see above.
        unsafe {
            for (quarter, value) in value.into_iter().enumerate() {
                vst1q_f32(to.add(quarter * 4), value);
            }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self::F {
        // SAFETY: see above.
        unsafe {
            let convert = |halves: uint16x8_t| {
                let (low, high): (float32x4_t, float32x4_t);
                asm!(
                    "fcvtl {low:v}.4s, {halves:v}.4h",
                    "fcvtl2 {high:v}.4s, {halves:v}.8h",
                    low = out(vreg) low,
                    high = lateout(vreg) high,
                    halves = in(vreg) halves,
                    options(pure, nomem, nostack, preserves_flags),
                );
                [low, high]
            };
            widened(from, convert)
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self::F {
        // SAFETY: see above.
        unsafe {
            let convert = |halves| {
                let (low, high) = (vshll_n_u16::<16>(vget_low_u16(halves)), vshll_high_n_u16::<16>(halves));
                [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)]
            };
            widened(from, convert)
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(from: *const u8) -> [Self::F; 2] {
        // SAFETY: see above.
        unsafe {
            let pairs = Self::load_i(from);
            let high = vdupq_n_u32(0xffff_0000);
            [
                each(pairs, |pairs| vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(pairs), high))),
                each(pairs, |pairs| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_s32(pairs)))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { pairs(a, b, |a, b| vmulq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { pairs(a, b, |a, b| vaddq_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe {
            [
                vfmaq_f32(c[0], a[0], b[0]),
                vfmaq_f32(c[1], a[1], b[1]),
                vfmaq_f32(c[2], a[2], b[2]),
                vfmaq_f32(c[3], a[3], b[3]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn neg(a: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { each(a, |a| vnegq_f32(a)) }
    }
    #[inline(always)]
    unsafe fn at_least(a: Self::F, least: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { pairs(a, least, |a, least| vmaxq_f32(a, least)) }
    }
    #[inline(always)]
    unsafe fn to_bits(a: Self::F) -> Self::I {
        // SAFETY: see above.
        unsafe { each(a, |a| vreinterpretq_s32_f32(a)) }
    }
    #[inline(always)]
    unsafe fn from_bits(a: Self::I) -> Self::F {
        // SAFETY: see above.
        unsafe { each(a, |a| vreinterpretq_f32_s32(a)) }
    }

    #[inline(always)]
    unsafe fn splat_i(value: i32) -> Self::I {
        // SAFETY: see above.
        unsafe { [vdupq_n_s32(value); 4] }
    }
    #[inline(always)]
    unsafe fn load_i(from: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe {
            // By bytes: no alignment is needed.
            each([0, 16, 32, 48], |at| vreinterpretq_s32_u8(vld1q_u8(from.add(at))))
        }
    }
    #[inline(always)]
    unsafe fn store_i(to: *mut u8, value: Self::I) {
        // SAFETY: see above.
        unsafe {
            for (quarter, value) in value.into_iter().enumerate() {
                vst1q_u8(to.add(quarter * 16), vreinterpretq_u8_s32(value));
            }
        }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe {
            let bytes = vld1q_u8(from);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            let lanes = [
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ];
            each(lanes, |lanes| vreinterpretq_s32_u32(lanes))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe {
            let bytes = vld1q_s8(from.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)]
        }
    }
    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { pairs(a, b, |a, b| vandq_s32(a, b)) }
    }
    #[inline(always)]
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { pairs(a, b, |a, b| vorrq_s32(a, b)) }
    }
    #[inline(always)]
    unsafe fn shl(a: Self::I, count: u32) -> Self::I {
        // SAFETY: see above.
        unsafe {
            let count = vdupq_n_s32(count as i32);
            each(a, |a| vshlq_s32(a, count))
        }
    }
    #[inline(always)]
    unsafe fn shr(a: Self::I, count: u32) -> Self::I {
        // SAFETY: see above.
        unsafe {
            // There is no right shift by a register: left by a negative count.
            let count = vdupq_n_s32(-(count as i32));
            each(a, |a| vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), count)))
        }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { pairs(a, b, |a, b| vsubq_s32(a, b)) }
    }
    #[inline(always)]
    unsafe fn lookup(codes: Self::I, table: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe {
            let table = vld1q_u8(table);
            each(codes, |codes| vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(codes))))
        }
    }
    #[inline(always)]
    unsafe fn to_f(a: Self::I) -> Self::F {
        // SAFETY: see above.
        unsafe { each(a, |a| vcvtq_f32_s32(a)) }
    }

    #[inline(always)]
    unsafe fn dot<const C: usize, const W: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32>(
        units: *const Self::I,
        words: *const i32,
        starts: *const i32,
    ) -> [Self::I; W] {
        // Not as a constant, which would be looked at where the call is never made.
        assert!(W == C, "all columns at a time");
        // SAFETY: see above.
        unsafe {
            let mut begin = if BITS > 7 && D::SIGNED { flipped::<W, SUBS>(words) } else { [0; W] };
            if !HAS_MIN {
                for (c, begin) in begin.iter_mut().enumerate() {
                    *begin += *starts.add(c);
                }
            }
            let mut out = [[vdupq_n_s32(0); 4]; W];
            // Up to four columns at a time: their sums take sixteen of the 32 registers.
            each_column!(W.div_ceil(4), PART => {
                let at = PART * 4;
                macro_rules! part {
                    ($width:literal) => {{
                        let mut starts = [0; $width];
                        starts.copy_from_slice(&begin[at..at + $width]);
                        let sums = D::columns::<W, { PART * 4 }, $width, SUBS, BITS>(units, words, starts);
                        out[at..at + $width].copy_from_slice(&sums);
                    }};
                }
                match W - at {
                    1 => part!(1),
                    2 => part!(2),
                    3 => part!(3),
                    _ => part!(4),
                }
            });
            out
        }
    }
}
