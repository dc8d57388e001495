//! [`Lanes::quantize_rows`](super::Lanes::quantize_rows) of x86: eight rows at a time, so that what is found out of a row, its
//! largest magnitude and the sums of its codes, takes few instructions, and that words come out in the order of rows.

use std::arch::x86_64::*;

use super::RowCodes;
use crate::kernel::prepare::SMALLEST;

/// # Safety
/// As [`Lanes::quantize_rows`](super::Lanes::quantize_rows), inside a kernel with AVX2.
#[inline(always)]
pub(super) unsafe fn avx2(x: *const f32, apart: usize, codes: *mut i32) -> Option<RowCodes> {
    // SAFETY: the caller's promise.
    unsafe {
        let magnitude = _mm256_set1_epi32(i32::MAX);
        // The largest magnitude of each row, by bits: per lane, then what each 128 bits of four rows have.
        let mut lanes = [_mm256_setzero_si256(); 8];
        for (row, lanes) in lanes.iter_mut().enumerate() {
            let x = x.add(row * apart).cast::<i32>();
            for part in 0..4 {
                let part = _mm256_and_si256(_mm256_loadu_si256(x.add(part * 8).cast()), magnitude);
                *lanes = _mm256_max_epu32(*lanes, part);
            }
        }
        let mut twos = [_mm256_setzero_si256(); 4];
        for (i, twos) in twos.iter_mut().enumerate() {
            let [a, b] = [lanes[2 * i], lanes[2 * i + 1]];
            *twos = _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        }
        let mut fours = [_mm256_setzero_si256(); 2];
        for (i, fours) in fours.iter_mut().enumerate() {
            let [a, b] = [twos[2 * i], twos[2 * i + 1]];
            *fours = _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        }
        let low = _mm256_permute2x128_si256::<0x20>(fours[0], fours[1]);
        let largest = _mm256_max_epu32(low, _mm256_permute2x128_si256::<0x31>(fours[0], fours[1]));
        let finite = _mm256_set1_epi32(f32::MAX.to_bits() as i32);
        if _mm256_movemask_epi8(_mm256_cmpgt_epi32(largest, finite)) != 0 {
            return None;
        }
        let largest = _mm256_castsi256_ps(largest);
        let counts = _mm256_cmp_ps::<_CMP_NLT_UQ>(largest, _mm256_set1_ps(SMALLEST));
        let most = _mm256_set1_ps(127.0);
        let (mut factors, mut scales) = ([0f32; 8], [0f32; 8]);
        _mm256_storeu_ps(factors.as_mut_ptr(), _mm256_and_ps(_mm256_div_ps(most, largest), counts));
        _mm256_storeu_ps(scales.as_mut_ptr(), _mm256_and_ps(_mm256_div_ps(largest, most), counts));
        // Packing goes by 128 bits: there words 0, 2, 4, 6 of a row, or 1, 3, 5, 7.
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
        // Four rows of a word side by side.
        let mut fours = [[_mm256_setzero_si256(); 2]; 4];
        for half in 0..2 {
            let [a, b, c, d] = [rows[4 * half], rows[4 * half + 1], rows[4 * half + 2], rows[4 * half + 3]];
            let [ab, cd] = [_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)];
            fours[0][half] = _mm256_unpacklo_epi64(ab, cd);
            fours[1][half] = _mm256_unpackhi_epi64(ab, cd);
            let [ab, cd] = [_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)];
            fours[2][half] = _mm256_unpacklo_epi64(ab, cd);
            fours[3][half] = _mm256_unpackhi_epi64(ab, cd);
        }
        let (one, two) = (_mm256_set1_epi8(1), _mm256_set1_epi16(1));
        let mut sums = [[0i32; 8]; 2];
        for (half, sums) in sums.iter_mut().enumerate() {
            let mut sum = _mm256_setzero_si256();
            for (i, [low, high]) in fours[2 * half..2 * half + 2].iter().enumerate() {
                let words =
                    [_mm256_permute2x128_si256::<0x20>(*low, *high), _mm256_permute2x128_si256::<0x31>(*low, *high)];
                for (u, word) in words.into_iter().enumerate() {
                    _mm256_storeu_si256(codes.add((4 * half + 2 * i + u) * 8).cast(), word);
                    // Eight codes at most: they fit 16 bits.
                    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(one, word));
                }
            }
            _mm256_storeu_si256(sums.as_mut_ptr().cast(), _mm256_madd_epi16(sum, two));
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
        let magnitude = _mm512_set1_epi32(i32::MAX);
        // The largest magnitude of each row, by bits: per lane, then what each 128 bits of four rows have.
        let mut lanes = [_mm512_setzero_si512(); 8];
        for (row, lanes) in lanes.iter_mut().enumerate() {
            let x = x.add(row * apart).cast::<i32>();
            let first = _mm512_and_si512(_mm512_loadu_si512(x.cast()), magnitude);
            let second = _mm512_and_si512(_mm512_loadu_si512(x.add(16).cast()), magnitude);
            *lanes = _mm512_max_epu32(first, second);
        }
        let mut twos = [_mm512_setzero_si512(); 4];
        for (i, twos) in twos.iter_mut().enumerate() {
            let [a, b] = [lanes[2 * i], lanes[2 * i + 1]];
            *twos = _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        }
        let mut fours = [_mm512_setzero_si512(); 2];
        for (i, fours) in fours.iter_mut().enumerate() {
            let [a, b] = [twos[2 * i], twos[2 * i + 1]];
            *fours = _mm512_max_epu32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
        }
        let low = _mm512_shuffle_i32x4::<0b01_00_01_00>(fours[0], fours[1]);
        let halves = _mm512_max_epu32(low, _mm512_shuffle_i32x4::<0b11_10_11_10>(fours[0], fours[1]));
        let all = _mm512_max_epu32(halves, _mm512_shuffle_i32x4::<0b10_11_00_01>(halves, halves));
        let all = _mm512_shuffle_i32x4::<0b00_00_10_00>(all, all);
        let largest = _mm512_castsi512_si256(all);
        if _mm256_cmp_epu32_mask::<{ _MM_CMPINT_NLT }>(largest, _mm256_set1_epi32(f32::INFINITY.to_bits() as i32)) != 0
        {
            return None;
        }
        let largest = _mm256_castsi256_ps(largest);
        let counts = _mm256_cmp_ps_mask::<_CMP_NLT_UQ>(largest, _mm256_set1_ps(SMALLEST));
        let most = _mm256_set1_ps(127.0);
        let mut factors = [0f32; 8];
        _mm256_storeu_ps(factors.as_mut_ptr(), _mm256_maskz_div_ps(counts, most, largest));
        let mut scales = [0f32; 8];
        _mm256_storeu_ps(scales.as_mut_ptr(), _mm256_maskz_div_ps(counts, largest, most));
        // Packing goes by 128 bits: there words L and 4 + L of two rows.
        let mut words = [_mm512_setzero_si512(); 4];
        for (i, words) in words.iter_mut().enumerate() {
            let mut halves = [_mm512_setzero_si512(); 2];
            for (half, row) in halves.iter_mut().zip(2 * i..) {
                let (x, factor) = (x.add(row * apart), _mm512_set1_ps(factors[row]));
                let first = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), factor));
                let second = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x.add(16)), factor));
                *half = _mm512_packs_epi32(first, second);
            }
            *words = _mm512_packs_epi16(halves[0], halves[1]);
        }
        let mut sums = [[0i32; 8]; 2];
        for (half, sums) in sums.iter_mut().enumerate() {
            let mut rows = [_mm512_setzero_ps(); 2];
            for (i, rows) in rows.iter_mut().enumerate() {
                let [a, b] = [_mm512_castsi512_ps(words[2 * i]), _mm512_castsi512_ps(words[2 * i + 1])];
                *rows = match half {
                    0 => _mm512_shuffle_ps::<0b10_00_10_00>(a, b),
                    _ => _mm512_shuffle_ps::<0b11_01_11_01>(a, b),
                };
            }
            let [low, high] = rows.map(|rows| _mm512_castps_si512(rows));
            let first = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high);
            let second = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high);
            let to = codes.add(half * 32);
            _mm512_storeu_si512(to.cast(), first);
            _mm512_storeu_si512(to.add(16).cast(), second);
            let ones = _mm512_set1_epi8(1);
            let all = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, first), ones, second);
            let all = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64::<1>(all));
            _mm256_storeu_si256(sums.as_mut_ptr().cast(), all);
        }
        Some((scales, sums))
    }
}
