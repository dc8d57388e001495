//! Lanes in one 512-bit register.

use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::{each_column, x86_codes, Kernel, Lanes, RowCodes};

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// Whether this is a Zen 4: there, prefetches took a tenth of the speed of one row. On a Zen 5 they more than double that of types
/// whose lines are not read in order; others were not measured and are taken for one.
fn reads_ahead_alone() -> bool {
    // A fact of the machine, found once.
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        // SAFETY: every x86-64 processor has the instruction. (Newer compilers know that.)
        #[allow(unused_unsafe)]
        let (vendor, version) = unsafe { (__cpuid(0), __cpuid(1).eax) };
        let amd = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD";
        amd && (version >> 8 & 15) + (version >> 20 & 255) == 0x19
    })
}

// SAFETY of every block: the instruction set is there, by the contract of `Lanes`; memory is the caller's
// promise. Shorter comments point here.
impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    const FLOAT_COLUMNS: usize = 8;
    const DOT_COLUMNS: usize = 8;
    const TILE: (usize, usize) = (2, 4);
    const UNPACKED_BYTES: usize = 32 << 10;
    const DIRECT_ROWS: usize = 16;

    fn prefetches(columns: usize) -> bool {
        columns >= 6 || !reads_ahead_alone()
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn enter<K: Kernel<Self>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { kernel.run() }
    }

    #[inline(always)]
    unsafe fn splat_f(value: f32) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_f(to: *mut f32, value: Self::F) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, value) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self::F {
        // SAFETY: see above.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn load_pairs(from: *const u8) -> [Self::F; 2] {
        // SAFETY: see above.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            [_mm512_castsi512_ps(high), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))]
        }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn neg(a: Self::F) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_xor_ps(a, _mm512_set1_ps(-0.0)) }
    }
    #[inline(always)]
    unsafe fn at_least(a: Self::F, least: Self::F) -> Self::F {
        // SAFETY: see above. Where there is a NaN, the result is the second operand.
        unsafe { _mm512_max_ps(least, a) }
    }
    #[inline(always)]
    unsafe fn to_bits(a: Self::F) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_castps_si512(a) }
    }
    #[inline(always)]
    unsafe fn from_bits(a: Self::I) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_castsi512_ps(a) }
    }

    #[inline(always)]
    unsafe fn splat_i(value: i32) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    unsafe fn load_i(from: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_i(to: *mut u8, value: Self::I) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(to.cast(), value) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shl(a: Self::I, count: u32) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(count as i32)) }
    }
    #[inline(always)]
    unsafe fn shr(a: Self::I, count: u32) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(count as i32)) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::I, b: Self::I) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn lookup(codes: Self::I, table: *const u8) -> Self::I {
        // SAFETY: see above.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.cast())), codes) }
    }
    #[inline(always)]
    unsafe fn to_f(a: Self::I) -> Self::F {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    unsafe fn round_codes(values: &[f32; 32], factor: f32) -> ([i32; 8], [i32; 2]) {
        // SAFETY: see above; the arrays have 32 values and 32 bytes.
        unsafe {
            let factor = _mm512_set1_ps(factor);
            // No closures, which would lose the instruction set where they are not inlined.
            let first = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values.as_ptr()), factor));
            let second = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values.as_ptr().add(16)), factor));
            let bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
            let mut words = [0i32; 8];
            _mm256_storeu_si256(words.as_mut_ptr().cast(), bytes);
            // A word's sum per lane, then that of each half's four.
            let sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
            let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b01_00_11_10>(sums));
            let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b10_11_00_01>(sums));
            (words, [_mm256_cvtsi256_si32(sums), _mm256_extract_epi32::<4>(sums)])
        }
    }

    #[inline(always)]
    unsafe fn quantize_rows(x: *const f32, apart: usize, codes: *mut i32) -> Option<RowCodes> {
        // SAFETY: passed on.
        unsafe { x86_codes::avx512(x, apart, codes) }
    }

    #[inline(always)]
    unsafe fn dot<const C: usize, const W: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32>(
        units: *const Self::I,
        words: *const i32,
        starts: *const i32,
    ) -> [Self::I; W] {
        // SAFETY: passed on.
        let [out] = unsafe { Self::dots::<1, C, W, SUBS, HAS_MIN, BITS>(units, 0, words, starts) };
        out
    }

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
        // SAFETY: see above. `vpdpbusd` does not saturate: any codes are exact.
        unsafe {
            let mut out = [[_mm512_setzero_si512(); W]; P];
            if !HAS_MIN {
                each_column!(W, COLUMN => {
                    let start = _mm512_set1_epi32(*starts.add(COLUMN));
                    for out in &mut out {
                        out[COLUMN] = start;
                    }
                });
            }
            // Unit by unit: the sums are as many chains as hide the latency of a product.
            for u in 0..8 / SUBS {
                let mut unit = [_mm512_setzero_si512(); P];
                for (p, unit) in unit.iter_mut().enumerate() {
                    *unit = _mm512_loadu_si512(units.wrapping_byte_add(p * apart).wrapping_add(u).cast());
                }
                each_column!(W, COLUMN => {
                    let word = _mm512_set1_epi32(*words.add(u * C + COLUMN));
                    for (out, unit) in out.iter_mut().zip(unit) {
                        out[COLUMN] = _mm512_dpbusd_epi32(out[COLUMN], unit, word);
                    }
                });
            }
            out
        }
    }
}
