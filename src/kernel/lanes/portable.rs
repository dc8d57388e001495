//! Lanes as arrays: the tests' proof that the kernels' logic does not depend on the instruction set.

use half::{bf16, f16};

use super::{Kernel, Lanes};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn map<A: Copy, B: Copy + Default>(a: [A; 16], f: impl Fn(A) -> B) -> [B; 16] {
    let mut out = [B::default(); 16];
    for (out, a) in out.iter_mut().zip(a) {
        *out = f(a);
    }
    out
}

#[inline(always)]
fn zip<A: Copy, B: Copy + Default>(a: [A; 16], b: [A; 16], f: impl Fn(A, A) -> B) -> [B; 16] {
    let mut out = [B::default(); 16];
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
    out
}

/// # Safety
/// 16 elements of T are readable.
#[inline(always)]
unsafe fn read<T: Copy>(from: *const u8) -> [T; 16] {
    // SAFETY: the caller's promise; no alignment is needed.
    unsafe { from.cast::<[T; 16]>().read_unaligned() }
}

/// One column of a dot product. Not inlined: it is long, and kernels call it with many parameters.
///
/// # Safety
/// `units` holds `count` vectors; `words` has a word for each, `stride` apart.
#[inline(never)]
unsafe fn column(units: *const [u32; 16], count: usize, words: *const i32, stride: usize, start: i32) -> [u32; 16] {
    let mut sums = [start; 16];
    for u in 0..count {
        // SAFETY: the caller's promise.
        let (unit, word) = unsafe { (*units.add(u), (*words.add(u * stride)).to_le_bytes()) };
        for (sum, codes) in sums.iter_mut().zip(unit) {
            for (code, other) in codes.to_le_bytes().into_iter().zip(word) {
                *sum += i32::from(code) * i32::from(other as i8);
            }
        }
    }
    sums.map(|sum| sum as u32)
}

/// Not inlined where it would become sixteen calls.
#[cfg_attr(target_arch = "aarch64", inline(always))]
#[cfg_attr(not(target_arch = "aarch64"), inline(never))]
fn fma(a: &[f32; 16], b: &[f32; 16], c: &mut [f32; 16]) {
    for ((c, a), b) in c.iter_mut().zip(a).zip(b) {
        *c = a.mul_add(*b, *c);
    }
}

// SAFETY of every function: those without pointers have no requirement here; the others pass the caller's on.
impl Lanes for Portable {
    type F = [f32; 16];
    type I = [u32; 16];
    const FLOAT_COLUMNS: usize = 4;
    const DOT_COLUMNS: usize = 4;
    // As many as anybody takes, so that tests see them on every machine.
    const TILE: (usize, usize) = (2, 4);
    const DIRECT_ROWS: usize = 0;

    fn prefetches(_: usize) -> bool {
        false
    }

    unsafe fn enter<K: Kernel<Self>>(kernel: K) {
        // SAFETY: passed on.
        unsafe { kernel.run() }
    }

    #[inline(always)]
    unsafe fn splat_f(value: f32) -> Self::F {
        [value; 16]
    }
    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> Self::F {
        // SAFETY: passed on.
        unsafe { read(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_f(to: *mut f32, value: Self::F) {
        // SAFETY: passed on.
        unsafe { to.cast::<Self::F>().write_unaligned(value) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self::F {
        // SAFETY: passed on.
        map(unsafe { read::<u16>(from) }, |bits| f16::from_bits(u16::from_le(bits)).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self::F {
        // SAFETY: passed on.
        map(unsafe { read::<u16>(from) }, |bits| bf16::from_bits(u16::from_le(bits)).to_f32())
    }
    #[inline(always)]
    unsafe fn load_pairs(from: *const u8) -> [Self::F; 2] {
        // SAFETY: passed on.
        let pairs = map(unsafe { read::<u32>(from) }, u32::from_le);
        [map(pairs, |pair| f32::from_bits(pair & 0xffff_0000)), map(pairs, |pair| f32::from_bits(pair << 16))]
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut out = c;
        fma(&a, &b, &mut out);
        out
    }
    #[inline(always)]
    unsafe fn neg(a: Self::F) -> Self::F {
        map(a, |a| -a)
    }
    #[inline(always)]
    unsafe fn at_least(a: Self::F, least: Self::F) -> Self::F {
        std::array::from_fn(|i| if a[i] < least[i] { least[i] } else { a[i] })
    }
    #[inline(always)]
    unsafe fn to_bits(a: Self::F) -> Self::I {
        map(a, f32::to_bits)
    }
    #[inline(always)]
    unsafe fn from_bits(a: Self::I) -> Self::F {
        map(a, f32::from_bits)
    }

    #[inline(always)]
    unsafe fn splat_i(value: i32) -> Self::I {
        [value as u32; 16]
    }
    #[inline(always)]
    unsafe fn load_i(from: *const u8) -> Self::I {
        // SAFETY: passed on.
        map(unsafe { read::<u32>(from) }, u32::from_le)
    }
    #[inline(always)]
    unsafe fn store_i(to: *mut u8, value: Self::I) {
        // SAFETY: passed on.
        unsafe { to.cast::<Self::I>().write_unaligned(map(value, u32::to_le)) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::I {
        // SAFETY: passed on.
        map(unsafe { read::<u8>(from) }, u32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self::I {
        // SAFETY: passed on.
        map(unsafe { read::<i8>(from) }, |byte| i32::from(byte) as u32)
    }
    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn shl(a: Self::I, count: u32) -> Self::I {
        map(a, |a| a << count)
    }
    #[inline(always)]
    unsafe fn shr(a: Self::I, count: u32) -> Self::I {
        map(a, |a| a >> count)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, u32::wrapping_sub)
    }
    #[inline(always)]
    unsafe fn lookup(codes: Self::I, table: *const u8) -> Self::I {
        // SAFETY: passed on.
        let table = unsafe { table.cast::<[u8; 16]>().read_unaligned() };
        map(codes, |codes| u32::from_le_bytes(codes.to_le_bytes().map(|code| table[usize::from(code & 15)])))
    }
    #[inline(always)]
    unsafe fn to_f(a: Self::I) -> Self::F {
        map(a, |a| a as i32 as f32)
    }

    #[inline(always)]
    unsafe fn dot<const C: usize, const W: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32>(
        units: *const Self::I,
        words: *const i32,
        starts: *const i32,
    ) -> [Self::I; W] {
        let mut out = [[0u32; 16]; W];
        for (c, out) in out.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let start = if HAS_MIN { 0 } else { *starts.add(c) };
                *out = column(units, 8 / SUBS, words.add(c), C, start);
            }
        }
        out
    }
}
