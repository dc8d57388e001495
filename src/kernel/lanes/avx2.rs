//! Lanes in two 256-bit registers: rows 0 to 7 and 8 to 15.
//!
//! Processors with AVX-VNNI have a dot product of bytes in registers of this width; the others sum in 16 bits.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::{x86_codes, Kernel, Lanes, RowCodes};

#[derive(Clone, Copy)]
pub(crate) struct Avx2<D: DotProduct>(PhantomData<D>);

/// Runs an expression with `$lanes` as the AVX2 lanes that this machine has at their best.
macro_rules! with_avx2 {
    ($lanes:ident => $body:expr) => {{
        use $crate::kernel::lanes::avx2::Avx2;
        use $crate::kernel::lanes::avx2_dots::Pairs;
        use $crate::kernel::lanes::avx_vnni::{has_vnni, Vnni};
        if has_vnni() {
            type $lanes = Avx2<Vnni>;
            $body
        } else {
            type $lanes = Avx2<Pairs>;
            $body
        }
    }};
}
pub(crate) use with_avx2;

/// How codes are multiplied with the input's. Its functions are for use as those of [`Lanes`].
pub(crate) trait DotProduct: Copy + 'static {
    /// Whether codes of 8 bits are taken as signed numbers, 128 less, which leaves nothing for a start to take away.
    const SIGNED: bool;

    /// # Safety
    /// As [`Lanes::enter`].
    unsafe fn enter<K: Kernel<Avx2<Self>>>(kernel: K);

    /// Dot products of `8 / SUBS` units with `W` of `C` columns, from zero.
    ///
    /// # Safety
    /// As [`Lanes::dot`].
    unsafe fn dot<const C: usize, const W: usize, const SUBS: usize, const BITS: u32>(
        units: *const [__m256i; 2],
        words: *const i32,
    ) -> [[__m256i; 2]; W];
}

/// # Safety
/// As the functions of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn broadcast(words: *const i32) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_set1_epi32(*words) }
}

/// # Safety
/// As the functions of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn both<T: Copy, U>(a: [T; 2], f: impl Fn(T) -> U) -> [U; 2] {
    [f(a[0]), f(a[1])]
}

// SAFETY of every block: the instruction set is there, by the contract of `Lanes`; memory is the caller's
// promise. Shorter comments point here.
impl<D: DotProduct> Lanes for Avx2<D> {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    const FLOAT_COLUMNS: usize = 4;
    const DOT_COLUMNS: usize = 4;
    const DIRECT_ROWS: usize = 8;

    fn prefetches(_: usize) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn enter<K: Kernel<Self>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { D::enter(kernel) }
    }

    #[inline(always)]
    unsafe fn splat_f(value: f32) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn store_f(to: *mut f32, value: Self::F) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self::F {
        // SAFETY: see above.
        unsafe {
            [_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast()))]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self::F {
        // SAFETY: see above.
        unsafe {
            both([from, from.add(16)], |from| {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(from: *const u8) -> [Self::F; 2] {
        // SAFETY: see above.
        unsafe {
            let pairs = [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())];
            let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                both(pairs, |pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, high))),
                both(pairs, |pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn neg(a: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { both(a, |a| _mm256_xor_ps(a, _mm256_set1_ps(-0.0))) }
    }
    #[inline(always)]
    unsafe fn at_least(a: Self::F, least: Self::F) -> Self::F {
        // SAFETY: see above. Where there is a NaN, the result is the second operand.
        unsafe { [_mm256_max_ps(least[0], a[0]), _mm256_max_ps(least[1], a[1])] }
    }
    #[inline(always)]
    unsafe fn to_bits(a: Self::F) -> Self::I {
        // SAFETY: see above.
        unsafe { both(a, |a| _mm256_castps_si256(a)) }
    }
    #[inline(always)]
    unsafe fn from_bits(a: Self::I) -> Self::F {
        // SAFETY: see above.
        unsafe { both(a, |a| _mm256_castsi256_ps(a)) }
    }

    #[inline(always)]
    unsafe fn splat_i(value: i32) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_set1_epi32(value); 2] }
    }
    #[inline(always)]
    unsafe fn load_i(from: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn store_i(to: *mut u8, value: Self::I) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_si256(to.cast(), value[0]);
            _mm256_storeu_si256(to.add(32).cast(), value[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe { both([from, from.add(8)], |from| _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe { both([from, from.add(8)], |from| _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn shl(a: Self::I, count: u32) -> Self::I {
        // SAFETY: see above.
        unsafe { both(a, |a| _mm256_sll_epi32(a, _mm_cvtsi32_si128(count as i32))) }
    }
    #[inline(always)]
    unsafe fn shr(a: Self::I, count: u32) -> Self::I {
        // SAFETY: see above.
        unsafe { both(a, |a| _mm256_srl_epi32(a, _mm_cvtsi32_si128(count as i32))) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { [_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn lookup(codes: Self::I, table: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
            both(codes, |codes| _mm256_shuffle_epi8(table, codes))
        }
    }
    #[inline(always)]
    unsafe fn to_f(a: Self::I) -> Self::F {
        // SAFETY: see above.
        unsafe { both(a, |a| _mm256_cvtepi32_ps(a)) }
    }

    #[inline(always)]
    unsafe fn round_codes(values: &[f32; 32], factor: f32) -> ([i32; 8], [i32; 2]) {
        // SAFETY: see above; the arrays have 32 values and 32 bytes.
        unsafe {
            let factor = _mm256_set1_ps(factor);
            // No closures, which would lose the instruction set where they are not inlined.
            macro_rules! codes {
                ($at:literal) => {
                    _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values.as_ptr().add($at)), factor))
                };
            }
            let first = _mm256_packs_epi32(codes!(0), codes!(8));
            let second = _mm256_packs_epi32(codes!(16), codes!(24));
            // Packing goes by halves of registers; this puts the words in order.
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
            let mut words = [0i32; 8];
            _mm256_storeu_si256(words.as_mut_ptr().cast(), bytes);
            let ones = _mm256_set1_epi16(1);
            let fours = _mm256_hadd_epi32(_mm256_madd_epi16(first, ones), _mm256_madd_epi16(second, ones));
            let sums = _mm256_hadd_epi32(fours, fours);
            let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            (words, [_mm_cvtsi128_si32(sums), _mm_extract_epi32::<1>(sums)])
        }
    }

    #[inline(always)]
    unsafe fn quantize_rows(x: *const f32, apart: usize, codes: *mut i32) -> Option<RowCodes> {
        // SAFETY: passed on.
        unsafe { x86_codes::avx2(x, apart, codes) }
    }

    #[inline(always)]
    unsafe fn dot<const C: usize, const W: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32>(
        units: *const Self::I,
        words: *const i32,
        starts: *const i32,
    ) -> [Self::I; W] {
        // SAFETY: see above.
        unsafe {
            let mut out = D::dot::<C, W, SUBS, BITS>(units, words);
            if !(HAS_MIN || D::SIGNED && BITS > 7) {
                for (c, out) in out.iter_mut().enumerate() {
                    let start = broadcast(starts.add(c));
                    *out = both(*out, |sum| _mm256_add_epi32(sum, start));
                }
            }
            out
        }
    }
}
