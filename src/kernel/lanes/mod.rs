//! Sixteen lanes, one per row of a panel: the few operations that the kernels are written in.
//!
//! A kernel is written once over [`Lanes`] and compiled for each instruction set by [`Lanes::enter`]. All
//! operations are exact integers or single IEEE roundings, so that every implementation gives the same bits.
//! Knows no formats.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2_dots;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx_vnni;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(crate) mod neon;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
pub(crate) mod neon_dots;
pub(crate) mod pairs;
#[cfg(any(test, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86_codes;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(any(test, not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")))))]
pub(crate) use portable::Portable;

/// Code that [`Lanes::enter`] compiles for an instruction set.
pub(crate) trait Kernel<V: Lanes> {
    /// # Safety
    /// The machine has the instruction set of `V`; each kernel adds what its pointers must hold.
    unsafe fn run(self);
}

/// One instruction set. Every function but `enter` is for use inside a kernel's `run` only, and is unsafe for
/// that reason; the loads and stores also need their 16 elements to be readable or writable, at any alignment.
pub(crate) trait Lanes: Copy + 'static {
    /// 16 f32.
    type F: Copy;
    /// 16 i32, or 64 bytes.
    type I: Copy;
    /// Columns of the f32 tile: how many accumulators the registers hold. 4 or 8.
    const FLOAT_COLUMNS: usize;
    /// Columns of one call of [`dot`](Lanes::dot): 4, or 8, which is all.
    const DOT_COLUMNS: usize;
    /// Panels, one or two, and columns of them, four or eight, whose sums a tile keeps at a time. Two panels share what is read
    /// of a column.
    const TILE: (usize, usize) = (1, 8);
    /// Bytes of unpacked blocks that are multiplied with all rows before the next are unpacked: with some rows they lie in a
    /// core's first cache, or in its second where that is fast enough.
    const UNPACKED_BYTES: usize = 96 << 10;
    /// Up to this many rows, products straight from the packed form beat unpacking first.
    const DIRECT_ROWS: usize;
    /// Whether a direct product of so many columns prefetches its panel. Reading is bound by memory there, and some processors
    /// do better alone for few columns (docs/kernel-measurements.md).
    fn prefetches(columns: usize) -> bool;

    /// Runs a kernel, compiled for this instruction set.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    unsafe fn enter<K: Kernel<Self>>(kernel: K);

    unsafe fn splat_f(value: f32) -> Self::F;
    unsafe fn load_f(from: *const f32) -> Self::F;
    unsafe fn store_f(to: *mut f32, value: Self::F);
    /// 16 binary16 numbers.
    unsafe fn load_f16(from: *const u8) -> Self::F;
    /// 16 bfloat16 numbers.
    unsafe fn load_bf16(from: *const u8) -> Self::F;
    /// 16 pairs of bfloat16 numbers, which are 32-bit words: the upper halves, and the lower ones.
    unsafe fn load_pairs(from: *const u8) -> [Self::F; 2];
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The sign flipped, of zeros too.
    unsafe fn neg(a: Self::F) -> Self::F;
    /// The larger of a number, or NaN, and a number that is not zero: NaN stays NaN.
    unsafe fn at_least(a: Self::F, least: Self::F) -> Self::F;
    /// The bits of f32 as integers.
    unsafe fn to_bits(a: Self::F) -> Self::I;
    /// And back.
    unsafe fn from_bits(a: Self::I) -> Self::F;

    unsafe fn splat_i(value: i32) -> Self::I;
    unsafe fn load_i(from: *const u8) -> Self::I;
    unsafe fn store_i(to: *mut u8, value: Self::I);
    /// 16 bytes to lanes, unsigned.
    unsafe fn load_u8(from: *const u8) -> Self::I;
    /// 16 bytes to lanes, signed.
    unsafe fn load_i8(from: *const u8) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Left shift of each lane by `count` < 32.
    unsafe fn shl(a: Self::I, count: u32) -> Self::I;
    /// Right shift of each lane by `count` < 32, filling with zeros.
    unsafe fn shr(a: Self::I, count: u32) -> Self::I;
    unsafe fn sub(a: Self::I, b: Self::I) -> Self::I;
    /// Every byte, below 16, becomes that entry of a table of 16 bytes.
    unsafe fn lookup(codes: Self::I, table: *const u8) -> Self::I;
    /// Lanes, as signed numbers, to f32.
    unsafe fn to_f(a: Self::I) -> Self::F;

    /// 32 values times a factor, each product's magnitude below 128, to the nearest integers, ties to even: four bytes to a
    /// word; and the sums of either half.
    unsafe fn round_codes(values: &[f32; 32], factor: f32) -> ([i32; 8], [i32; 2]) {
        round_codes(values, factor)
    }

    /// Quantizes 32 columns of eight rows, `apart` values apart: their codes go to `codes`, `[8 words][8 rows]`, four codes to a
    /// word; returned are the scales, and the rows' sums of the first 16 columns and of the others, all as `prepare::quantize`
    /// has them row by row. `None`, and nothing is written, where a value is not finite, or at levels that have no such way.
    ///
    /// # Safety
    /// `x` has the rows, and `codes` room for 64 words.
    #[inline(always)]
    unsafe fn quantize_rows(_x: *const f32, _apart: usize, _codes: *mut i32) -> Option<RowCodes> {
        None
    }

    /// Dot products of `8 / SUBS` units of unsigned codes below 2^`BITS` with `W` of `C` columns of signed codes in
    /// -127..=127: lane r of column c is start c + Σ over units u and b < 4 of byte 4r + b of unit u, times byte b
    /// of word u · C + c. `W` is at most [`DOT_COLUMNS`](Lanes::DOT_COLUMNS); where that and the columns of
    /// [`TILE`](Lanes::TILE) are 8, `W` is `C`. With `HAS_MIN` the start is zero. With 8 bits it is −128 times the sum of the
    /// column's bytes, so that codes of 8 bits may be taken as signed ones, 128 less, without a start.
    ///
    /// # Safety
    /// `units` is aligned and holds `8 / SUBS` vectors; for each of them `words` holds `W` words, `C` apart from the ones
    /// before; `starts` holds `W` words, or anything with `HAS_MIN`.
    unsafe fn dot<const C: usize, const W: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32>(
        units: *const Self::I,
        words: *const i32,
        starts: *const i32,
    ) -> [Self::I; W];

    /// The same for the units of `P` panels, `apart` bytes apart.
    ///
    /// # Safety
    /// As [`dot`](Lanes::dot) for each panel.
    #[inline(always)]
    unsafe fn dots<
        const P: usize,
        const C: usize,
        const W: usize,
        const SUBS: usize,
        const HAS_MIN: bool,
        const BITS: u32,
    >(
        units: *const Self::I,
        apart: usize,
        words: *const i32,
        starts: *const i32,
    ) -> [[Self::I; W]; P] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut out = [[Self::splat_i(0); W]; P];
            for (p, out) in out.iter_mut().enumerate() {
                *out = Self::dot::<C, W, SUBS, HAS_MIN, BITS>(units.wrapping_byte_add(p * apart), words, starts);
            }
            out
        }
    }
}

