//! NVFP4: 4-bit floats, 16 to a scale that is an 8-bit float without sign.

use super::super::scalar::FP4_TABLE;

/// Half the number that the byte stands for: 4 bits of exponent (bias 7), 3 of mantissa. The codes are doubled.
///
/// ggml reads the pattern that the 8-bit format keeps for NaN as 0, and ignores the sign.
fn half_scale(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, f32::from(byte & 7));
    let scale = match (byte, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa / 512.0,
        // 2^(exponent - 7)
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((u32::from(exponent) + 120) << 23),
    };
    scale * 0.5
}

/// Four scales, then per 16 values 8 bytes: elements j (low) and j + 8 (high).
pub(super) fn nvfp4(block: &[u8], out: &mut [f32]) {
    for (i, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = half_scale(block[i]);
        for (j, out) in out.iter_mut().enumerate() {
            let code = block[4 + i * 8 + j % 8] >> (j / 8 * 4) & 15;
            *out = scale * (f32::from(FP4_TABLE[usize::from(code)]) - 12.0);
        }
    }
}
