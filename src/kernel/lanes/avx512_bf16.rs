//! `vdpbf16ps`: sixteen sums of two bf16 products in one instruction.

use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::pairs::{PairKernel, PairLanes};
use super::{Avx512, Lanes};
use crate::kernel::KernelLevel;

/// Whether this machine has the instruction, and it rounds as [`pairs`](super::pairs) says. Manuals leave room for
/// other orders; a processor that has one is served without it.
pub(crate) fn has_bf16() -> bool {
    // A fact of the machine, found once.
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        KernelLevel::Avx512.is_available() && std::arch::is_x86_feature_detected!("avx512bf16") && {
            let (a, b, sums) = probes();
            let mut out = [[0f32; 16]; PROBES];
            // SAFETY: the instructions are there (just asked).
            unsafe { Bf16::enter(Probe { a: &a, b: &b, sums: &sums, out: &mut out }) };
            let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
            (0..PROBES).all(|i| (0..16).all(|lane| same(expected(a[i][lane], b[i][lane], sums[i][lane]), out[i][lane])))
        }
    })
}

/// Vectors that [`has_bf16`] multiplies.
const PROBES: usize = 32;

type Probes<T> = [[T; 16]; PROBES];

/// Operands whose sums differ between the possible orders and ways of rounding: of like magnitude, and cancelling; and
/// those whose product is too large for an f32 while its sum is not, those that overflow, and infinities.
fn probes() -> (Probes<u32>, Probes<u32>, Probes<f32>) {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u32
    };
    let (mut a, mut b, mut sums) = ([[0; 16]; PROBES], [[0; 16]; PROBES], [[0.0; 16]; PROBES]);
    for i in 0..PROBES {
        for lane in 0..16 {
            // Random signs and fractions; exponents within 8 of 2^0.
            let mut half = || (next() & 0x807f) | (127 - 8 + next() % 16) << 7;
            let (x, y) = ([half(), half()], [half(), half()]);
            (a[i][lane], b[i][lane]) = (x[0] << 16 | x[1], y[0] << 16 | y[1]);
            let near = expected(a[i][lane], b[i][lane], 0.0);
            sums[i][lane] = match i % 4 {
                0 => f32::from_bits(next() & 0x807f_ffff | (127 - 8 + next() % 16) << 23),
                1 => -near,
                2 => near * 4096.0,
                _ => -f32::from_bits(x[0] << 16) * f32::from_bits(y[0] << 16),
            };
        }
    }
    let (half, huge, infinite) = (0x5f80, 0x7f7f, 0x7f80); // 2^64, the largest, and what is none
    let edges =
        [(half, half, -(127f32.exp2())), (huge, huge, 0.0), (infinite, 0, 1.0), (infinite, half, f32::NEG_INFINITY)];
    for (lane, (x, y, sum)) in edges.into_iter().enumerate() {
        for (at, shift, sign) in [(0, 16, 0), (4, 0, 0), (8, 16, 0x8000), (12, 0, 0x8000)] {
            let lane = at + lane;
            (a[0][lane], b[0][lane]) = (x << shift, (y | sign) << shift);
            sums[0][lane] = if sign == 0 { sum } else { -sum };
        }
    }
    (a, b, sums)
}

fn expected(a: u32, b: u32, sum: f32) -> f32 {
    let [high, low] =
        [0, 16].map(|shift| (f32::from_bits(a << shift & 0xffff_0000), f32::from_bits(b << shift & 0xffff_0000)));
    low.0.mul_add(low.1, high.0.mul_add(high.1, sum))
}

struct Probe<'a> {
    a: &'a Probes<u32>,
    b: &'a Probes<u32>,
    sums: &'a Probes<f32>,
    out: &'a mut Probes<f32>,
}

impl PairKernel<Bf16> for Probe<'_> {
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn run(self) {
        for i in 0..PROBES {
            // SAFETY: vectors of 64 bytes each; the rest is the caller's promise.
            unsafe {
                let (a, b) = (Bf16::load(self.a[i].as_ptr().cast()), Bf16::load(self.b[i].as_ptr().cast()));
                let sums = Avx512::load_f(self.sums[i].as_ptr());
                Avx512::store_f(self.out[i].as_mut_ptr(), Bf16::dot(a, b, sums));
            }
        }
    }
}

/// Pairs in one 512-bit register.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

// SAFETY of every block: the instruction set is there, by the contract of `PairLanes`; memory is the caller's promise.
impl PairLanes for Bf16 {
    type V = Avx512;
    type Pairs = __m512i;
    const PACKED: bool = true;
    const VECTORS: usize = 2;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
    unsafe fn enter<K: PairKernel<Self>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { kernel.run() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self::Pairs {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_columns(from: *const u8) -> Self::Pairs {
        const WORDS: [u16; 32] = {
            let (mut words, mut lane) = ([0; 32], 0);
            while lane < 16 {
                (words[2 * lane], words[2 * lane + 1]) = (16 + lane as u16, lane as u16);
                lane += 1;
            }
            words
        };
        // SAFETY: see above.
        unsafe { _mm512_permutexvar_epi16(_mm512_loadu_si512(WORDS.as_ptr().cast()), Self::load(from)) }
    }
    #[inline(always)]
    unsafe fn load_column(from: *const u8) -> Self::Pairs {
        // SAFETY: see above.
        unsafe { _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn splat(factors: *const f32, index: usize) -> Self::Pairs {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(factors.cast::<i32>().add(index).read()) }
    }
    #[inline(always)]
    unsafe fn dot(a: Self::Pairs, b: Self::Pairs, sums: __m512) -> __m512 {
        // SAFETY: see above; the types have the same bits.
        unsafe {
            _mm512_dpbf16_ps(
                sums,
                std::mem::transmute::<__m512i, __m512bh>(a),
                std::mem::transmute::<__m512i, __m512bh>(b),
            )
        }
    }
}
