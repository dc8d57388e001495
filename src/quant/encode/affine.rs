//! Blocks of 256 values with a scale and a minimum per sub-block: Q2_K, Q4_K and Q5_K.
//!
//! value = d · scale · code − dmin · minimum. Scales and minimums are fitted per sub-block by weighted least squares
//! over a number of candidate grids, then rounded to small integers under two halves; the codes follow.

use super::{inverse, nearest, put_half, range, total, Unencodable, MARGIN};

/// Candidate grids have this many steps more or fewer, in tenths, than the range of the values has codes.
const TENTHS: i32 = 10;

/// The best scale (not negative) and minimum (subtracted, not negative) for codes from 0 to `high`.
///
/// Errors weigh the more, the larger a value is against the others: weight = root mean square + magnitude.
#[inline(always)]
fn fit<const N: usize>(x: &[f32; N], high: f32) -> (f32, f32) {
    let (low, most) = range(x);
    // The minimum is subtracted and cannot be negative: zero is always within the range.
    let (low, most) = (low.min(0.0), most.max(0.0));
    let span = most - low;
    if span < f32::MIN_POSITIVE {
        return (0.0, 0.0);
    }
    let mut squares = [0f32; 8];
    for x in x.as_chunks::<8>().0 {
        for i in 0..8 {
            squares[i] += x[i] * x[i];
        }
    }
    let rms = ((total(squares) / N as f64) as f32).sqrt();
    let mut weights = [0f32; N];
    let (mut w, mut wx) = ([0f32; 8], [0f32; 8]);
    for c in 0..N / 8 {
        for i in 0..8 {
            let k = 8 * c + i;
            weights[k] = rms + x[k].abs();
            w[i] += weights[k];
            wx[i] += weights[k] * x[k];
        }
    }
    let (w, wx) = (total(w), total(wx));
    let mut best = (f64::NEG_INFINITY, span / high, -low);
    // The plain grid comes first, so that others must be better.
    for tenths in (0..=TENTHS).flat_map(|t| [t, -t]) {
        let step = (high + 0.1 * tenths as f32) / span;
        let (mut wl, mut wll, mut wxl) = ([0f32; 8], [0f32; 8], [0f32; 8]);
        for c in 0..N / 8 {
            for i in 0..8 {
                let k = 8 * c + i;
                let code = nearest((x[k] - low) * step, 0.0, high);
                let weighted = weights[k] * code;
                wl[i] += weighted;
                wll[i] += weighted * code;
                wxl[i] += weighted * x[k];
            }
        }
        let (wl, wll, wxl) = (total(wl), total(wll), total(wxl));
        let candidate = solve(w, wx, wl, wll, wxl);
        if candidate.0 > best.0 * MARGIN || best.0 == f64::NEG_INFINITY {
            best = candidate;
        }
    }
    (best.1, best.2)
}

/// Weighted least squares of x ≈ scale · code − minimum with a minimum that is not negative: how much of the weighted
/// square of x it explains, scale and minimum.
#[inline(always)]
fn solve(w: f64, wx: f64, wl: f64, wll: f64, wxl: f64) -> (f64, f32, f32) {
    let determinant = w * wll - wl * wl;
    // Codes that are all equal leave scale and offset undetermined.
    if determinant > 1.0e-6 * w * wll {
        let scale = (w * wxl - wx * wl) / determinant;
        let offset = (wll * wx - wl * wxl) / determinant;
        if offset <= 0.0 && scale >= 0.0 {
            return (scale * wxl + offset * wx, scale as f32, -offset as f32);
        }
    }
    if wll > 0.0 {
        let scale = (wxl / wll).max(0.0);
        return (scale * wxl, scale as f32, 0.0);
    }
    let offset = (wx / w).min(0.0);
    (offset * wx, 0.0, -offset as f32)
}

/// Scales and minimums as integers, and the codes against what a reader makes of them.
struct Affine<const SUBS: usize> {
    scales: [u8; SUBS],
    minimums: [u8; SUBS],
    codes: [u8; 256],
}

