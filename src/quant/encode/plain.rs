//! Blocks of 32 values under one scale, or a scale and a minimum: rounded to nearest.

use super::{extreme, inverse, nearest, put_half, range, Unencodable};
use crate::source::Dtype;

/// One block; `out` has the type's bytes.
pub(super) fn block(dtype: Dtype, x: &[f32; 32], out: &mut [u8]) -> Result<(), Unencodable> {
    match dtype {
        Dtype::Q4_0 => symmetric::<4>(x, out),
        Dtype::Q5_0 => symmetric::<5>(x, out),
        Dtype::Q4_1 => with_minimum::<4>(x, out),
        Dtype::Q5_1 => with_minimum::<5>(x, out),
        Dtype::Q8_0 => q8_0(x, out),
        other => unreachable!("no writer for {other}"),
    }
}

/// Q4_0 and Q5_0: the value of largest magnitude becomes the lowest code, which has no positive twin; the scale takes
/// the sign that this needs.
fn symmetric<const BITS: u32>(x: &[f32; 32], out: &mut [u8]) -> Result<(), Unencodable> {
    let half = (1u32 << (BITS - 1)) as f32;
    let step = inverse(put_half(out, 0, -extreme(x) / half)?);
    let codes = x.map(|x| (nearest(x * step, -half, half - 1.0) + half) as u8);
    put_codes::<BITS>(&mut out[2..], &codes);
    Ok(())
}

/// Q4_1 and Q5_1: from the minimum upward.
fn with_minimum<const BITS: u32>(x: &[f32; 32], out: &mut [u8]) -> Result<(), Unencodable> {
    let most = ((1u32 << BITS) - 1) as f32;
    let (low, high) = range(x);
    let step = inverse(put_half(out, 0, (high - low) / most)?);
    let low = put_half(out, 2, low)?;
    let codes = x.map(|x| nearest((x - low) * step, 0.0, most) as u8);
    put_codes::<BITS>(&mut out[4..], &codes);
    Ok(())
}

/// Fifth bits (if there are) as a u32, then pairs of low nibbles: element j with element j + 16.
fn put_codes<const BITS: u32>(mut out: &mut [u8], codes: &[u8; 32]) {
    if BITS == 5 {
        let high = codes.iter().enumerate().fold(0u32, |acc, (j, &c)| acc | u32::from(c >> 4) << j);
        out[..4].copy_from_slice(&high.to_le_bytes());
        out = &mut out[4..];
    }
    for (j, out) in out.iter_mut().enumerate() {
        *out = (codes[j] & 15) | (codes[j + 16] & 15) << 4;
    }
}

fn q8_0(x: &[f32; 32], out: &mut [u8]) -> Result<(), Unencodable> {
    let step = inverse(put_half(out, 0, extreme(x).abs() / 127.0)?);
    for (out, x) in out[2..].iter_mut().zip(x) {
        *out = nearest(x * step, -127.0, 127.0) as i8 as u8;
    }
    Ok(())
}
