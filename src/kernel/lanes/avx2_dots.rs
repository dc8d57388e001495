//! Dot products of bytes with nothing but AVX2: `vpmaddubsw` multiplies unsigned bytes with signed ones and sums two
//! neighbours in 16 bits, `vpmaddwd` widens such pairs to 32.
//!
//! In assembly, column by column: LLVM takes the sums as numbers that it may add in any order, and takes one for which there
//! are not enough registers (a third of the time went into moving them). What has no sums to keep is left to it.

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx2::{both, broadcast, Avx2, DotProduct};
use super::{each_column, Kernel};

/// `vpmaddubsw` and `vpmaddwd`: pairs in 16 bits first.
#[derive(Clone, Copy)]
pub(crate) struct Pairs;

impl DotProduct for Pairs {
    const SIGNED: bool = true;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn enter<K: Kernel<Avx2<Self>>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { kernel.run() }
    }

    /// Pairs of a run of units may be summed in 16 bits while run · 2 · 127 · (2^BITS − 1) < 2^15. Codes of 8 bits go as
    /// magnitudes, which are at most 128, with their signs on the other factor: 2 · 128 · 127 < 2^15.
    #[inline(always)]
    unsafe fn dot<const C: usize, const W: usize, const SUBS: usize, const BITS: u32>(
        units: *const [__m256i; 2],
        words: *const i32,
    ) -> [[__m256i; 2]; W] {
        let run = match BITS {
            0..=4 => 8 / SUBS,
            5 => 4,
            6 => 2,
            _ => 1,
        };
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); 2]; W];
            let mut pairs = sums;
            each_column!(8 / SUBS, UNIT => {
                let (unit, words) = (*units.add(UNIT), words.add(UNIT * C));
                if BITS > 7 {
                    sums = add_signed(sums, unit, words);
                } else if UNIT.is_multiple_of(run) {
                    pairs = first_pairs(unit, words);
                } else {
                    pairs = add_pairs(pairs, unit, words);
                }
                if BITS <= 7 && (UNIT + 1).is_multiple_of(run) {
                    let ones = _mm256_set1_epi16(1);
                    each_column!(W, COLUMN => {
                        for half in 0..2 {
                            let dots = _mm256_madd_epi16(pairs[COLUMN][half], ones);
                            let sum = &mut sums[COLUMN][half];
                            *sum = if UNIT < run { dots } else { _mm256_add_epi32(*sum, dots) };
                        }
                    });
                }
            });
            sums
        }
    }
}

type Unit = [__m256i; 2];

/// The products of a unit's bytes with those of `W` columns' words, two neighbours summed in 16 bits.
///
/// # Safety
/// As the functions of [`Lanes`](super::Lanes); `words` holds `W` words.
#[inline(always)]
unsafe fn first_pairs<const W: usize>(unit: Unit, words: *const i32) -> [Unit; W] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut pairs = [unit; W];
        each_column!(W, COLUMN => {
            let word = broadcast(words.add(COLUMN));
            pairs[COLUMN] = both(unit, |unit| _mm256_maddubs_epi16(unit, word));
        });
        pairs
    }
}

/// Runs `$columns!` with the numbers of all columns below `$width`, and two names for each.
macro_rules! all_columns {
    ($width:ident, $columns:ident) => {
        match $width {
            1 => $columns!(0 a b),
            2 => $columns!(0 a b, 1 c d),
            3 => $columns!(0 a b, 1 c d, 2 e f),
            4 => $columns!(0 a b, 1 c d, 2 e f, 3 g h),
            _ => unreachable!("at most DOT_COLUMNS"),
        }
    };
}

/// Adds [`first_pairs`] to `sums`.
///
/// # Safety
/// As [`first_pairs`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_pairs<const W: usize>(mut sums: [Unit; W], unit: Unit, words: *const i32) -> [Unit; W] {
    macro_rules! columns {
        ($($at:literal $low:ident $high:ident),*) => {{
            $( let [mut $low, mut $high] = sums[$at]; )*
            // SAFETY: nothing but registers and the words is touched.
            unsafe {
                asm!(
                    $(
                        concat!("vpbroadcastd {y}, [{words} + 4 * ", $at, "]"),
                        "vpmaddubsw {x}, {unit_low}, {y}",
                        "vpmaddubsw {y}, {unit_high}, {y}",
                        concat!("vpaddw {", stringify!($low), "}, {", stringify!($low), "}, {x}"),
                        concat!("vpaddw {", stringify!($high), "}, {", stringify!($high), "}, {y}"),
                    )*
                    $( $low = inout(ymm_reg) $low, $high = inout(ymm_reg) $high, )*
                    unit_low = in(ymm_reg) unit[0],
                    unit_high = in(ymm_reg) unit[1],
                    words = in(reg) words,
                    x = out(ymm_reg) _,
                    y = out(ymm_reg) _,
                    options(pure, readonly, nostack, preserves_flags)
                );
            }
            $( sums[$at] = [$low, $high]; )*
        }};
    }
    all_columns!(W, columns);
    sums
}

/// Adds the products of a unit's bytes, less 128, with those of `W` columns' words, in 32 bits.
///
/// # Safety
/// As [`first_pairs`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_signed<const W: usize>(mut sums: [Unit; W], unit: Unit, words: *const i32) -> [Unit; W] {
    let middle = _mm256_set1_epi8(-128);
    let signed = [_mm256_xor_si256(unit[0], middle), _mm256_xor_si256(unit[1], middle)];
    macro_rules! columns {
        ($($at:literal $low:ident $high:ident),*) => {{
            $( let [mut $low, mut $high] = sums[$at]; )*
            // SAFETY: nothing but registers and the words is touched.
            unsafe {
                asm!(
                    $(
                        concat!("vpbroadcastd {y}, [{words} + 4 * ", $at, "]"),
                        "vpsignb {x}, {y}, {signed_low}",
                        "vpsignb {y}, {y}, {signed_high}",
                        "vpmaddubsw {x}, {unit_low}, {x}",
                        "vpmaddubsw {y}, {unit_high}, {y}",
                        "vpmaddwd {x}, {x}, {ones}",
                        "vpmaddwd {y}, {y}, {ones}",
                        concat!("vpaddd {", stringify!($low), "}, {", stringify!($low), "}, {x}"),
                        concat!("vpaddd {", stringify!($high), "}, {", stringify!($high), "}, {y}"),
                    )*
                    $( $low = inout(ymm_reg) $low, $high = inout(ymm_reg) $high, )*
                    unit_low = in(ymm_reg) _mm256_abs_epi8(signed[0]),
                    unit_high = in(ymm_reg) _mm256_abs_epi8(signed[1]),
                    signed_low = in(ymm_reg) signed[0],
                    signed_high = in(ymm_reg) signed[1],
                    ones = in(ymm_reg) _mm256_set1_epi16(1),
                    words = in(reg) words,
                    x = out(ymm_reg) _,
                    y = out(ymm_reg) _,
                    options(pure, readonly, nostack, preserves_flags)
                );
            }
            $( sums[$at] = [$low, $high]; )*
        }};
    }
    all_columns!(W, columns);
    sums
}
