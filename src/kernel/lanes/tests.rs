//! Every operation of every instruction set that runs here against the portable lanes, bit for bit.

use std::any::TypeId;

use super::{each_part, round_codes, Kernel, Lanes, Portable, SMALLEST};
use crate::kernel::KernelLevel;
use crate::testing::normal;

#[repr(C, align(64))]
struct Units([u8; 512]);

/// All operations on fixed operands but the dot products; the lanes of each result follow those before.
struct Operations<'a> {
    results: &'a mut Vec<u32>,
}

/// One dot product. A kernel each: all in one would be the longest function of the tests to compile by far.
struct Dot<const C: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32> {
    units: *const Units,
    words: *const i32,
    starts: *const i32,
    /// 64 bytes per column.
    out: *mut u8,
}

/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn put_i<V: Lanes>(results: &mut Vec<u32>, value: V::I) {
    let mut lanes = [0u8; 64];
    // SAFETY: 64 bytes; the rest is the caller's promise.
    unsafe { V::store_i(lanes.as_mut_ptr(), value) };
    results.extend(lanes.as_chunks::<4>().0.iter().map(|lane| u32::from_le_bytes(*lane)));
}

impl<V: Lanes> Kernel<V> for Operations<'_> {
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the operands hold what each operation reads; the rest is the caller's promise.
        unsafe {
            let put_f = |results: &mut Vec<u32>, value: V::F| {
                let mut lanes = [0f32; 16];
                V::store_f(lanes.as_mut_ptr(), value);
                results.extend(lanes.map(f32::to_bits));
            };
            let out = self.results;
            // One lane further than they begin: no alignment.
            let floats: [f32; 17] = std::array::from_fn(|i| (i as f32 - 7.3) * 1.7f32.powi(i as i32 - 8));
            let others: [f32; 17] = std::array::from_fn(|i| 1.0 / (i as f32 * 3.0 - 20.1));
            let (a, b) = (V::load_f(floats.as_ptr().add(1)), V::load_f(others.as_ptr().add(1)));
            for value in [V::splat_f(-1.25), V::mul(a, b), V::add(a, b), V::fma(a, b, V::splat_f(0.1)), V::neg(a)] {
                put_f(out, value);
            }
            put_f(out, V::neg(V::splat_f(0.0)));
            put_f(out, V::at_least(a, b));
            put_f(out, V::at_least(V::splat_f(f32::NAN), b));
            // Zeros, subnormal, smallest, largest and infinite numbers, and the same bits as bfloat16.
            let halves = [0u16, 0x8000, 1, 0x83ff, 0x400, 0x7bff, 0x7c00, 0xfc00, 0x3c00, 0xb555, 0x1234, 0x4321]
                .iter()
                .chain(&[0x0042, 0x8f01, 0x6789, 0xe0e0])
                .flat_map(|half| half.to_le_bytes())
                .collect::<Vec<u8>>();
            put_f(out, V::load_f16(halves.as_ptr()));
            put_f(out, V::load_bf16(halves.as_ptr()));
            let pairs: Vec<u8> = halves.iter().chain(&halves).chain(&halves).copied().collect();
            for half in V::load_pairs(pairs.as_ptr().add(1)) {
                put_f(out, half);
            }

            let bytes: [u8; 65] = std::array::from_fn(|i| (i * 89 + 131) as u8);
            let (x, y) = (V::load_i(bytes.as_ptr().add(1)), V::splat_i(0x0180_ff7f_u32 as i32));
            let (unsigned, signed) = (V::load_u8(bytes.as_ptr().add(1)), V::load_i8(bytes.as_ptr().add(1)));
            for value in [x, y, unsigned, signed, V::and(x, y), V::or(x, y), V::sub(x, y)] {
                put_i::<V>(out, value);
            }
            for count in [0, 1, 4, 8, 24, 31] {
                put_i::<V>(out, V::shl(x, count));
                put_i::<V>(out, V::shr(x, count));
            }
            let table: [u8; 17] = std::array::from_fn(|i| (i * 37 + 200) as u8);
            put_i::<V>(out, V::lookup(V::and(x, V::splat_i(0x0f0f_0f0f)), table.as_ptr().add(1)));
            put_f(out, V::to_f(signed));
            put_i::<V>(out, V::to_bits(V::to_f(signed)));
            put_f(out, V::from_bits(V::shr(x, 9)));
            put_f(out, V::to_f(V::sub(unsigned, V::splat_i(1 << 24))));
        }
    }
}

impl<V: Lanes, const C: usize, const SUBS: usize, const HAS_MIN: bool, const BITS: u32> Kernel<V>
    for Dot<C, SUBS, HAS_MIN, BITS>
{
    /// # Safety
    /// The operands hold what the product reads, and `out` takes its results.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe {
            let units = self.units.cast();
            macro_rules! part {
                ($width:expr, $first:expr) => {{
                    let (words, starts) = (self.words.add($first), self.starts.add($first));
                    let dots = V::dot::<C, { $width }, SUBS, HAS_MIN, BITS>(units, words, starts);
                    for (c, dot) in dots.into_iter().enumerate() {
                        V::store_i(self.out.add(($first + c) * 64), dot);
                    }
                }};
            }
            each_part!(V::DOT_COLUMNS, C, part);
        }
    }
}

