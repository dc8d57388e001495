//! The oracle: what every format means and what a product is, in plain Rust.
//!
//! Works on the file's blocks, not on panels, so that it shares no unpacking with the fast levels. It is also the
//! level of platforms without vector kernels.

use half::{bf16, f16};

use super::activations::Activations;
use super::format::{layout, Layout, MAX_BLOCK_BYTES};
use super::packed::PackedMatrix;
use super::stored;
use crate::error::KernelError;
use crate::source::Dtype;

/// 32 consecutive values of one row: `value[e] = scale[e / 16] * (codes[e] - offset) + min[e / 16]`, the offset
/// and whether there is a min being the type's.
pub(crate) struct Codes {
    pub(crate) codes: [u8; 32],
    pub(crate) scale: [f32; 2],
    pub(crate) min: [f32; 2],
}

impl Codes {
    /// Sub-block `j` (32 values) of one block of a quantized type. `block` has the type's length.
    pub(crate) fn decode(dtype: Dtype, block: &[u8], j: usize) -> Codes {
        let mut out = Codes { codes: [0; 32], scale: [0.0; 2], min: [0.0; 2] };
        match dtype {
            Dtype::Q4_0 => {
                out.scale = [half(block, 0); 2];
                nibbles(&block[2..18], &mut out.codes);
            }
            Dtype::Q4_1 => {
                out.scale = [half(block, 0); 2];
                out.min = [half(block, 2); 2];
                nibbles(&block[4..20], &mut out.codes);
            }
            Dtype::Q5_0 => {
                out.scale = [half(block, 0); 2];
                nibbles(&block[6..22], &mut out.codes);
                fifth_bits(&block[2..6], &mut out.codes);
            }
            Dtype::Q5_1 => {
                out.scale = [half(block, 0); 2];
                out.min = [half(block, 2); 2];
                nibbles(&block[8..24], &mut out.codes);
                fifth_bits(&block[4..8], &mut out.codes);
            }
            Dtype::Q8_0 => {
                out.scale = [half(block, 0); 2];
                for (code, byte) in out.codes.iter_mut().zip(&block[2..34]) {
                    *code = byte ^ 0x80;
                }
            }
            Dtype::Q2_K => {
                for (e, code) in out.codes.iter_mut().enumerate() {
                    *code = block[16 + j / 4 * 32 + e] >> (j % 4 * 2) & 3;
                }
                for sub in 0..2 {
                    let byte = block[2 * j + sub];
                    out.scale[sub] = half(block, 80) * f32::from(byte & 15);
                    out.min[sub] = -(half(block, 82) * f32::from(byte >> 4));
                }
            }
            Dtype::Q3_K => {
                for (e, code) in out.codes.iter_mut().enumerate() {
                    let low = block[32 + j / 4 * 32 + e] >> (j % 4 * 2) & 3;
                    *code = low | (block[e] >> j & 1) << 2;
                }
                for sub in 0..2 {
                    out.scale[sub] = half(block, 108) * f32::from(q3_k_scale(&block[96..108], 2 * j + sub));
                }
            }
            Dtype::Q4_K => {
                (out.scale, out.min) = six_bit_scales(block, j);
                for (e, code) in out.codes.iter_mut().enumerate() {
                    *code = block[16 + j / 2 * 32 + e] >> (j % 2 * 4) & 15;
                }
            }
            Dtype::Q5_K => {
                (out.scale, out.min) = six_bit_scales(block, j);
                for (e, code) in out.codes.iter_mut().enumerate() {
                    let low = block[48 + j / 2 * 32 + e] >> (j % 2 * 4) & 15;
                    *code = low | (block[16 + e] >> j & 1) << 4;
                }
            }
            Dtype::Q6_K => {
                let (half_block, part) = (j / 4, j % 4);
                for (e, code) in out.codes.iter_mut().enumerate() {
                    let low = block[half_block * 64 + part % 2 * 32 + e] >> (part / 2 * 4) & 15;
                    let high = block[128 + half_block * 32 + e] >> (part * 2) & 3;
                    *code = low | high << 4;
                }
                for sub in 0..2 {
                    out.scale[sub] = half(block, 208) * f32::from(block[192 + 2 * j + sub] as i8);
                }
            }
            Dtype::IQ4_NL => {
                out.scale = [half(block, 0); 2];
                nibbles(&block[2..18], &mut out.codes);
                out.codes = out.codes.map(|code| IQ4_TABLE[usize::from(code)]);
            }
            Dtype::IQ4_XS => {
                let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
                let high = block[2 + j / 4] >> (j % 4 * 2) & 3;
                out.scale = [half(block, 0) * f32::from((low | high << 4) as i8 - 32); 2];
                nibbles(&block[8 + j * 16..24 + j * 16], &mut out.codes);
                out.codes = out.codes.map(|code| IQ4_TABLE[usize::from(code)]);
            }
            Dtype::MXFP4 => {
                out.scale = [half_power(block[0]); 2];
                nibbles(&block[1..17], &mut out.codes);
                out.codes = out.codes.map(|code| FP4_TABLE[usize::from(code)]);
            }
            // Callers come through `layout`, which lists the types above and the dense ones.
            _ => {}
        }
        out
    }
}

