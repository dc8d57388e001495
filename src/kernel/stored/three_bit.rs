//! IQ3_XXS and IQ3_S: groups of four magnitudes from a codebook, with a sign each.

use super::super::scalar::half;
use super::{even_signs, grids, signed, u32_at};

/// Eight values of two codebook entries; `magnitude` says what 3 bits stand for.
fn put(out: &mut [f32], scale: f32, entries: [u16; 2], signs: u8, magnitude: fn(u16) -> f32) {
    for (j, out) in out.iter_mut().enumerate() {
        let code = entries[j / 4] >> (j % 4 * 3) & 7;
        *out = signed(scale * magnitude(code), signs, j);
    }
}

/// d, indices of 8 bits, then per 32 values a word: four times 7 signs, and the scale on top. A value is
/// ((d * (1/2 + scale)) / 2) * magnitude.
pub(super) fn iq3_xxs(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let magnitude = |code: u16| f32::from(if code < 7 { 4 + 8 * code } else { 62 });
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        let word = u32_at(block, 66 + i * 4);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        for (l, out) in out.chunks_exact_mut(8).enumerate() {
            let entries = [0, 1].map(|side| grids::IQ3_XXS[usize::from(block[2 + i * 8 + l * 2 + side])]);
            put(out, scale, entries, even_signs(word >> (7 * l)), magnitude);
        }
    }
}

/// d, low bytes of the indices, their ninth bits, signs, then a scale of 4 bits per 32 values. A value is
/// (d * (1 + 2 * scale)) * magnitude.
pub(super) fn iq3_s(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let scale = d * f32::from(1 + 2 * (block[106 + i / 8] >> (i / 4 % 2 * 4) & 15));
        let entries = [0, 1].map(|side| {
            let at = i * 2 + side;
            let high = block[66 + at / 8] >> (at % 8) & 1;
            grids::IQ3_S[usize::from(block[2 + at]) | usize::from(high) << 8]
        });
        put(out, scale, entries, block[74 + i], |code| f32::from(1 + 2 * code));
    }
}
