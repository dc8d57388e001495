//! Rotary positions: frequencies with their scalings, angles in f64.

use crate::kernel::Cpu;

/// One kind of rotation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RopeSpec {
    /// Angle per position of each rotating pair.
    pub(crate) frequencies: Vec<f64>,
    /// Factor on cosine and sine.
    pub(crate) magnitude: f64,
}

/// Parameters of YaRN (arXiv 2309.00071).
#[derive(Clone, Debug)]
pub(crate) struct Yarn {
    /// How far positions are stretched.
    pub(crate) factor: f64,
    pub(crate) original_context: f64,
    /// Turns within the original context from which on a dimension is kept.
    pub(crate) beta_fast: f64,
    /// Turns up to which a dimension is stretched.
    pub(crate) beta_slow: f64,
    /// Round the ramp's ends to whole dimensions, outward.
    pub(crate) truncate: bool,
    /// Factor on cosine and sine.
    pub(crate) magnitude: f64,
}

impl Yarn {
    /// The growth of scores that the paper suggests for a stretch by `factor`, with its slope times `scale`.
    pub(crate) fn growth(factor: f64, scale: f64) -> f64 {
        if factor > 1.0 {
            0.1 * scale * factor.ln() + 1.0
        } else {
            1.0
        }
    }
}

impl RopeSpec {
    /// `base^(-2j/dims)` for `dims` rotating values per head.
    pub(crate) fn new(base: f64, dims: usize) -> RopeSpec {
        let frequencies = (0..dims / 2).map(|j| base.powf(-2.0 * j as f64 / dims as f64)).collect();
        RopeSpec { frequencies, magnitude: 1.0 }
    }

    /// Stretches all positions by `factor`.
    pub(crate) fn linear(mut self, factor: f64) -> RopeSpec {
        self.frequencies.iter_mut().for_each(|f| *f /= factor);
        self
    }

    /// Divides each frequency by its own factor (Llama 3, whose files carry the factors as a tensor).
    pub(crate) fn divided_by(mut self, factors: &[f32]) -> RopeSpec {
        self.frequencies.iter_mut().zip(factors).for_each(|(f, &d)| *f /= f64::from(d));
        self
    }

    /// Llama 3: wavelengths that fit `high` times and more into the original context are kept, those that fit fewer
    /// than `low` times are stretched by `factor`, with a blend between.
    pub(crate) fn llama3(mut self, factor: f64, original_context: f64, low: f64, high: f64) -> RopeSpec {
        for f in &mut self.frequencies {
            let turns = original_context * *f / (2.0 * std::f64::consts::PI);
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            *f = *f / factor * (1.0 - kept) + *f * kept;
        }
        self
    }