/// Units, words, starts, and room for results.
type Product<'a> = &'a dyn Fn(*const Units, *const i32, *const i32, *mut u8);

/// Gives a product with some columns any codes and words, with the largest of both signs in one place, and starts.
fn with_operands(bits: u32, columns: usize, results: &mut Vec<u32>, product: Product<'_>) {
    let largest = ((1u32 << bits) - 1) as u8;
    let units = Units(std::array::from_fn(|i| if i % 64 < 12 { largest } else { (i * 173) as u8 & largest }));
    let word = |i: usize| match i % columns {
        0 => [127; 4],
        1 => [129; 4],
        _ => [3u8, 50, 91, 200].map(|b| b.wrapping_mul(i as u8).max(1)).map(|b| if b == 128 { 7 } else { b }),
    };
    let words: Vec<i32> = (0..8 * columns).map(|i| i32::from_le_bytes(word(i))).collect();
    // Codes of 8 bits are 128 too large.
    let bytes = |c: usize| words.iter().skip(c).step_by(columns).flat_map(|word| word.to_le_bytes());
    let sum = |c: usize| bytes(c).map(|byte| i32::from(byte as i8)).sum::<i32>();
    let starts: Vec<i32> =
        (0..columns).map(|c| if bits == 8 { -128 * sum(c) } else { 5000 - 123_456 * c as i32 }).collect();
    let mut out = vec![0u8; 64 * columns];
    product(&units, words.as_ptr(), starts.as_ptr(), out.as_mut_ptr());
    results.extend(out.as_chunks::<4>().0.iter().map(|lane| u32::from_le_bytes(*lane)));
}

/// # Safety
/// The machine has the instruction set.
unsafe fn operations<V: Lanes>() -> Vec<u32> {
    let mut results = Vec::new();
    // SAFETY: the caller's promise.
    unsafe { V::enter(Operations { results: &mut results }) };
    results
}

/// # Safety
/// The machine has the instruction set.
unsafe fn dots<V: Lanes>() -> Vec<u32> {
    let mut results = Vec::new();
    macro_rules! dots {
        ($($subs:literal $min:literal $bits:literal)*) => {
            $( dots!(@ $subs, $min, $bits, 1 2 3 4 5 6 7 8); )*
        };
        (@ $subs:literal, $min:literal, $bits:literal, $($columns:literal)*) => {
            $( with_operands($bits, $columns, &mut results, &|units, words, starts, out| {
                let dot = Dot::<$columns, $subs, $min, $bits> { units, words, starts, out };
                // SAFETY: eight units, eight words per column and a start for each; the rest is the caller's promise.
                unsafe { V::enter(dot) }
            }); )*
        };
    }
    dots!(1 false 4  1 false 5  1 false 8  1 true 4  1 true 5  2 true 4  2 false 4  2 false 6);
    results
}

/// Compares the results of a function over the lanes for all lanes that run here.
macro_rules! compare {
    ($results:ident) => {
        // SAFETY: needs no instruction set.
        let expected = unsafe { $results::<Portable>() };
        let check = |name: &str, actual: Vec<u32>| {
            assert_eq!(actual.len(), expected.len());
            for (i, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                assert_eq!(actual, expected, "{name}: lane {} of result {}", i % 16, i / 16);
            }
            println!("{name}: {} results of 16 lanes", expected.len() / 16);
        };
        check("portable", expected.clone());
        let available: Vec<KernelLevel> = KernelLevel::available().collect();
        #[cfg(target_arch = "x86_64")]
        {
            use super::avx2::Avx2;
            use super::avx2_dots::Pairs;
            use super::avx_vnni::{has_vnni, Vnni};
            if available.contains(&KernelLevel::Avx2) {
                // SAFETY: it is available.
                check("avx2", unsafe { $results::<Avx2<Pairs>>() });
                if has_vnni() {
                    // SAFETY: it is available.
                    check("avx2+vnni", unsafe { $results::<Avx2<Vnni>>() });
                }
            }
            if available.contains(&KernelLevel::Avx512) {
                // SAFETY: it is available.
                check("avx512", unsafe { $results::<super::Avx512>() });
            }
        }
        #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
        {
            use super::neon::{with_neon, Variant};
            assert!(available.contains(&KernelLevel::Neon));
            let all = [Variant::Baseline, Variant::Dotprod, Variant::I8mm];
            // Each has what those before it have.
            let best = all.into_iter().position(|variant| variant == Variant::detect()).unwrap();
            for variant in &all[..=best] {
                // SAFETY: it is available.
                check(variant.as_str(), with_neon!(*variant, V => unsafe { $results::<V>() }));
            }
        }
    };
}

#[test]
fn every_operation_equals_the_portable_one() {
    compare!(operations);
}

