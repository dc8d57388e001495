//! Block writers against plain decoders, bounds of their errors, and blocks written by hand.

use half::{bf16, f16};

use super::*;
use crate::testing::{normal, quantize_blocks};

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// One block as floats, by the layouts of ggml.
fn decode(dtype: Dtype, b: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => vec![f32::from_le_bytes(b.try_into().unwrap())],
        Dtype::F16 => vec![half_at(b, 0)],
        Dtype::BF16 => vec![bf16::from_le_bytes([b[0], b[1]]).to_f32()],
        Dtype::Q8_0 => b[2..].iter().map(|&q| half_at(b, 0) * f32::from(q as i8)).collect(),
        Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 => {
            let has_min = matches!(dtype, Dtype::Q4_1 | Dtype::Q5_1);
            let five = matches!(dtype, Dtype::Q5_0 | Dtype::Q5_1);
            let mut at = if has_min { 4 } else { 2 };
            let high = if five { u32::from_le_bytes(b[at..at + 4].try_into().unwrap()) } else { 0 };
            at += if five { 4 } else { 0 };
            let value = |j: usize| {
                let nibble = if j < 16 { b[at + j] & 15 } else { b[at + j - 16] >> 4 };
                let q = i32::from(nibble) + (((high >> j) & 1) << 4) as i32;
                let zero = if has_min { 0 } else { (1 << if five { 5 } else { 4 }) / 2 };
                half_at(b, 0) * (q - zero) as f32 + if has_min { half_at(b, 2) } else { 0.0 }
            };
            (0..32).map(value).collect()
        }
        _ => (0..256).map(|e| decode_k(dtype, b, e)).collect(),
    }
}