/// What the codes of the IQ4 types stand for, plus 128.
pub(crate) static IQ4_TABLE: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];
/// Twice what the codes of 4-bit floats (two bits of exponent, one of mantissa) stand for, plus 12.
pub(crate) static FP4_TABLE: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// 2^(e - 128): half of the power of two that the byte stands for, since the codes are doubled.
pub(crate) fn half_power(e: u8) -> f32 {
    // The smallest two are subnormal.
    f32::from_bits(if e > 1 { u32::from(e - 1) << 23 } else { 0x0020_0000 << e })
}

pub(crate) fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Byte i holds element i (low) and element i + 16 (high).
fn nibbles(bytes: &[u8], codes: &mut [u8; 32]) {
    for (i, byte) in bytes.iter().enumerate() {
        codes[i] = byte & 15;
        codes[i + 16] = byte >> 4;
    }
}

/// Bit e of the little-endian word is the fifth bit of element e.
fn fifth_bits(word: &[u8], codes: &mut [u8; 32]) {
    for (e, code) in codes.iter_mut().enumerate() {
        *code |= (word[e / 8] >> (e % 8) & 1) << 4;
    }
}

/// Scale and min of sub-block `j` of Q4_K and Q5_K: 6 bits each, packed in 12 bytes.
fn six_bit_scales(block: &[u8], j: usize) -> ([f32; 2], [f32; 2]) {
    let s = &block[4..16];
    let (scale, min) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4)
    };
    ([half(block, 0) * f32::from(scale); 2], [-(half(block, 2) * f32::from(min)); 2])
}

/// Scale `i` of Q3_K: 4 low bits, then 2 high bits elsewhere, biased by 32.
fn q3_k_scale(s: &[u8], i: usize) -> i8 {
    let low = if i < 8 { s[i] & 15 } else { s[i - 8] >> 4 };
    let high = s[8 + i % 4] >> (i / 4 * 2) & 3;
    (low | high << 4) as i8 - 32
}

/// One block to values; `out` has the block's number of values.
pub(crate) fn dequantize_block(layout: &Layout, block: &[u8], out: &mut [f32]) {
    match layout.dtype {
        Dtype::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
        Dtype::F16 => out[0] = half(block, 0),
        Dtype::BF16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
        dtype => {
            for (j, out) in out.chunks_exact_mut(32).enumerate() {
                let codes = Codes::decode(dtype, block, j);
                for (e, value) in out.iter_mut().enumerate() {
                    let scaled = codes.scale[e / 16] * (i32::from(codes.codes[e]) - layout.offset) as f32;
                    // Adding a min of zero would turn -0 into 0.
                    *value = if layout.has_min { scaled + codes.min[e / 16] } else { scaled };
                }
            }
        }
    }
}

