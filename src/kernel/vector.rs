//! One body, compiled for every instruction set, and the elementary functions that such bodies share.
//!
//! The bodies are plain Rust whose results do not depend on vectorization: every multiply-add is an explicit
//! `mul_add`, every sum has a written order. So all kernel levels give the same bits.

/// Defines `fn name(level, args)` whose body is compiled once per kernel level and chosen at run time. `level` is a
/// level that this machine has, or a `&Cpu` for its usable level.
macro_rules! leveled {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(level: impl Into<$crate::kernel::KernelLevel>, $($arg: $ty),*) {
            #[inline(always)]
            fn body($($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            fn avx512($($arg: $ty),*) {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $ty),*) {
                body($($arg),*)
            }

            match level.into() {
                // SAFETY: the machine has the level, by the contract above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernel::KernelLevel::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernel::KernelLevel::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub(super) use leveled;

/// 1.5 * 2^23: adding it rounds to an integer, to even, and leaves that integer in the low mantissa bits.
pub(super) const EXP_ROUND: f32 = 12_582_912.0;
/// The least x that [`exp`] takes as it is.
pub(super) const EXP_LEAST: f32 = -87.0;
/// ln 2 in two parts, so that what is left of x is exact.
pub(super) const LN_2: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];
/// Taylor series of e^r to degree 7, from the highest; |r| <= ln(2)/2 leaves an error below 1e-8.
pub(super) const EXP_SERIES: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// e^x within 2 ulp for x in [-87, 88]; clamped outside (so never infinite, never zero); NaN stays NaN.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = if x > 88.0 { 88.0 } else { x };
    let x = if x < EXP_LEAST { EXP_LEAST } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, EXP_ROUND);
    let n = shifted - EXP_ROUND;
    let r = n.mul_add(-LN_2[0], x);
    let r = n.mul_add(-LN_2[1], r);
    let p = EXP_SERIES[1..].iter().fold(EXP_SERIES[0], |p, term| p.mul_add(r, *term));
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    p * power
}

/// tanh within 4 ulp of 1; NaN stays NaN.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let far = 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
    // Taylor series, where the above would cancel.
    let square = x * x;
    let near = (62.0f32 / 2835.0).mul_add(square, -17.0 / 315.0).mul_add(square, 2.0 / 15.0);
    let near = near.mul_add(square, -1.0 / 3.0).mul_add(square, 1.0) * x;
    if x.abs() < 0.25 {
        near
    } else {
        far
    }
}

/// The value of f16 bits, without branches so that loops vectorize.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    let bits = bits as u32;
    let sign = (bits & 0x8000) << 16;
    let magnitude = bits & 0x7fff;
    // Normal numbers, infinities and NaNs: move the exponent by scaling; 2^112 keeps inf and NaN what they are
    // only through the explicit branch-free select below.
    let normal = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    let special = f32::from_bits(0x7f80_0000 | (magnitude << 13));
    let value = if magnitude >= 0x7c00 { special } else { normal };
    f32::from_bits(value.to_bits() | sign)
}

/// Sums 32 lanes by a fixed tree: halves are added until one is left.
#[inline(always)]
pub(super) fn sum32(mut lanes: [f32; 32]) -> f32 {
    let mut width = 16;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}