/// Element `e` of a block of 256.
fn decode_k(dtype: Dtype, b: &[u8], e: usize) -> f32 {
    let (h, j, l) = (e / 128, e % 128 / 32, e % 32);
    match dtype {
        Dtype::Q2_K => {
            let q = b[16 + 32 * h + l] >> (2 * j) & 3;
            let s = b[e / 16];
            half_at(b, 80) * f32::from(s & 15) * f32::from(q) - half_at(b, 82) * f32::from(s >> 4)
        }
        Dtype::Q3_K => {
            let low = i32::from(b[32 + 32 * h + l] >> (2 * j) & 3);
            let q = low - if b[l] >> (4 * h + j) & 1 == 1 { 0 } else { 4 };
            let (s, i) = (&b[96..108], e / 16);
            let nibble = if i < 8 { s[i] & 15 } else { s[i - 8] >> 4 };
            let scale = i32::from(nibble | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32;
            half_at(b, 108) * scale as f32 * q as f32
        }
        Dtype::Q4_K | Dtype::Q5_K => {
            let (s, i) = (&b[4..16], e / 32);
            let (scale, min) = if i < 4 {
                (s[i] & 63, s[i + 4] & 63)
            } else {
                (s[i + 4] & 15 | s[i - 4] >> 6 << 4, s[i + 4] >> 4 | s[i] >> 6 << 4)
            };
            let (qs, high) = if dtype == Dtype::Q5_K { (48, b[16 + l] >> i & 1) } else { (16, 0) };
            let byte = b[qs + 32 * (e / 64) + l];
            let q = (if i % 2 == 0 { byte & 15 } else { byte >> 4 }) | high << 4;
            half_at(b, 0) * f32::from(scale) * f32::from(q) - half_at(b, 2) * f32::from(min)
        }
        _ => {
            let byte = b[64 * h + e % 64];
            let low = if e % 128 < 64 { byte & 15 } else { byte >> 4 };
            let high = b[128 + 32 * h + l] >> (2 * j) & 3;
            half_at(b, 208) * f32::from(b[192 + e / 16] as i8) * (i32::from(low | high << 4) - 32) as f32
        }
    }
}

fn round_trip(dtype: Dtype, values: &[f32]) -> Vec<f32> {
    let bytes = quantize_blocks(dtype, values);
    assert_eq!(Some(bytes.len()), dtype.size_in_bytes(values.len()));
    bytes.chunks_exact(dtype.block_bytes()).flat_map(|b| decode(dtype, b)).collect()
}

/// Root mean square error over the root mean square value.
fn relative_error(values: &[f32], back: &[f32]) -> f64 {
    let sum = |it: &mut dyn Iterator<Item = f32>| it.map(|x| f64::from(x).powi(2)).sum::<f64>();
    (sum(&mut values.iter().zip(back).map(|(a, b)| a - b)) / sum(&mut values.iter().copied())).sqrt()
}

#[test]
fn errors_are_those_of_the_bit_widths() {
    let values = normal(3, "quantize", 256 * 64);
    for (dtype, bound) in [
        (Dtype::F32, 0.0),
        (Dtype::F16, 3e-4),
        (Dtype::BF16, 2.5e-3),
        (Dtype::Q8_0, 7e-3),
        (Dtype::Q6_K, 0.025),
        (Dtype::Q5_1, 0.045),
        (Dtype::Q5_K, 0.045),
        (Dtype::Q5_0, 0.05),
        (Dtype::Q4_1, 0.085),
        (Dtype::Q4_K, 0.09),
        (Dtype::Q4_0, 0.1),
        (Dtype::Q3_K, 0.19),
        (Dtype::Q2_K, 0.37),
    ] {
        let error = relative_error(&values, &round_trip(dtype, &values));
        println!("{dtype}: {error:.5}");
        assert!(error <= bound, "{dtype}: {error} > {bound}");
        // A writer that is far better than its bits allow would not be that type.
        assert!(error >= bound * 0.5, "{dtype}: {error} is under half of {bound}");
    }
}

#[test]
fn grids_come_back_exactly() {
    // Codes times a power of two: nothing is lost where the extreme code occurs.
    let q8: Vec<f32> = (0..32).map(|i| if i == 0 { -127.0 } else { (i * 7 - 100) as f32 } * 0.25).collect();
    assert_eq!(round_trip(Dtype::Q8_0, &q8), q8);
    for (dtype, levels) in [(Dtype::Q4_0, 16), (Dtype::Q5_0, 32)] {
        let v: Vec<f32> = (0..32).map(|i| (i % levels - levels / 2) as f32 * 0.5).collect();
        assert_eq!(round_trip(dtype, &v), v, "{dtype}");
    }
    for (dtype, levels) in [(Dtype::Q4_1, 16), (Dtype::Q5_1, 32)] {
        let v: Vec<f32> = (0..32).map(|i| (i % levels) as f32 * 0.5 - 3.0).collect();
        assert_eq!(round_trip(dtype, &v), v, "{dtype}");
    }
}

#[test]
fn zeros_stay_zeros_and_constants_stay_close() {
    for &dtype in Dtype::ALL.iter().filter(|d| has_writer(**d)) {
        assert!(round_trip(dtype, &[0.0; 256]).iter().all(|&x| x == 0.0), "{dtype}");
        for constant in [1.0, -1.0] {
            for x in round_trip(dtype, &[constant; 256]) {
                assert!((x - constant).abs() < 0.02, "{dtype}: {constant} became {x}");
            }
        }
    }
}

#[test]
fn k_blocks_match_blocks_written_by_hand() {
    // A single value of 6 in sub-block 5 (elements 160..192 of Q4_K): d = 0.4/63, scale 63, code 15.
    let mut v = [0.0f32; 256];
    v[163] = 6.0;
    let b = quantize_blocks(Dtype::Q4_K, &v);
    assert_eq!(b[..2], f16::from_f32(0.4 / 63.0).to_le_bytes());
    // Scale 5 = 63: low nibble in byte 9, high bits in byte 1; no minimums.
    assert_eq!(b[4..16], [0, 0xC0, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0]);
    // Chunk 2 of 32 bytes, high nibble, l = 3.
    let nonzero: Vec<(usize, u8)> = b[16..].iter().copied().enumerate().filter(|x| x.1 != 0).collect();
    assert_eq!(nonzero, [(2 * 32 + 3, 0xF0)]);

    // Q5_K: code 31, its fifth bit is bit 5 of qh[3].
    let b = quantize_blocks(Dtype::Q5_K, &v);
    assert_eq!((b[16 + 3], b[48 + 2 * 32 + 3]), (1 << 5, 0xF0));

    // Q6_K: element 163 is in half 1, l = 3, second quarter; its sub-block 10 has scale −127·… and code 0 (= −32),
    // all other elements code 32.
    let b = quantize_blocks(Dtype::Q6_K, &v);
    assert_eq!(b[208..], f16::from_f32(6.0 / 32.0 / 127.0).to_le_bytes());
    assert_eq!((b[192 + 10] as i8, b[192 + 9] as i8), (-127, 0));
    assert_eq!((b[64 + 32 + 3] & 15, b[128 + 32 + 3]), (0, 0b10_10_00_10));

    // Q3_K: code −4 in element 163: third bit clear (bit 5 of hmask[3]), low bits 0.
    let b = quantize_blocks(Dtype::Q3_K, &v);
    assert_eq!((b[3], b[4]), (0xFF - (1 << 5), 0xFF));
    assert!(b[32..96].iter().all(|&q| q == 0));
    // Scale 10 = −31, stored 1; all others 0, stored 32: low nibbles 0, high bits 2.
    assert_eq!(b[96..108], [0, 0, 0x10, 0, 0, 0, 0, 0, 0xAA, 0xAA, 0b10_00_10_10, 0xAA]);

    // Q2_K: sub-block 10 has scale 15, code 3 at bits 2-3 of byte 32 + 3.
    let b = quantize_blocks(Dtype::Q2_K, &v);
    assert_eq!((b[10], b[9]), (15, 0));
    assert_eq!(b[16 + 32 + 3], 3 << 2);
    assert_eq!(b[80..82], f16::from_f32(2.0 / 15.0).to_le_bytes());
}

/// The data and the measure that llama.cpp tests its types with: 0.1 + 2 cos(i + offset), √Σ error² / n.
#[test]
fn errors_on_a_wave_stay_within_the_bounds_of_the_field() {
    let n = 32 * 128;
    for offset in [0.0, 1.0] {
        let values: Vec<f32> = (0..n).map(|i| 0.1 + 2.0 * (i as f32 + offset).cos()).collect();
        for &dtype in Dtype::ALL.iter().filter(|d| has_writer(**d) && d.is_quantized()) {
            let bound = match dtype {
                Dtype::Q2_K => 0.0075,
                Dtype::Q3_K => 0.004,
                _ => 0.002,
            };
            let bytes = quantize_blocks(dtype, &values);
            let mut back = vec![0.0; n];
            crate::kernel::dequantize(dtype, &bytes, &mut back).unwrap();
            let sum: f64 = values.iter().zip(&back).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let error = sum.sqrt() / n as f64;
            println!("{dtype}: {error:.5} of {bound}");
            assert!(error < bound, "{dtype}: {error}");
        }
    }
}

/// Q4_K without a search: each sub-block's grid spans its range.
fn q4_k_by_range(block: &[f32; 256]) -> Vec<f32> {
    let fold = |x: &[f32], pick: fn(f32, f32) -> f32| x.iter().copied().fold(0.0, pick);
    let fits = block.as_chunks::<32>().0.iter().map(|x| (fold(x, f32::max) - fold(x, f32::min), -fold(x, f32::min)));
    let fits: Vec<(f32, f32)> = fits.map(|(span, low)| (span / 15.0, low)).collect();
    let half = |x: f32| f16::from_f32(x).to_f32();
    let d = half(fits.iter().fold(0.0, |m: f32, f| m.max(f.0)) / 63.0);
    let dmin = half(fits.iter().fold(0.0, |m: f32, f| m.max(f.1)) / 63.0);
    let value = |(i, x): (usize, &f32)| {
        let (scale, low) = ((fits[i / 32].0 / d).round() * d, (fits[i / 32].1 / dmin).round() * dmin);
        ((x + low) / scale).round().clamp(0.0, 15.0) * scale - low
    };
    block.iter().enumerate().map(value).collect()
}

/// Q6_K without a search: the value of largest magnitude takes the lowest code.
fn q6_k_by_range(block: &[f32; 256]) -> Vec<f32> {
    let steps: Vec<f32> = block.as_chunks::<16>().0.iter().map(|x| extreme(x) / -32.0).collect();
    let d = f16::from_f32(steps.iter().fold(0.0, |m: f32, s| m.max(s.abs())) / 127.0).to_f32();
    let value = |(i, x): (usize, &f32)| {
        let scale = (steps[i / 16] / d).round() * d;
        (x / scale).round().clamp(-32.0, 31.0) * scale
    };
    block.iter().enumerate().map(value).collect()
}

#[test]
fn a_search_for_scales_is_better_than_grids_that_span_the_range() {
    let values = normal(9, "search", 256 * 64);
    for (dtype, by_range) in [(Dtype::Q4_K, q4_k_by_range as fn(&[f32; 256]) -> Vec<f32>), (Dtype::Q6_K, q6_k_by_range)]
    {
        let plain: Vec<f32> = values.as_chunks::<256>().0.iter().flat_map(by_range).collect();
        let (found, plain) = (relative_error(&values, &round_trip(dtype, &values)), relative_error(&values, &plain));
        println!("{dtype}: {found:.5}, without the search {plain:.5}");
        assert!(found < 0.97 * plain, "{dtype}: {found}, without the search {plain}");
    }
}

#[test]
fn extremes_of_the_range_neither_overflow_nor_panic() {
    for &dtype in Dtype::ALL.iter().filter(|d| has_writer(**d) && d.is_quantized()) {
        for magnitude in [1.0e-45f32, 1.0e-38, 1.0e-20, 6.0e-8, 1.0e-3, 1.0e4, 6.0e4] {
            let values: Vec<f32> = (0..256).map(|i| if i % 3 == 0 { magnitude } else { -magnitude / 2.0 }).collect();
            let back = round_trip(dtype, &values);
            // A scale in f16 has a smallest step; below it, values become zero or that step.
            let close = |(a, b): (&f32, &f32)| b.is_finite() && (a - b).abs() <= 0.6 * magnitude + 1.0e-5;
            assert!(values.iter().zip(&back).all(close), "{dtype}: {magnitude}: {:?}", &back[..4]);
        }
        let mut out = vec![0; dtype.size_in_bytes(256).unwrap()];
        for (value, expected) in [
            (f32::NAN, Unencodable::NotFinite),
            (f32::NEG_INFINITY, Unencodable::NotFinite),
            (f32::MAX, Unencodable::TooLarge),
            (9.0e8, Unencodable::TooLarge),
        ] {
            let mut values = [0.5; 256];
            values[100] = value;
            assert_eq!(encode(dtype, &values, &mut out), Err(expected), "{dtype}: {value}");
        }
    }
}