/// # Safety
/// The machine has the instruction set.
unsafe fn codes<V: Lanes>() -> Vec<u32> {
    struct Codes<'a>(&'a mut Vec<u32>);
    impl<V: Lanes> Kernel<V> for Codes<'_> {
        /// # Safety
        /// The machine has the instruction set.
        #[inline(always)]
        unsafe fn run(self) {
            for factor in [1.0, 0.5, 63.5, -1.0] {
                // Integers, ties of both parities, and numbers beside them; the largest is 127.
                let values: [f32; 32] =
                    std::array::from_fn(|i| (i as f32 * 8.25 - 128.0).clamp(-127.0, 127.0) / factor);
                // SAFETY: the caller's promise.
                let (words, sums) = unsafe { V::round_codes(&values, factor) };
                self.0.extend(words.into_iter().chain(sums).map(|word| word as u32));
            }
        }
    }
    let mut results = Vec::new();
    // SAFETY: the caller's promise.
    unsafe { V::enter(Codes(&mut results)) };
    results
}

#[test]
fn codes_are_rounded_as_by_the_portable_lanes() {
    compare!(codes);
    // SAFETY: needs no instruction set.
    let codes = unsafe { codes::<Portable>() };
    // -127, -119.75, -111.5 and -103.25; then 8.25 times 12 to 15 less 128, and the sum of the first half.
    assert_eq!(codes[..1], [u32::from_le_bytes([-127i8, -120, -112, -103].map(|code| code as u8))]);
    assert_eq!(codes[3], u32::from_le_bytes([-29i8, -21, -12, -4].map(|code| code as u8)));
    assert_eq!(codes[8] as i32, -1057);
}

/// What [`Lanes::quantize_rows`] gives where it gives something, else what is computed row by row.
///
/// # Safety
/// The machine has the instruction set.
unsafe fn row_codes<V: Lanes>() -> Vec<u32> {
    /// Rows beside each other, with a gap.
    const APART: usize = 37;
    struct Rows<'a>(&'a [f32], &'a mut Vec<u32>);
    impl<V: Lanes> Kernel<V> for Rows<'_> {
        /// # Safety
        /// The machine has the instruction set.
        #[inline(always)]
        unsafe fn run(self) {
            let Rows(x, results) = self;
            let mut codes = [7i32; 64];
            // SAFETY: `x` has eight rows so far apart; the rest is the caller's promise.
            let quantized = unsafe { V::quantize_rows(x.as_ptr(), APART, codes.as_mut_ptr()) };
            // x86 has the way, and goes it unless a value is not finite; others never do.
            let finite = (0..8).all(|row| x[row * APART..][..32].iter().all(|x| x.is_finite()));
            let goes = cfg!(target_arch = "x86_64") && TypeId::of::<V>() != TypeId::of::<Portable>();
            assert_eq!(quantized.is_some(), goes && finite);
            let (scales, sums) = quantized.unwrap_or_else(|| {
                assert_eq!(codes, [7; 64], "nothing is written");
                let mut out = ([0f32; 8], [[0i32; 8]; 2]);
                for row in 0..8 {
                    let x: &[f32; 32] = x[row * APART..].first_chunk().unwrap();
                    let largest = f32::from_bits(x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap());
                    let mut words = ([0i32; 8], [0i32; 2]);
                    if !largest.is_finite() {
                        out.0[row] = f32::NAN;
                    } else if largest >= SMALLEST {
                        (out.0[row], words) = (largest / 127.0, round_codes(x, 127.0 / largest));
                    }
                    (0..8).for_each(|u| codes[u * 8 + row] = words.0[u]);
                    (0..2).for_each(|half| out.1[half][row] = words.1[half]);
                }
                out
            });
            results.extend(scales.map(f32::to_bits));
            results.extend(codes.into_iter().chain(sums.into_iter().flatten()).map(|word| word as u32));
        }
    }
    let mut x: Vec<f32> = normal(5, "rows", 7 * APART + 32);
    // Ties, the border of what counts as zero from both sides, subnormal and huge numbers, zeros, a largest that is negative.
    (0..32).for_each(|i| x[i] = (i as f32 - 16.0) * 0.5);
    x[3] = 127.0;
    x[APART..][..32].fill(1.0e-30f32.next_down());
    x[2 * APART..][..32].fill(1.0e-30);
    x[3 * APART..][..32].fill(-1e-40);
    x[4 * APART..][..32].fill(-0.0);
    x[5 * APART..][..32].iter_mut().for_each(|x| *x *= 1e38);
    x[6 * APART + 31] = -300.0;
    let mut results = Vec::new();
    for broken in
        [None, Some((0, f32::INFINITY)), Some((7 * APART + 31, f32::NAN)), Some((APART + 5, f32::NEG_INFINITY))]
    {
        let mut x = x.clone();
        broken.into_iter().for_each(|(at, value)| x[at] = value);
        // SAFETY: the caller's promise.
        unsafe { V::enter(Rows(&x, &mut results)) };
    }
    results
}

#[test]
fn eight_rows_are_quantized_as_one_by_one() {
    compare!(row_codes);
}

#[test]
fn every_dot_product_equals_the_portable_one() {
    compare!(dots);
}
