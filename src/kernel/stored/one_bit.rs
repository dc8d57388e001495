//! IQ1_S and IQ1_M: groups of eight values of -1, 0 and 1 from a codebook, all moved by an eighth up or down.
//!
//! A value is (d * (1 + 2 * scale)) * (entry ± 1/8).

use half::f16;

use super::super::scalar::half;
use super::{grids, u16_at};

/// Eight values of the codebook entry with this index of 11 bits; `down` is whether they are moved down.
fn put(out: &mut [f32], scale: f32, index: usize, down: bool) {
    let entry = grids::IQ1[index];
    let delta = if down { -0.125 } else { 0.125 };
    for (j, out) in out.iter_mut().enumerate() {
        *out = scale * (f32::from(entry >> (2 * j) & 3) - 1.0 + delta);
    }
}

/// d, low bytes of the indices, then per 32 values 16 bits: four times 3 high bits, the scale, and the direction.
pub(super) fn iq1_s(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let word = u16_at(block, 34 + i / 4 * 2);
        let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
        let high = usize::from(word >> (i % 4 * 3) & 7);
        put(out, scale, usize::from(block[2 + i]) | high << 8, word >> 15 == 1);
    }
}

/// Low bytes of the indices, per 8 values 3 high bits and the direction, then four words of four scales of 3 bits. d lies
/// in the top four bits of these words, the lowest first.
pub(super) fn iq1_m(block: &[u8], out: &mut [f32]) {
    let words = [0, 1, 2, 3].map(|w| u16_at(block, 48 + w * 2));
    let bits = words.iter().enumerate().fold(0, |bits, (w, word)| bits | word >> 12 << (4 * w));
    let d = f16::from_bits(bits).to_f32();
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let scale = d * f32::from(2 * (words[i / 8] >> (i / 2 % 4 * 3) & 7) + 1);
        let high = block[32 + i / 2] >> (i % 2 * 4);
        put(out, scale, usize::from(block[i]) | usize::from(high & 7) << 8, high & 8 != 0);
    }
}
