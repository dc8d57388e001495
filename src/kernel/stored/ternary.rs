//! TQ1_0 and TQ2_0: values of -1, 0 and 1 under one scale, five to a byte or four.

use super::super::scalar::half;

/// The digit that is on top after `skipped` digits of base 3 were taken off a byte, less one. The byte is a fraction of
/// 256.
fn digit(byte: u8, skipped: usize) -> f32 {
    let rest = byte.wrapping_mul([1, 3, 9, 27, 81][skipped]);
    f32::from(((u16::from(rest) * 3) >> 8) as i8 - 1)
}

/// Fields of 32, 16 and 4 bytes whose first digits come before their second ones, five each and four in the last; d.
pub(super) fn tq1_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 52);
    let (first, rest) = out.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    for (bytes, out) in [(&block[..32], first), (&block[32..48], second), (&block[48..52], third)] {
        for (skipped, out) in out.chunks_exact_mut(bytes.len()).enumerate() {
            for (out, byte) in out.iter_mut().zip(bytes) {
                *out = d * digit(*byte, skipped);
            }
        }
    }
}

/// Two fields of 32 bytes, each with four codes of 2 bits per byte, the lowest of all bytes first; d.
pub(super) fn tq2_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 64);
    for (i, out) in out.iter_mut().enumerate() {
        let code = block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
        *out = d * (f32::from(code) - 1.0);
    }
}
