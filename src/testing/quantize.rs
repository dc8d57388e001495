//! Plain writers of ggml's block formats, so that tests can make a model in any type that runs.
//!
//! Round to nearest, no search for better scales: valid blocks, not the best ones. Layouts: ggml's block structures; the
//! types of 256 values are in `k_quants`. Must not be used outside of tests: a real quantizer minimizes an error.

use half::{bf16, f16};

use super::k_quants;
use crate::source::Dtype;

/// The blocks of `values` in `dtype`, little-endian. Values are finite; a row must not share a block with another, so
/// call it per tensor whose rows are whole blocks.
///
/// # Panics
/// If `dtype` is not one that candlewick computes with, or `values` is not a multiple of its block.
pub fn quantize_blocks(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    assert!(dtype.is_supported(), "no writer for {dtype}");
    assert!(values.len().is_multiple_of(dtype.block_len()), "{} values are no whole blocks of {dtype}", values.len());
    let mut out = Vec::with_capacity(values.len() / dtype.block_len() * dtype.block_bytes());
    for block in values.chunks_exact(dtype.block_len()) {
        match dtype {
            Dtype::F32 => out.extend(block[0].to_le_bytes()),
            Dtype::F16 => out.extend(f16::from_f32(block[0]).to_le_bytes()),
            Dtype::BF16 => out.extend(bf16::from_f32(block[0]).to_le_bytes()),
            Dtype::Q4_0 => symmetric(&mut out, block, 4),
            Dtype::Q5_0 => symmetric(&mut out, block, 5),
            Dtype::Q4_1 => with_minimum(&mut out, block, 4),
            Dtype::Q5_1 => with_minimum(&mut out, block, 5),
            Dtype::Q8_0 => q8_0(&mut out, block),
            other => k_quants::quantize_block(&mut out, other, block),
        }
    }
    out
}

/// The value of largest magnitude, with its sign.
pub(super) fn extreme(values: &[f32]) -> f32 {
    values.iter().copied().fold(0.0, |m: f32, x| if x.abs() > m.abs() { x } else { m })
}

/// The nearest half, written out; answers the value that a reader will see.
pub(super) fn put_f16(out: &mut Vec<u8>, value: f32) -> f32 {
    let half = f16::from_f32(value);
    out.extend(half.to_le_bytes());
    half.to_f32()
}

/// `value / step`, rounded to nearest and kept within bounds; 0 within bounds if the step is 0.
pub(super) fn code(value: f32, step: f32, low: i32, high: i32) -> i32 {
    let quotient = if step == 0.0 { 0.0 } else { value / step };
    (quotient.round() as i32).clamp(low, high)
}

/// Q4_0 and Q5_0: the extreme becomes the lowest code, which has no positive twin.
fn symmetric(out: &mut Vec<u8>, block: &[f32], bits: u32) {
    let half = 1 << (bits - 1);
    let d = put_f16(out, -extreme(block) / half as f32);
    let codes: Vec<u32> = block.iter().map(|&x| (code(x, d, -half, half - 1) + half) as u32).collect();
    put_codes(out, &codes, bits);
}

/// Q4_1 and Q5_1: from the minimum upward.
fn with_minimum(out: &mut Vec<u8>, block: &[f32], bits: u32) {
    let high = (1 << bits) - 1;
    let (low_value, high_value) = block.iter().fold((block[0], block[0]), |(l, h), &x| (l.min(x), h.max(x)));
    let d = put_f16(out, (high_value - low_value) / high as f32);
    let m = put_f16(out, low_value);
    let codes: Vec<u32> = block.iter().map(|&x| code(x - m, d, 0, high) as u32).collect();
    put_codes(out, &codes, bits);
}

/// Fifth bits (if there are) as a u32, then pairs of low nibbles: element j with element j + 16.
fn put_codes(out: &mut Vec<u8>, codes: &[u32], bits: u32) {
    if bits == 5 {
        let high = codes.iter().enumerate().fold(0u32, |acc, (j, c)| acc | (c >> 4) << j);
        out.extend(high.to_le_bytes());
    }
    out.extend((0..16).map(|j| ((codes[j] & 15) | (codes[j + 16] & 15) << 4) as u8));
}

fn q8_0(out: &mut Vec<u8>, block: &[f32]) {
    let d = put_f16(out, extreme(block).abs() / 127.0);
    out.extend(block.iter().map(|&x| code(x, d, -127, 127) as i8 as u8));
}

#[cfg(test)]
#[path = "quantize_tests.rs"]
mod tests;