/// Values of file bytes of a type that [`Dtype::is_supported`] names. A block whose scale is not finite gives
/// values that are not finite; nothing is checked.
///
/// # Errors
/// [`KernelError::UnsupportedDtype`]; [`KernelError::Length`] if `bytes` is not exactly `out.len()` values.
pub fn dequantize(dtype: Dtype, bytes: &[u8], out: &mut [f32]) -> Result<(), KernelError> {
    let layout = layout(dtype);
    let decode = stored::decoder(dtype);
    if layout.is_none() && decode.is_none() {
        return Err(KernelError::UnsupportedDtype { dtype: dtype.name() });
    }
    let (len, block) = (dtype.block_len(), dtype.block_bytes());
    let expected = dtype.size_in_bytes(out.len()).unwrap_or_else(|| out.len().div_ceil(len).saturating_mul(block));
    if !out.len().is_multiple_of(len) || bytes.len() != expected {
        return Err(KernelError::Length { dtype: dtype.name(), expected, actual: bytes.len() });
    }
    for (block, out) in bytes.chunks_exact(block).zip(out.chunks_exact_mut(len)) {
        match (layout, decode) {
            (Some(layout), _) => dequantize_block(layout, block, out),
            (None, Some(decode)) => decode(block, out),
            (None, None) => unreachable!("refused above"),
        }
    }
    Ok(())
}

/// Output rows `weight_rows` of every activation row, int8 activations. `store(activation row, weight row, value)`.
pub(crate) fn int8_rows(
    weights: &PackedMatrix,
    acts: &Activations,
    weight_rows: std::ops::Range<usize>,
    store: &mut dyn FnMut(usize, usize, f32),
) {
    let layout = weights.layout();
    let per_block = layout.dtype.block_len() / 32;
    let mut block = [0u8; MAX_BLOCK_BYTES];
    let block = &mut block[..layout.dtype.block_bytes()];
    let mut sums = vec![0f32; acts.rows()];
    for n in weight_rows {
        sums.fill(0.0);
        for b in 0..weights.cols() / 32 {
            if b % per_block == 0 {
                weights.unpack_block(n, b / per_block, block);
            }
            let codes = Codes::decode(layout.dtype, block, b % per_block);
            for (m, acc) in sums.iter_mut().enumerate() {
                let scale = acts.scale(m, b);
                for sub in 0..layout.subs {
                    let (mut dot, mut sum) = (0i32, 0i32);
                    for e in sub * 32 / layout.subs..(sub + 1) * 32 / layout.subs {
                        let q = i32::from(acts.code(m, b * 32 + e));
                        dot += (i32::from(codes.codes[e]) - layout.offset) * q;
                        sum += q;
                    }
                    *acc = (dot as f32).mul_add(codes.scale[sub] * scale, *acc);
                    if layout.has_min {
                        *acc = codes.min[sub].mul_add(scale * sum as f32, *acc);
                    }
                }
            }
        }
        for (m, &sum) in sums.iter().enumerate() {
            store(m, n, sum);
        }
    }
}

/// As [`int8_rows`], with f32 activations, which may be rounded to bf16, and dequantized weights.
pub(crate) fn float_rows(
    weights: &PackedMatrix,
    acts: &Activations,
    weight_rows: std::ops::Range<usize>,
    store: &mut dyn FnMut(usize, usize, f32),
) {
    let mut row = vec![0f32; weights.cols()];
    for n in weight_rows {
        weights.dequantize_row(n, &mut row);
        for m in 0..acts.rows() {
            let sum =
                row.iter().enumerate().fold(0f32, |acc, (k, w)| w.mul_add(acts.value(weights.layout(), m, k), acc));
            store(m, n, sum);
        }
    }
}
