//! Plain writers of the types with blocks of 256 values.
//!
//! Each block has sub-blocks of 16 or 32 values with small integer scales (and minimums) under one or two halves. The
//! integers are fixed first, then the codes against the scale that a reader will see.

use super::quantize::{code, extreme, put_f16};
use crate::source::Dtype;

/// Appends one block of 256 values.
pub(super) fn quantize_block(out: &mut Vec<u8>, dtype: Dtype, block: &[f32]) {
    match dtype {
        Dtype::Q2_K => q2_k(out, block),
        Dtype::Q3_K => q3_k(out, block),
        Dtype::Q4_K => q45_k(out, block, 4),
        Dtype::Q5_K => q45_k(out, block, 5),
        Dtype::Q6_K => q6_k(out, block),
        other => unreachable!("{other} has no block of 256 values"),
    }
}

/// Scales and minimums of sub-blocks as integers of `bits` bits, the two halves above them, and the codes.
struct Affine {
    halves: Vec<u8>,
    scales: Vec<u8>,
    minimums: Vec<u8>,
    codes: Vec<u8>,
}

/// value = d·scale·code − dmin·minimum, codes from 0 to `high`.
fn affine(block: &[f32], sub: usize, scale_bits: u32, high: i32) -> Affine {
    let top = (1 << scale_bits) - 1;
    let ranges: Vec<(f32, f32)> = block
        .chunks_exact(sub)
        .map(|s| {
            // The minimum is subtracted and cannot be negative: zero is always within the range.
            let low = s.iter().copied().fold(0.0, f32::min);
            let max = s.iter().copied().fold(0.0, f32::max);
            ((max - low) / high as f32, -low)
        })
        .collect();
    let mut halves = Vec::new();
    let d = put_f16(&mut halves, ranges.iter().fold(0.0, |m: f32, r| m.max(r.0)) / top as f32);
    let dmin = put_f16(&mut halves, ranges.iter().fold(0.0, |m: f32, r| m.max(r.1)) / top as f32);
    let scales: Vec<u8> = ranges.iter().map(|r| code(r.0, d, 0, top) as u8).collect();
    let minimums: Vec<u8> = ranges.iter().map(|r| code(r.1, dmin, 0, top) as u8).collect();
    let codes = block
        .iter()
        .enumerate()
        .map(|(i, &x)| {
            let s = i / sub;
            code(x + dmin * f32::from(minimums[s]), d * f32::from(scales[s]), 0, high) as u8
        })
        .collect();
    Affine { halves, scales, minimums, codes }
}

/// Scale (low) and minimum (high nibble) per 16 values, four 2-bit codes per byte, then d and dmin.
fn q2_k(out: &mut Vec<u8>, block: &[f32]) {
    let a = affine(block, 16, 4, 3);
    out.extend(a.scales.iter().zip(&a.minimums).map(|(s, m)| s | m << 4));
    put_two_bits(out, &a.codes);
    out.extend(a.halves);
}

/// Per 128 values, 32 bytes: byte l holds elements l, l + 32, l + 64 and l + 96.
fn put_two_bits(out: &mut Vec<u8>, codes: &[u8]) {
    for half in codes.chunks_exact(128) {
        out.extend((0..32).map(|l| (0..4).fold(0, |acc, j| acc | (half[32 * j + l] & 3) << (2 * j))));
    }
}

/// Q4_K and Q5_K: d, dmin, 6-bit scales and minimums per 32 values, fifth bits, nibbles.
fn q45_k(out: &mut Vec<u8>, block: &[f32], bits: u32) {
    let a = affine(block, 32, 6, (1 << bits) - 1);
    out.extend(&a.halves);
    let (s, m) = (&a.scales, &a.minimums);
    // Sub-blocks 0 to 3 have their six bits in bytes 0 to 7; the last four are cut: their low nibbles share bytes 8 to
    // 11, their two high bits fill up bytes 0 to 7.
    out.extend((0..4).map(|j| s[j] | (s[j + 4] >> 4) << 6));
    out.extend((0..4).map(|j| m[j] | (m[j + 4] >> 4) << 6));
    out.extend((0..4).map(|j| (s[j + 4] & 15) | (m[j + 4] & 15) << 4));
    if bits == 5 {
        out.extend((0..32).map(|l| (0..8).fold(0, |acc, i| acc | (a.codes[32 * i + l] >> 4) << i)));
    }
    for chunk in a.codes.chunks_exact(64) {
        out.extend((0..32).map(|l| (chunk[l] & 15) | (chunk[l + 32] & 15) << 4));
    }
}

/// Signed scales per 16 values under one half: the extreme of a sub-block takes the lowest code.
fn signed(block: &[f32], low: i32, scale_low: i32, scale_high: i32) -> (f32, Vec<i32>) {
    let steps: Vec<f32> = block.chunks_exact(16).map(|s| extreme(s) / low as f32).collect();
    let mut half = Vec::new();
    let d = put_f16(&mut half, extreme(&steps).abs() / scale_high as f32);
    (d, steps.iter().map(|&s| code(s, d, scale_low, scale_high)).collect())
}

/// Third bits, 2-bit codes, 6-bit scales (stored + 32), d.
fn q3_k(out: &mut Vec<u8>, block: &[f32]) {
    let (d, scales) = signed(block, -4, -32, 31);
    let codes: Vec<u8> =
        block.iter().enumerate().map(|(i, &x)| (code(x, d * scales[i / 16] as f32, -4, 3) + 4) as u8).collect();
    out.extend((0..32).map(|l| (0..8).fold(0, |acc, i| acc | (codes[32 * i + l] >> 2) << i)));
    put_two_bits(out, &codes);
    let stored: Vec<u8> = scales.iter().map(|s| (s + 32) as u8).collect();
    out.extend((0..8).map(|i| (stored[i] & 15) | (stored[i + 8] & 15) << 4));
    out.extend((0..4).map(|i| (0..4).fold(0, |acc, k| acc | (stored[4 * k + i] >> 4) << (2 * k))));
    put_f16(out, d);
}

/// Low nibbles, high pairs of bits, i8 scales, d.
fn q6_k(out: &mut Vec<u8>, block: &[f32]) {
    let (d, scales) = signed(block, -32, -128, 127);
    let codes: Vec<u8> =
        block.iter().enumerate().map(|(i, &x)| (code(x, d * scales[i / 16] as f32, -32, 31) + 32) as u8).collect();
    for half in codes.chunks_exact(128) {
        out.extend((0..64).map(|l| (half[l] & 15) | (half[l + 64] & 15) << 4));
    }
    for half in codes.chunks_exact(128) {
        out.extend((0..32).map(|l| (0..4).fold(0, |acc, k| acc | (half[l + 32 * k] >> 4) << (2 * k))));
    }
    out.extend(scales.iter().map(|&s| s as i8 as u8));
    put_f16(out, d);
}
