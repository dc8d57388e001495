//! [`Lanes::quantize_rows`](super::Lanes::quantize_rows) of x86: eight rows at a time, so that what is found out of a row, its
//! largest magnitude and the sums of its codes, takes few instructions, and that words come out in the order of rows.

use std::arch::x86_64::*;

use super::{RowCodes, SMALLEST};

/// # Safety
/// As [`Lanes::quantize_rows`](super::Lanes::quantize_rows), inside a kernel with AVX2.
#[inline(always)]
pub(super) unsafe fn avx2(x: *const f32, apart: usize, codes: *mut i32) -> Option<RowCodes> {
    // SAFETY: the caller's promise.
    unsafe {
        let (factors, scales) = factors(largest_avx2(x, apart))?;
        let words = words_avx2(x, apart, &factors);
        let (ones8, ones16) = (_mm256_set1_epi8(1), _mm256_set1_epi16(1));
        let mut sums = [[0i32; 8]; 2];
        for (half, sums) in sums.iter_mut().enumerate() {
            let mut sum = _mm256_setzero_si256();
            for (u, word) in words.iter().enumerate().skip(4 * half).take(4) {
                _mm256_storeu_si256(codes.add(u * 8).cast(), *word);
                // Eight codes at most: they fit 16 bits.
                sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones8, *word));
            }
            _mm256_storeu_si256(sums.as_mut_ptr().cast(), _mm256_madd_epi16(sum, ones16));
        }
        Some((scales, sums))
    }
}

/// # Safety
/// As [`Lanes::quantize_rows`](super::Lanes::quantize_rows), inside a kernel with AVX-512 and VNNI.
#[inline(always)]
pub(super) unsafe fn avx512(x: *const f32, apart: usize, codes: *mut i32) -> Option<RowCodes> {
    // SAFETY: the caller's promise.
    unsafe {
        let (factors, scales) = factors(largest_avx512(x, apart))?;
        let words = words_avx512(x, apart, &factors);
        let ones = _mm512_set1_epi8(1);
        let mut sums = [[0i32; 8]; 2];
        for (half, sums) in sums.iter_mut().enumerate() {
            let [first, second] = [words[2 * half], words[2 * half + 1]];
            let to = codes.add(half * 32);
            _mm512_storeu_si512(to.cast(), first);
            _mm512_storeu_si512(to.add(16).cast(), second);
            let sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, first), ones, second);
            let sum = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
            _mm256_storeu_si256(sums.as_mut_ptr().cast(), sum);
        }
        Some((scales, sums))
    }
}

/// What values are multiplied with to be codes, and the scales of codes, from the bits of the rows' largest magnitudes; `None`
/// where one is not finite.
///
/// # Safety
/// Inside a kernel with AVX2.
#[inline(always)]
unsafe fn factors(largest: __m256i) -> Option<([f32; 8], [f32; 8])> {
    // SAFETY: the arrays have room for a register; the rest is the caller's promise.
    unsafe {
        let finite = _mm256_set1_epi32(f32::MAX.to_bits() as i32);
        if _mm256_movemask_epi8(_mm256_cmpgt_epi32(largest, finite)) != 0 {
            return None;
        }
        let (largest, most) = (_mm256_castsi256_ps(largest), _mm256_set1_ps(127.0));
        let counts = _mm256_cmp_ps::<_CMP_NLT_UQ>(largest, _mm256_set1_ps(SMALLEST));
        let (mut factors, mut scales) = ([0f32; 8], [0f32; 8]);
        _mm256_storeu_ps(factors.as_mut_ptr(), _mm256_and_ps(_mm256_div_ps(most, largest), counts));
        _mm256_storeu_ps(scales.as_mut_ptr(), _mm256_and_ps(_mm256_div_ps(largest, most), counts));
        Some((factors, scales))
    }
}

/// The bits of the largest magnitude of each row.
///
/// # Safety
/// As [`avx2`].
#[inline(always)]
unsafe fn largest_avx2(x: *const f32, apart: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let magnitude = _mm256_set1_epi32(i32::MAX);
        // A row per register; then two, then four rows share one, in the same order in either half; then the halves are merged.
        let mut one = [_mm256_setzero_si256(); 8];
        for (row, one) in one.iter_mut().enumerate() {
            let x = x.add(row * apart).cast::<i32>();
            for part in 0..4 {
                let part = _mm256_and_si256(_mm256_loadu_si256(x.add(part * 8).cast()), magnitude);
                *one = _mm256_max_epu32(*one, part);
            }
        }
        let mut two = [_mm256_setzero_si256(); 4];
        for (two, [a, b]) in two.iter_mut().zip(one.as_chunks().0) {
            *two = _mm256_max_epu32(_mm256_unpacklo_epi32(*a, *b), _mm256_unpackhi_epi32(*a, *b));
        }
        let mut four = [_mm256_setzero_si256(); 2];
        for (four, [a, b]) in four.iter_mut().zip(two.as_chunks().0) {
            *four = _mm256_max_epu32(_mm256_unpacklo_epi64(*a, *b), _mm256_unpackhi_epi64(*a, *b));
        }
        let low = _mm256_permute2x128_si256::<0x20>(four[0], four[1]);
        _mm256_max_epu32(low, _mm256_permute2x128_si256::<0x31>(four[0], four[1]))
    }
}

