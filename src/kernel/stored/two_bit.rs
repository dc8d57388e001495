//! IQ2_XXS, IQ2_XS and IQ2_S: groups of eight magnitudes from a codebook, with a sign each.
//!
//! A value is ((d * (1/2 + scale)) / 4) * magnitude, a scale of 4 bits serving 16 or 32 values.

use super::super::scalar::half;
use super::{even_signs, grids, signed, u16_at, u32_at};

const MAGNITUDES: [f32; 4] = [8.0, 25.0, 43.0, 0.0];

/// Eight values of one codebook entry.
fn put(out: &mut [f32], scale: f32, entry: u16, signs: u8) {
    for (j, out) in out.iter_mut().enumerate() {
        *out = signed(scale * MAGNITUDES[usize::from(entry >> (2 * j) & 3)], signs, j);
    }
}

fn scale(d: f32, code: u32) -> f32 {
    d * (0.5 + code as f32) * 0.25
}

/// d, then per 32 values four indices of 8 bits and a word: four times 7 signs, and the scale on top.
pub(super) fn iq2_xxs(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        let at = 2 + i * 8;
        let word = u32_at(block, at + 4);
        let scale = scale(d, word >> 28);
        for (l, out) in out.chunks_exact_mut(8).enumerate() {
            put(out, scale, grids::IQ2_XXS[usize::from(block[at + l])], even_signs(word >> (7 * l)));
        }
    }
}

/// d, per 8 values 9 bits of index and 7 of signs, then a scale per 16 values, two to a byte.
pub(super) fn iq2_xs(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let code = u16_at(block, 2 + i * 2);
        let scale = scale(d, u32::from(block[66 + i / 4] >> (i / 2 % 2 * 4) & 15));
        put(out, scale, grids::IQ2_XS[usize::from(code & 511)], even_signs(u32::from(code >> 9)));
    }
}

/// d, low bytes of the indices, signs, two high bits of each index, scales as IQ2_XS.
pub(super) fn iq2_s(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let high = block[66 + i / 4] >> (i % 4 * 2) & 3;
        let scale = scale(d, u32::from(block[74 + i / 4] >> (i / 2 % 2 * 4) & 15));
        put(out, scale, grids::IQ2_S[usize::from(block[2 + i]) | usize::from(high) << 8], block[34 + i]);
    }
}
