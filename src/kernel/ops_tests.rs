//! Row operations against f64, at every level.

use super::super::{KernelLevel, Pool};
use super::*;
use std::sync::Arc;

fn cpus() -> Vec<Cpu> {
    let pool = Arc::new(Pool::new(2).unwrap());
    let levels = KernelLevel::available();
    levels.map(|level| Cpu { pool: pool.clone(), level }).collect()
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect()
}

/// The result of `f` at every level is the same; answers it.
fn every_level(f: impl Fn(&Cpu) -> Vec<f32>) -> Vec<f32> {
    let results: Vec<Vec<f32>> = cpus().iter().map(f).collect();
    for r in &results {
        assert_eq!(
            r.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
            results[0].iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        );
    }
    results[0].clone()
}

#[test]
fn rms_norm_divides_by_the_root_mean_square() {
    for width in [1, 31, 32, 65, 576] {
        let x = values(3 * width);
        let w: Vec<f32> = (0..width).map(|i| 1.0 + i as f32 / 100.0).collect();
        let out = every_level(|cpu| {
            let mut out = vec![0.0; x.len()];
            rms_norm(cpu, &x, &w, 1e-5, &mut out);
            let mut same = x.clone();
            rms_norm_in_place(cpu, &mut same, &w, 1e-5);
            assert_eq!(out, same);
            out
        });
        for r in 0..3 {
            let row = &x[r * width..(r + 1) * width];
            let mean = row.iter().map(|v| (*v as f64).powi(2)).sum::<f64>() / width as f64;
            for i in 0..width {
                let expected = row[i] as f64 / (mean + 1e-5).sqrt() * w[i] as f64;
                assert!((out[r * width + i] as f64 - expected).abs() < 1e-5 * expected.abs().max(1.0));
            }
        }
    }
}

#[test]
fn exp_is_within_two_ulp_and_clamps() {
    for i in -8700..=8800 {
        let x = i as f32 / 100.0;
        let (ours, expected) = (exp(x) as f64, (x as f64).exp());
        assert!((ours - expected).abs() <= expected * 2.4e-7, "{x}: {ours} {expected}");
    }
    assert!(exp(-1e30) >= 0.0 && exp(-1e30) < 1e-37);
    assert!(exp(1e30).is_finite() && exp(f32::NAN).is_nan());
    assert_eq!(exp(0.0), 1.0);
}

#[test]
fn tanh_is_close_everywhere() {
    for i in -40_000..=40_000 {
        let x = i as f32 / 2000.0;
        let (ours, expected) = (tanh(x) as f64, (x as f64).tanh());
        let bound = if x.abs() < 0.25 { 3e-7 * expected.abs() } else { 2.5e-7 };
        assert!((ours - expected).abs() <= bound, "{x}: {ours} {expected}");
    }
    assert_eq!((tanh(1e30), tanh(-1e30), tanh(0.0)), (1.0, -1.0, 0.0));
    assert!(tanh(f32::NAN).is_nan());
}

#[test]
fn gates_follow_their_formulas() {
    let x = values(300);
    let up: Vec<f32> = x.iter().rev().copied().collect();
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let out = every_level(|cpu| {
            let mut out = vec![f32::NAN; x.len()];
            crate::kernel::Input::Gated { activation, gate: &x, up: &up }.write(cpu, x.len(), &mut out);
            out
        });
        for i in 0..x.len() {
            let v = x[i] as f64;
            let a = match activation {
                Activation::Silu => v / (1.0 + (-v).exp()),
                Activation::GeluTanh => {
                    0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3))).tanh())
                }
            };
            let expected = a * up[i] as f64;
            assert!((out[i] as f64 - expected).abs() < 1e-5 * expected.abs().max(1.0), "{v}");
        }
    }
}

#[test]
fn rope_rotates_pairs_and_passes_the_rest() {
    let (heads, dim, half, rows) = (3, 10, 4, 5);
    let x = values(rows * heads * dim);
    let angles: Vec<f32> = (0..rows * half).map(|i| i as f32 * 0.3).collect();
    let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
    let out = every_level(|cpu| {
        let mut y = x.clone();
        rope(cpu, &mut y, heads, dim, &cos, &sin);
        y
    });
    let mut expected = x.clone();
    for r in 0..rows {
        for h in 0..heads {
            let at = (r * heads + h) * dim;
            for j in 0..half {
                let (a, b) = (at + j, at + half + j);
                let (c, s) = (cos[r * half + j], sin[r * half + j]);
                expected[a] = x[a] * c - x[b] * s;
                expected[b] = x[b] * c + x[a] * s;
            }
        }
    }
    for (a, b) in out.iter().zip(&expected) {
        assert!((a - b).abs() < 1e-5);
    }
}

#[test]
fn sums_scales_and_caps() {
    let x = values(70_000);
    let y = every_level(|cpu| {
        let mut a = x.clone();
        add(cpu, &mut a, &x);
        add_bias(cpu, &mut a, &[1.0, 2.0]);
        scale(cpu, &mut a, 0.5);
        softcap(cpu, &mut a, 3.0);
        a
    });
    for (i, v) in y.iter().enumerate() {
        let sum = (2.0 * x[i] + if i % 2 == 0 { 1.0 } else { 2.0 }) * 0.5;
        assert!((v - 3.0 * (sum / 3.0).tanh()).abs() < 1e-5);
    }
}

#[test]
fn f16_widening_is_exact_for_every_pattern() {
    for bits in 0..=u16::MAX {
        let (ours, expected) = (super::super::vector::f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
        assert!(ours.to_bits() == expected.to_bits() || (ours.is_nan() && expected.is_nan()), "{bits:#x}");
    }
}
