//! Products of pairs of bf16: natively where a processor has them, in f32 with the same bits elsewhere.
//!
//! A pair is a 32-bit word. Its upper half is multiplied and added first, then its lower half, each sum rounded once.
//! That is what two fused multiply-adds give (a product of two bf16 is exact in f32, unless it is out of range), but for
//! subnormal numbers:
//! `vdpbf16ps` takes them for zeros. Operands whose magnitudes are 0 or at least [`TINY`] never come near those.

use std::marker::PhantomData;

use super::{Kernel, Lanes};

/// 2^-50. Products of bf16 from here on are multiples of 2^-114, and so is every sum of them: zero or a normal number.
pub(crate) const TINY: f32 = f32::from_bits((127 - 50) << 23);

/// The f32 of a bf16 rounded to nearest, ties to even; magnitudes below [`TINY`] become zero. NaN stays NaN.
#[inline(always)]
pub(crate) fn round_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000);
    // Written so that it becomes selects: a NaN compares false.
    let kept = if value.abs() < TINY { 0.0 } else { rounded };
    if value.is_nan() {
        f32::NAN
    } else {
        kept
    }
}

/// Code that [`PairLanes::enter`] compiles for an instruction set.
pub(crate) trait PairKernel<P: PairLanes> {
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn run(self);
}

/// How an instruction set multiplies pairs. As with [`Lanes`], the functions are for use inside a kernel's `run`.
pub(crate) trait PairLanes: Copy + 'static {
    /// The lanes of the sums.
    type V: Lanes;
    /// 16 pairs.
    type Pairs: Copy;
    /// Whether factors lie in memory as pairs (32 bits); elsewhere as two f32, the one that is multiplied first before
    /// the other.
    const PACKED: bool;
    /// Vectors of 16 sums that a kernel keeps per column of factors, for up to four of them where it is 1, eight where it is 2.
    const VECTORS: usize;

    /// Runs a kernel, compiled for this instruction set.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn enter<K: PairKernel<Self>>(kernel: K);
    /// 16 pairs from 64 bytes.
    unsafe fn load(from: *const u8) -> Self::Pairs;
    /// Two columns of 16 bf16, one behind the other: the former are the upper halves.
    unsafe fn load_columns(from: *const u8) -> Self::Pairs;
    /// One column of 16 bf16; the lower halves are zero.
    unsafe fn load_column(from: *const u8) -> Self::Pairs;
    /// Pair `index` of a column of factors in every lane.
    unsafe fn splat(factors: *const f32, index: usize) -> Self::Pairs;
    /// `sums` plus both products of each lane, the upper halves' first.
    unsafe fn dot(a: Self::Pairs, b: Self::Pairs, sums: <Self::V as Lanes>::F) -> <Self::V as Lanes>::F;
}

/// Pairs as two vectors of f32.
#[derive(Clone, Copy)]
pub(crate) struct Widened<V>(PhantomData<V>);

struct Inside<K>(K);

impl<V: Lanes, K: PairKernel<Widened<V>>> Kernel<V> for Inside<K> {
    /// # Safety
    /// As the kernel's own.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: passed on.
        unsafe { self.0.run() }
    }
}

// SAFETY of every block: passed on to the caller, whose promises are those of `Lanes`.
impl<V: Lanes> PairLanes for Widened<V> {
    type V = V;
    type Pairs = [V::F; 2];
    const PACKED: bool = false;
    const VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn enter<K: PairKernel<Self>>(kernel: K) {
        // SAFETY: see above.
        unsafe { V::enter(Inside(kernel)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self::Pairs {
        // SAFETY: see above.
        unsafe { V::load_pairs(from) }
    }
    #[inline(always)]
    unsafe fn load_columns(from: *const u8) -> Self::Pairs {
        // SAFETY: see above.
        unsafe { [V::load_bf16(from), V::load_bf16(from.add(32))] }
    }
    #[inline(always)]
    unsafe fn load_column(from: *const u8) -> Self::Pairs {
        // SAFETY: see above.
        unsafe { [V::load_bf16(from), V::splat_f(0.0)] }
    }
    #[inline(always)]
    unsafe fn splat(factors: *const f32, index: usize) -> Self::Pairs {
        // SAFETY: see above.
        unsafe { [V::splat_f(*factors.add(2 * index)), V::splat_f(*factors.add(2 * index + 1))] }
    }
    #[inline(always)]
    unsafe fn dot(a: Self::Pairs, b: Self::Pairs, sums: V::F) -> V::F {
        // SAFETY: see above.
        unsafe { V::fma(a[1], b[1], V::fma(a[0], b[0], sums)) }
    }
}

/// [`Widened`] with factors as pairs: what a native instruction reads, on any machine.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(crate) struct Packed<V>(PhantomData<V>);

#[cfg(test)]
impl<V: Lanes, K: PairKernel<Packed<V>>> Kernel<V> for Inside<(K, PhantomData<Packed<V>>)> {
    /// # Safety
    /// As the kernel's own.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: passed on.
        unsafe { self.0 .0.run() }
    }
}

#[cfg(test)]
impl<V: Lanes> PairLanes for Packed<V> {
    type V = V;
    type Pairs = [V::F; 2];
    const PACKED: bool = true;
    const VECTORS: usize = 2;

    unsafe fn enter<K: PairKernel<Self>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { V::enter(Inside((kernel, PhantomData))) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self::Pairs {
        // SAFETY: passed on.
        unsafe { V::load_pairs(from) }
    }
    #[inline(always)]
    unsafe fn load_columns(from: *const u8) -> Self::Pairs {
        // SAFETY: passed on.
        unsafe { Widened::<V>::load_columns(from) }
    }
    #[inline(always)]
    unsafe fn load_column(from: *const u8) -> Self::Pairs {
        // SAFETY: passed on.
        unsafe { Widened::<V>::load_column(from) }
    }
    #[inline(always)]
    unsafe fn splat(factors: *const f32, index: usize) -> Self::Pairs {
        // SAFETY: passed on.
        let pair = unsafe { *factors.add(index) }.to_bits();
        // SAFETY: passed on.
        unsafe { [V::splat_f(f32::from_bits(pair & 0xffff_0000)), V::splat_f(f32::from_bits(pair << 16))] }
    }
    #[inline(always)]
    unsafe fn dot(a: Self::Pairs, b: Self::Pairs, sums: V::F) -> V::F {
        // SAFETY: passed on.
        unsafe { V::fma(a[1], b[1], V::fma(a[0], b[0], sums)) }
    }
}

/// Whether products of pairs are native at a level of this machine: factors are then wanted as pairs.
pub(crate) fn has_pairs(level: crate::kernel::KernelLevel) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        crate::kernel::KernelLevel::Avx512 => super::avx512_bf16::has_bf16(),
        _ => false,
    }
}

/// Runs an expression with `$pairs` as the products of pairs of a level that this machine has; `$scalar` at the scalar
/// level.
macro_rules! with_pairs {
    ($level:expr, $pairs:ident => $body:expr, else $scalar:expr) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            $crate::kernel::KernelLevel::Avx512 if $crate::kernel::lanes::avx512_bf16::has_bf16() => {
                type $pairs = $crate::kernel::lanes::avx512_bf16::Bf16;
                $body
            }
            level => $crate::kernel::lanes::with_lanes!(level, V => {
                type $pairs = $crate::kernel::lanes::pairs::Widened<V>;
                $body
            }, else $scalar),
        }
    };
}
pub(crate) use with_pairs;