/// Fits sub-blocks of N values with integers up to `top` and codes up to `high`; writes the halves d and dmin at
/// `halves`.
#[inline(always)]
fn affine<const N: usize, const SUBS: usize>(
    block: &[f32; 256],
    (top, high): (f32, f32),
    out: &mut [u8],
    halves: usize,
) -> Result<Affine<SUBS>, Unencodable> {
    let subs = block.as_chunks::<N>().0;
    let (mut scales, mut minimums) = ([0f32; SUBS], [0f32; SUBS]);
    for (j, sub) in subs.iter().enumerate() {
        (scales[j], minimums[j]) = fit(sub, high);
    }
    let largest = |values: &[f32; SUBS]| values.iter().copied().fold(0.0, f32::max);
    let d = put_half(out, halves, largest(&scales) / top)?;
    let dmin = put_half(out, halves + 2, largest(&minimums) / top)?;
    let (per_d, per_dmin) = (inverse(d), inverse(dmin));
    let mut affine = Affine { scales: [0; SUBS], minimums: [0; SUBS], codes: [0; 256] };
    for (j, sub) in subs.iter().enumerate() {
        let scale = nearest(scales[j] * per_d, 0.0, top);
        let minimum = nearest(minimums[j] * per_dmin, 0.0, top);
        (affine.scales[j], affine.minimums[j]) = (scale as u8, minimum as u8);
        let (step, offset) = (inverse(d * scale), dmin * minimum);
        for (code, x) in affine.codes[N * j..N * (j + 1)].iter_mut().zip(sub) {
            *code = nearest((x + offset) * step, 0.0, high) as u8;
        }
    }
    Ok(affine)
}

/// Scale (low) and minimum (high nibble) per 16 values, four 2-bit codes per byte, then d and dmin.
pub(super) fn q2_k(block: &[f32; 256], out: &mut [u8]) -> Result<(), Unencodable> {
    let a = affine::<16, 16>(block, (15.0, 3.0), out, 80)?;
    for (j, out) in out[..16].iter_mut().enumerate() {
        *out = a.scales[j] | a.minimums[j] << 4;
    }
    put_two_bits(&mut out[16..80], &a.codes);
    Ok(())
}

/// Per 128 values, 32 bytes: byte l holds elements l, l + 32, l + 64 and l + 96.
pub(super) fn put_two_bits(out: &mut [u8], codes: &[u8; 256]) {
    for (i, out) in out.iter_mut().enumerate() {
        let first = i / 32 * 128 + i % 32;
        *out = (0..4).fold(0, |acc, j| acc | (codes[first + 32 * j] & 3) << (2 * j));
    }
}

/// d, dmin, 6-bit scales and minimums per 32 values, nibbles.
pub(super) fn q4_k(block: &[f32; 256], out: &mut [u8]) -> Result<(), Unencodable> {
    let a = affine::<32, 8>(block, (63.0, 15.0), out, 0)?;
    put_six_bits(&mut out[4..16], &a);
    put_nibbles(&mut out[16..144], &a.codes);
    Ok(())
}

/// As Q4_K, with the fifth bits before the nibbles: bit i of byte l is that of element 32 i + l.
pub(super) fn q5_k(block: &[f32; 256], out: &mut [u8]) -> Result<(), Unencodable> {
    let a = affine::<32, 8>(block, (63.0, 31.0), out, 0)?;
    put_six_bits(&mut out[4..16], &a);
    for (l, out) in out[16..48].iter_mut().enumerate() {
        *out = (0..8).fold(0, |acc, i| acc | (a.codes[32 * i + l] >> 4) << i);
    }
    put_nibbles(&mut out[48..176], &a.codes);
    Ok(())
}

/// Sub-blocks 0 to 3 have their six bits in bytes 0 to 7; the last four are cut: their low nibbles share bytes 8 to 11,
/// their two high bits fill up bytes 0 to 7.
fn put_six_bits(out: &mut [u8], Affine { scales, minimums, .. }: &Affine<8>) {
    for j in 0..4 {
        out[j] = scales[j] | (scales[j + 4] >> 4) << 6;
        out[j + 4] = minimums[j] | (minimums[j + 4] >> 4) << 6;
        out[j + 8] = (scales[j + 4] & 15) | (minimums[j + 4] & 15) << 4;
    }
}

/// Per 64 values, 32 bytes: byte l holds elements l and l + 32.
fn put_nibbles(out: &mut [u8], codes: &[u8; 256]) {
    for (i, out) in out.iter_mut().enumerate() {
        let first = i / 32 * 64 + i % 32;
        *out = (codes[first] & 15) | (codes[first + 32] & 15) << 4;
    }
}