/// Blocks whose largest magnitude is below this count as zero: their scale's reciprocal could overflow.
pub(crate) const SMALLEST: f32 = 1.0e-30;

/// Scales of eight rows, and sums of either half of their codes.
pub(crate) type RowCodes = ([f32; 8], [[i32; 8]; 2]);

/// What [`Lanes::round_codes`] computes.
#[inline(always)]
pub(crate) fn round_codes(values: &[f32; 32], factor: f32) -> ([i32; 8], [i32; 2]) {
    // Adding 1.5 * 2^23 leaves the value rounded to nearest even in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    let codes = values.map(|value| (value * factor + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32);
    let mut sums = [0i32; 2];
    for (sum, half) in sums.iter_mut().zip(codes.as_chunks::<16>().0) {
        *sum = half.iter().sum();
    }
    let mut words = [0i32; 8];
    for (word, codes) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
        *word = i32::from_le_bytes(codes.map(|code| code as i8 as u8));
    }
    (words, sums)
}

/// Repeats a body for the columns 0..8 that exist, with the column as a constant: accumulators indexed by it
/// stay in registers whatever the loop unroller decides. The others are not even made, also where nothing is optimized.
macro_rules! each_column {
    ($columns:expr, $c:ident => $body:block) => {
        each_column!(@ $columns, $c, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $columns:expr, $c:ident, $body:block, $($index:literal)*) => {
        $( if const { $index < $columns } {
            const $c: usize = $index;
            // The bodies of columns that do not exist are never run.
            #[allow(unconditional_panic, clippy::out_of_bounds_indexing, clippy::unnecessary_min_or_max)]
            $body
        } )*
    };
}
pub(crate) use each_column;

/// Runs `$part!(width, first)` for all of `$columns` columns, four at a time where they are more than `$most`; the width is a
/// constant.
macro_rules! each_part {
    ($most:expr, $columns:ident, $part:ident) => {
        if const { $columns <= $most } {
            $part!($columns, 0);
        } else {
            // A loop, so that one part's sums are out of the registers before the next one's are needed.
            for first in (0..$columns / 4 * 4).step_by(4) {
                $part!(4, first);
            }
            match const { $columns % 4 } {
                1 => $part!(1, $columns - 1),
                2 => $part!(2, $columns - 2),
                3 => $part!(3, $columns - 3),
                _ => {}
            }
        }
    };
}
pub(crate) use each_part;

/// Runs an expression with `$lanes` as the lanes of a level that this machine has; `$scalar` at the scalar level.
macro_rules! with_lanes {
    ($level:expr, $lanes:ident => $body:expr, else $scalar:expr) => {
        match $level {
            #[cfg(target_arch = "x86_64")]
            $crate::kernel::KernelLevel::Avx512 => {
                type $lanes = $crate::kernel::lanes::Avx512;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            $crate::kernel::KernelLevel::Avx2 => {
                $crate::kernel::lanes::avx2::with_avx2!($lanes => $body)
            }
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            $crate::kernel::KernelLevel::Neon => {
                $crate::kernel::lanes::neon::with_neon!($crate::kernel::lanes::neon::Variant::detect(), $lanes => $body)
            }
            // Elsewhere no level has lanes, and this one is not available.
            #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
            $crate::kernel::KernelLevel::Neon => {
                type $lanes = $crate::kernel::lanes::Portable;
                $body
            }
            _ => $scalar,
        }
    };
}
pub(crate) use with_lanes;