/// The same in registers of twice the width: rows share one in the same order in each quarter.
///
/// # Safety
/// As [`avx512`].
#[inline(always)]
unsafe fn largest_avx512(x: *const f32, apart: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let magnitude = _mm512_set1_epi32(i32::MAX);
        let mut one = [_mm512_setzero_si512(); 8];
        for (row, one) in one.iter_mut().enumerate() {
            let x = x.add(row * apart).cast::<i32>();
            let first = _mm512_and_si512(_mm512_loadu_si512(x.cast()), magnitude);
            let second = _mm512_and_si512(_mm512_loadu_si512(x.add(16).cast()), magnitude);
            *one = _mm512_max_epu32(first, second);
        }
        let mut two = [_mm512_setzero_si512(); 4];
        for (two, [a, b]) in two.iter_mut().zip(one.as_chunks().0) {
            *two = _mm512_max_epu32(_mm512_unpacklo_epi32(*a, *b), _mm512_unpackhi_epi32(*a, *b));
        }
        let mut four = [_mm512_setzero_si512(); 2];
        for (four, [a, b]) in four.iter_mut().zip(two.as_chunks().0) {
            *four = _mm512_max_epu32(_mm512_unpacklo_epi64(*a, *b), _mm512_unpackhi_epi64(*a, *b));
        }
        // Quarters 0 and 1 of both, quarters 2 and 3 of both; then rows 0 to 3 twice, rows 4 to 7 twice.
        let low = _mm512_shuffle_i32x4::<0b01_00_01_00>(four[0], four[1]);
        let halves = _mm512_max_epu32(low, _mm512_shuffle_i32x4::<0b11_10_11_10>(four[0], four[1]));
        let all = _mm512_max_epu32(halves, _mm512_shuffle_i32x4::<0b10_11_00_01>(halves, halves));
        _mm512_castsi512_si256(_mm512_shuffle_i32x4::<0b00_00_10_00>(all, all))
    }
}

/// Codes: register u has word u of the rows.
///
/// # Safety
/// As [`avx2`].
#[inline(always)]
unsafe fn words_avx2(x: *const f32, apart: usize, factors: &[f32; 8]) -> [__m256i; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        // Packing goes by halves of registers: words 0, 2, 4, 6 of a row, and 1, 3, 5, 7.
        let mut rows = [_mm256_setzero_si256(); 8];
        for (row, words) in rows.iter_mut().enumerate() {
            let (x, factor) = (x.add(row * apart), _mm256_set1_ps(factors[row]));
            let mut parts = [_mm256_setzero_si256(); 4];
            for (i, part) in parts.iter_mut().enumerate() {
                *part = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x.add(i * 8)), factor));
            }
            let [first, second] = [_mm256_packs_epi32(parts[0], parts[1]), _mm256_packs_epi32(parts[2], parts[3])];
            *words = _mm256_packs_epi16(first, second);
        }
        // A word of four rows side by side.
        let mut fours = [[_mm256_setzero_si256(); 2]; 4];
        for (half, [a, b, c, d]) in rows.as_chunks().0.iter().enumerate() {
            let [ab, cd] = [_mm256_unpacklo_epi32(*a, *b), _mm256_unpacklo_epi32(*c, *d)];
            fours[0][half] = _mm256_unpacklo_epi64(ab, cd);
            fours[1][half] = _mm256_unpackhi_epi64(ab, cd);
            let [ab, cd] = [_mm256_unpackhi_epi32(*a, *b), _mm256_unpackhi_epi32(*c, *d)];
            fours[2][half] = _mm256_unpacklo_epi64(ab, cd);
            fours[3][half] = _mm256_unpackhi_epi64(ab, cd);
        }
        let mut words = [_mm256_setzero_si256(); 8];
        for (words, [low, high]) in words.as_chunks_mut::<2>().0.iter_mut().zip(fours) {
            words[0] = _mm256_permute2x128_si256::<0x20>(low, high);
            words[1] = _mm256_permute2x128_si256::<0x31>(low, high);
        }
        words
    }
}

/// Codes: register i has word 2 i of the rows, then word 2 i + 1.
///
/// # Safety
/// As [`avx512`].
#[inline(always)]
unsafe fn words_avx512(x: *const f32, apart: usize, factors: &[f32; 8]) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        // Packing goes by quarters of registers: quarter q has words q and 4 + q of two rows.
        let mut twos = [_mm512_setzero_si512(); 4];
        for (i, words) in twos.iter_mut().enumerate() {
            let mut rows = [_mm512_setzero_si512(); 2];
            for (words, row) in rows.iter_mut().zip(2 * i..) {
                let (x, factor) = (x.add(row * apart), _mm512_set1_ps(factors[row]));
                let first = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), factor));
                let second = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x.add(16)), factor));
                *words = _mm512_packs_epi32(first, second);
            }
            *words = _mm512_packs_epi16(rows[0], rows[1]);
        }
        let mut words = [_mm512_setzero_si512(); 4];
        for (half, words) in words.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // Words q of four rows, or 4 + q.
            let mut fours = [_mm512_setzero_si512(); 2];
            for (fours, [a, b]) in fours.iter_mut().zip(twos.as_chunks().0) {
                let (a, b) = (_mm512_castsi512_ps(*a), _mm512_castsi512_ps(*b));
                *fours = _mm512_castps_si512(match half {
                    0 => _mm512_shuffle_ps::<0b10_00_10_00>(a, b),
                    _ => _mm512_shuffle_ps::<0b11_01_11_01>(a, b),
                });
            }
            let [low, high] = fours;
            words[0] = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high);
            words[1] = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high);
        }
        words
    }
}
