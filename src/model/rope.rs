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

    /// YaRN (arXiv 2309.00071): low frequencies are stretched, high ones kept, with a ramp between the dimensions
    /// that turn `beta_fast` = 32 and `beta_slow` = 1 times within the original context.
    pub(crate) fn yarn(mut self, base: f64, factor: f64, original_context: f64, attention_factor: f64) -> RopeSpec {
        let dims = 2.0 * self.frequencies.len() as f64;
        let turns = |r: f64| dims * (original_context / (2.0 * std::f64::consts::PI * r)).ln() / (2.0 * base.ln());
        let low = turns(32.0).floor().max(0.0);
        let high = turns(1.0).ceil().min(dims - 1.0);
        let width = if high > low { high - low } else { 0.001 };
        for (j, f) in self.frequencies.iter_mut().enumerate() {
            let ramp = ((j as f64 - low) / width).clamp(0.0, 1.0);
            *f = *f / factor * ramp + *f * (1.0 - ramp);
        }
        let growth = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
        self.magnitude = growth * attention_factor;
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
        let yarn = plain.clone().yarn(1e6, 4.0, 32768.0, 1.0);
        assert_eq!(yarn.frequencies[0], plain.frequencies[0]);
        assert!((yarn.frequencies[63] * 4.0 - plain.frequencies[63]).abs() < 1e-18);
        assert!((yarn.magnitude - 1.138_629_436_111_989).abs() < 1e-12);
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
