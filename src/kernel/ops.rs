//! Row-wise operations between the matrix products: norms, rotary positions, activations, sums.
//!
//! Every row is computed alone and in a fixed order, so a row's result does not depend on its neighbours or on
//! the thread count.

use super::vector::{exp, leveled, sum32, tanh};
use super::Cpu;

/// Rows per task: enough work to pay for the hand-over.
const TASK_ELEMENTS: usize = 16 * 1024;

fn rows_per_task(width: usize) -> usize {
    (TASK_ELEMENTS / width.max(1)).max(1)
}

/// `1 / sqrt(mean(x^2) + eps)`; the squares are summed over 32 lanes, then by a fixed tree.
#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let mut lanes = [0f32; 32];
    let mut chunks = x.chunks_exact(32);
    for chunk in &mut chunks {
        for i in 0..32 {
            lanes[i] = chunk[i].mul_add(chunk[i], lanes[i]);
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = v.mul_add(v, *lane);
    }
    1.0 / (sum32(lanes) / x.len() as f32 + eps).sqrt()
}

/// `out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight` for rows of `weight.len()` values.
///
/// NaN in a row makes that row NaN.
///
/// # Panics
/// If `x` and `out` differ in length or are not whole rows.
pub fn rms_norm(cpu: &Cpu, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    assert!(x.len() == out.len() && x.len().is_multiple_of(width.max(1)), "rms_norm: rows of {width}");
    let rows = rows_per_task(width);
    cpu.for_each_chunk(out, rows * width, &|first, out| {
        rms_norm_rows(cpu, &x[first..first + out.len()], weight, eps, out);
    });
}

leveled! {
    fn rms_norm_rows(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let width = weight.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let scale = inverse_rms(x, eps);
            for i in 0..width {
                out[i] = x[i] * scale * weight[i];
            }
        }
    }
}

/// [`rms_norm`] in place.
pub fn rms_norm_in_place(cpu: &Cpu, x: &mut [f32], weight: &[f32], eps: f32) {
    let width = weight.len();
    assert!(x.len().is_multiple_of(width.max(1)), "rms_norm: rows of {width}");
    cpu.for_each_chunk(x, rows_per_task(width) * width, &|_, x| rms_norm_rows_in_place(cpu, x, weight, eps));
}

leveled! {
    fn rms_norm_rows_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
        let width = weight.len();
        for x in x.chunks_exact_mut(width) {
            let scale = inverse_rms(x, eps);
            for (x, w) in x.iter_mut().zip(weight) {
                *x = *x * scale * w;
            }
        }
    }
}

/// `x += y`.
///
/// # Panics
/// If the lengths differ.
pub fn add(cpu: &Cpu, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "add");
    cpu.for_each_chunk(x, TASK_ELEMENTS, &|first, x| add_slice(cpu, x, &y[first..first + x.len()]));
}

leveled! {
    fn add_slice(x: &mut [f32], y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }
}

/// Adds `bias` to every row of `x`.
///
/// # Panics
/// If `x` is not whole rows.
pub fn add_bias(cpu: &Cpu, x: &mut [f32], bias: &[f32]) {
    let width = bias.len();
    assert!(x.len().is_multiple_of(width.max(1)), "add_bias: rows of {width}");
    cpu.for_each_chunk(x, rows_per_task(width) * width, &|_, x| {
        for row in x.chunks_exact_mut(width) {
            add_slice(cpu, row, bias);
        }
    });
}

/// The nonlinearity of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh form: `x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 x^3))`.
    GeluTanh,
}

/// `gate = activation(gate) * up`.
///
/// # Panics
/// If the lengths differ.
pub fn gate(cpu: &Cpu, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate");
    cpu.for_each_chunk(gate, TASK_ELEMENTS / 4, &|first, gate| {
        let up = &up[first..first + gate.len()];
        match activation {
            Activation::Silu => silu_mul(cpu, gate, up),
            Activation::GeluTanh => gelu_mul(cpu, gate, up),
        }
    });
}

leveled! {
    fn silu_mul(gate: &mut [f32], up: &[f32]) {
        for (g, u) in gate.iter_mut().zip(up) {
            *g = *g / (1.0 + exp(-*g)) * u;
        }
    }
}

leveled! {
    fn gelu_mul(gate: &mut [f32], up: &[f32]) {
        // 2 * sqrt(2 / pi)
        const SCALE: f32 = 1.595_769;
        for (g, u) in gate.iter_mut().zip(up) {
            let x = *g;
            let inner = SCALE * x * (0.044_715 * x).mul_add(x, 1.0);
            *g = x / (1.0 + exp(-inner)) * u;
        }
    }
}

/// `x = cap * tanh(x / cap)`.
pub fn softcap(cpu: &Cpu, x: &mut [f32], cap: f32) {
    cpu.for_each_chunk(x, TASK_ELEMENTS / 4, &|_, x| softcap_slice(cpu, x, cap));
}

leveled! {
    pub(super) fn softcap_slice(x: &mut [f32], cap: f32) {
        for x in x.iter_mut() {
            *x = cap * tanh(*x / cap);
        }
    }
}

/// Multiplies by a constant.
pub fn scale(cpu: &Cpu, x: &mut [f32], factor: f32) {
    cpu.for_each_chunk(x, TASK_ELEMENTS, &|_, x| x.iter_mut().for_each(|x| *x *= factor));
}

/// Rotates every head of every row in place: value j with value j + n / 2.
///
/// `x` is `[rows][heads][head_dim]`; `cos` and `sin` are `[rows][n / 2]` where `n <= head_dim` values per head
/// rotate and the rest pass through.
///
/// # Panics
/// If the lengths do not fit.
pub fn rope(cpu: &Cpu, x: &mut [f32], heads: usize, head_dim: usize, cos: &[f32], sin: &[f32]) {
    let width = heads * head_dim;
    let rows = x.len() / width.max(1);
    if rows == 0 {
        return;
    }
    let half = cos.len() / rows;
    assert!(
        x.len() == rows * width && cos.len() == rows * half && sin.len() == cos.len() && 2 * half <= head_dim,
        "rope"
    );
    cpu.for_each_chunk(x, rows_per_task(width) * width, &|first, x| {
        let first = first / width;
        for (r, row) in x.chunks_exact_mut(width).enumerate() {
            let angles = (first + r) * half..(first + r + 1) * half;
            rotate_halves(cpu, row, head_dim, &cos[angles.clone()], &sin[angles]);
        }
    });
}

leveled! {
    fn rotate_halves(row: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
        let half = cos.len();
        for head in row.chunks_exact_mut(head_dim) {
            let (low, rest) = head.split_at_mut(half);
            let high = &mut rest[..half];
            for j in 0..half {
                let (a, b) = (low[j], high[j]);
                low[j] = a.mul_add(cos[j], -(b * sin[j]));
                high[j] = b.mul_add(cos[j], a * sin[j]);
            }
        }
    }
}

#[cfg(test)]
#[path = "ops_tests.rs"]
mod tests;
