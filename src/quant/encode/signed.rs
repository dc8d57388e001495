//! Blocks of 256 values with a signed scale per 16 values under one half: Q3_K and Q6_K.
//!
//! value = d · scale · code. Scales are fitted by weighted least squares over candidate grids, then rounded to small
//! integers; the codes follow.

use super::affine::put_two_bits;
use super::{extreme, inverse, nearest, put_half, total, Unencodable, MARGIN};

/// Candidate grids put the value of largest magnitude up to this many tenths of a code off the lowest code.
const TENTHS: i32 = 9;

/// The best scale, of either sign, for codes from −`half` to `half` − 1. Errors weigh by the square of a value.
#[inline(always)]
fn fit(x: &[f32; 16], half: f32) -> f32 {
    let most = extreme(x);
    if most.abs() < f32::MIN_POSITIVE {
        return 0.0;
    }
    let mut best = (f64::NEG_INFINITY, -most / half);
    // The plain grid comes first, so that others must be better.
    for tenths in (0..=TENTHS).flat_map(|t| [t, -t]) {
        let step = -(half + 0.1 * tenths as f32) / most;
        let (mut wll, mut wxl) = ([0f32; 8], [0f32; 8]);
        for x in x.as_chunks::<8>().0 {
            for i in 0..8 {
                let code = nearest(x[i] * step, -half, half - 1.0);
                let weighted = x[i] * x[i] * code;
                wll[i] += weighted * code;
                wxl[i] += weighted * x[i];
            }
        }
        let (wll, wxl) = (total(wll), total(wxl));
        if wll > 0.0 {
            // How much of the weighted square of x the scale explains.
            let explained = wxl * wxl / wll;
            if explained > best.0 * MARGIN || best.0 == f64::NEG_INFINITY {
                best = (explained, (wxl / wll) as f32);
            }
        }
    }
    best.1
}

/// The integer scales up to ±`top`, and the codes plus `half`; writes the half d at `at`.
#[inline(always)]
fn signed(
    block: &[f32; 256],
    (top, half): (f32, f32),
    out: &mut [u8],
    at: usize,
) -> Result<([i8; 16], [u8; 256]), Unencodable> {
    let subs = block.as_chunks::<16>().0;
    let mut fitted = [0f32; 16];
    for (scale, sub) in fitted.iter_mut().zip(subs) {
        *scale = fit(sub, half);
    }
    let d = put_half(out, at, extreme(&fitted).abs() / top)?;
    let per_d = inverse(d);
    let (mut scales, mut codes) = ([0i8; 16], [0u8; 256]);
    for (j, sub) in subs.iter().enumerate() {
        let scale = nearest(fitted[j] * per_d, -top, top);
        scales[j] = scale as i8;
        let step = inverse(d * scale);
        for (code, x) in codes[16 * j..16 * (j + 1)].iter_mut().zip(sub) {
            *code = (nearest(x * step, -half, half - 1.0) + half) as u8;
        }
    }
    Ok((scales, codes))
}

/// Third bits, 2-bit codes, 6-bit scales (stored + 32), d.
pub(super) fn q3_k(block: &[f32; 256], out: &mut [u8]) -> Result<(), Unencodable> {
    let (scales, codes) = signed(block, (31.0, 4.0), out, 108)?;
    for (l, out) in out[..32].iter_mut().enumerate() {
        *out = (0..8).fold(0, |acc, i| acc | (codes[32 * i + l] >> 2) << i);
    }
    put_two_bits(&mut out[32..96], &codes);
    let stored = scales.map(|scale| (scale + 32) as u8);
    for i in 0..8 {
        out[96 + i] = (stored[i] & 15) | (stored[i + 8] & 15) << 4;
    }
    for i in 0..4 {
        out[104 + i] = (0..4).fold(0, |acc, k| acc | (stored[4 * k + i] >> 4) << (2 * k));
    }
    Ok(())
}

/// Low nibbles, high pairs of bits, i8 scales, d.
pub(super) fn q6_k(block: &[f32; 256], out: &mut [u8]) -> Result<(), Unencodable> {
    let (scales, codes) = signed(block, (127.0, 32.0), out, 208)?;
    for (i, out) in out[..128].iter_mut().enumerate() {
        let first = i / 64 * 128 + i % 64;
        *out = (codes[first] & 15) | (codes[first + 64] & 15) << 4;
    }
    for (i, out) in out[128..192].iter_mut().enumerate() {
        let first = i / 32 * 128 + i % 32;
        *out = (0..4).fold(0, |acc, k| acc | (codes[first + 32 * k] >> 4) << (2 * k));
    }
    for (out, scale) in out[192..208].iter_mut().zip(scales) {
        *out = scale as u8;
    }
    Ok(())
}
