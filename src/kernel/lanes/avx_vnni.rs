//! The dot products of AVX-VNNI for AVX2's lanes. Apart from them, since the compiler's units of work follow modules, and
//! those of the kernels are its longest.

use std::arch::x86_64::*;

use super::avx2::{broadcast, Avx2, DotProduct};
use super::{each_column, Kernel};

/// Whether this machine has AVX-VNNI.
pub(crate) fn has_vnni() -> bool {
    std::arch::is_x86_feature_detected!("avxvnni")
}

/// `vpdpbusd` of AVX-VNNI: sums in 32 bits, exact for any codes.
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

impl DotProduct for Vnni {
    const SIGNED: bool = false;

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn enter<K: Kernel<Avx2<Self>>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { kernel.run() }
    }

    #[inline(always)]
    unsafe fn dot<const C: usize, const W: usize, const SUBS: usize, const BITS: u32>(
        units: *const [__m256i; 2],
        words: *const i32,
    ) -> [[__m256i; 2]; W] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); 2]; W];
            each_column!(W, COLUMN => {
                for u in 0..8 / SUBS {
                    let (unit, word) = (*units.add(u), broadcast(words.add(u * C + COLUMN)));
                    let [low, high] = sums[COLUMN];
                    sums[COLUMN] =
                        [_mm256_dpbusd_avx_epi32(low, unit[0], word), _mm256_dpbusd_avx_epi32(high, unit[1], word)];
                }
            });
            sums
        }
    }
}