    /// YaRN: low frequencies are stretched, high ones kept, with a ramp between.
    pub(crate) fn yarn(mut self, base: f64, yarn: &Yarn) -> RopeSpec {
        let dims = 2.0 * self.frequencies.len() as f64;
        // The dimension that turns r times within the original context.
        let dimension =
            |r: f64| dims * (yarn.original_context / (2.0 * std::f64::consts::PI * r)).ln() / (2.0 * base.ln());
        let (mut low, mut high) = (dimension(yarn.beta_fast), dimension(yarn.beta_slow));
        if yarn.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dims - 1.0));
        let width = if high > low { high - low } else { 0.001 };
        for (j, f) in self.frequencies.iter_mut().enumerate() {
            let ramp = ((j as f64 - low) / width).clamp(0.0, 1.0);
            *f = *f / yarn.factor * ramp + *f * (1.0 - ramp);
        }
        self.magnitude = yarn.magnitude;
        self
    }

    /// Cosines and sines of each position, `[positions][frequencies]`.
    pub(crate) fn angles(&self, cpu: &Cpu, positions: &[usize], cos: &mut Vec<f32>, sin: &mut Vec<f32>) {
        let width = self.frequencies.len();
        cos.resize(positions.len() * width, 0.0);
        sin.resize(positions.len() * width, 0.0);
        let fill = |out: &mut [f32], f: fn(f64) -> f64| {
            cpu.for_each_chunk(out, 16 * width, &|first, out| {
                for (row, &position) in out.chunks_exact_mut(width).zip(&positions[first / width..]) {
                    for (value, frequency) in row.iter_mut().zip(&self.frequencies) {
                        *value = (self.magnitude * f(position as f64 * frequency)) as f32;
                    }
                }
            });
        };
        fill(cos, f64::cos);
        fill(sin, f64::sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_from_one_by_the_base() {
        let rope = RopeSpec::new(10_000.0, 4);
        assert_eq!(rope.frequencies.len(), 2);
        assert!((rope.frequencies[0] - 1.0).abs() < 1e-15 && (rope.frequencies[1] - 0.01).abs() < 1e-15);
        assert!((rope.clone().linear(4.0).frequencies[1] - 0.0025).abs() < 1e-15);
        assert!((rope.divided_by(&[1.0, 8.0]).frequencies[1] - 0.00125).abs() < 1e-15);
    }

    #[test]
    fn yarn_keeps_fast_and_stretches_slow_dimensions() {
        let plain = RopeSpec::new(1e6, 128);
        let parameters = Yarn {
            factor: 4.0,
            original_context: 32768.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            magnitude: Yarn::growth(4.0, 1.0),
        };
        let yarn = plain.clone().yarn(1e6, &parameters);
        assert_eq!(yarn.frequencies[0], plain.frequencies[0]);
        assert!((yarn.frequencies[63] * 4.0 - plain.frequencies[63]).abs() < 1e-18);
        assert!((yarn.magnitude - 1.138_629_436_111_989).abs() < 1e-12);
        // The ramp ends at dimensions 64 · ln(32768 / 2π · {32, 1}) / ln(1e6) = {23.60, 39.65}.
        let at = |j: usize, low: f64, high: f64| {
            let ramp = (j as f64 - low) / (high - low);
            plain.frequencies[j] * (ramp / 4.0 + 1.0 - ramp)
        };
        assert!((yarn.frequencies[30] / at(30, 23.0, 40.0) - 1.0).abs() < 1e-14);
        let exact = plain.clone().yarn(1e6, &Yarn { truncate: false, ..parameters });
        assert!((exact.frequencies[30] / at(30, 23.595_948, 39.650_881) - 1.0).abs() < 1e-6);
        assert_eq!((Yarn::growth(1.0, 1.0), Yarn::growth(0.5, 1.0)), (1.0, 1.0));
    }

    #[test]
    fn llama3_keeps_fast_and_stretches_slow_dimensions() {
        // Llama 3.1: base 5e5, 128 dimensions, original context 8192, factors 8, 1 and 4.
        let plain = RopeSpec::new(5e5, 128);
        let scaled = plain.clone().llama3(8.0, 8192.0, 1.0, 4.0);
        for (j, (f, s)) in plain.frequencies.iter().zip(&scaled.frequencies).enumerate() {
            let wavelength = 2.0 * std::f64::consts::PI / f;
            let expected = if wavelength < 2048.0 {
                *f
            } else if wavelength > 8192.0 {
                f / 8.0
            } else {
                let smooth = (8192.0 / wavelength - 1.0) / 3.0;
                f * ((1.0 - smooth) / 8.0 + smooth)
            };
            assert!((s / expected - 1.0).abs() < 1e-14, "{j}");
        }
        assert!(scaled.frequencies[63] < plain.frequencies[63] / 7.9);
    }

    #[test]
    fn angles_are_exact_far_out() {
        let cpu = Cpu::new(1).unwrap();
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        RopeSpec::new(10_000.0, 4).angles(&cpu, &[0, 1_000_003], &mut cos, &mut sin);
        assert_eq!((cos[0], sin[0]), (1.0, 0.0));
        assert!((f64::from(cos[2]) - 1_000_003f64.cos()).abs() < 1e-7);
        assert!((f64::from(sin[3]) - 10_000.03f64.sin()).abs() < 1e-7);
    }
}
