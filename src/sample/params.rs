//! The sampling parameters of one request and their ranges.
//!
//! Plain data: which of them mean something is the sampler's matter.

use crate::error::{RequestError, Result};

/// Sampling parameters of one request. `None` is "not set": the neutral value, and for the temperature 0 (greedy).
///
/// A parameter that is set must be used: a sampler refuses what it does not read.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SamplingParams {
    /// Divides the logits; finite, at least 0. 0 takes the token with the highest logit, ties to the lower id.
    pub temperature: Option<f32>,
    /// Keeps the k tokens with the highest logits, ties to the lower id; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keeps the smallest set of most probable tokens whose mass is at least this; in (0, 1], 1 keeps all.
    pub top_p: Option<f32>,
    /// Keeps tokens with at least this share of the largest probability; in \[0, 1\], 0 keeps all.
    pub min_p: Option<f32>,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer; finite, above 0, 1 changes nothing.
    pub repetition_penalty: Option<f32>,
    /// Restricts `repetition_penalty` to the last n tokens of prompt and answer together; at least 1. Default: all.
    pub repetition_window: Option<u32>,
}

impl SamplingParams {
    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the temperature.
    pub fn with_temperature(mut self, temperature: f32) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Sets top-k.
    pub fn with_top_k(mut self, top_k: u32) -> Self {
        self.top_k = Some(top_k);
        self
    }

    /// Sets top-p.
    pub fn with_top_p(mut self, top_p: f32) -> Self {
        self.top_p = Some(top_p);
        self
    }

    /// Sets min-p.
    pub fn with_min_p(mut self, min_p: f32) -> Self {
        self.min_p = Some(min_p);
        self
    }

    /// Sets the repetition penalty.
    pub fn with_repetition_penalty(mut self, penalty: f32) -> Self {
        self.repetition_penalty = Some(penalty);
        self
    }

    /// Sets the window of the repetition penalty.
    pub fn with_repetition_window(mut self, tokens: u32) -> Self {
        self.repetition_window = Some(tokens);
        self
    }

    /// Checks the range of every parameter that is set.
    ///
    /// # Errors
    /// [`RequestError::InvalidParameter`] for the first one outside its range.
    pub fn validate(&self) -> Result<()> {
        check("temperature", self.temperature, "a finite number of at least 0", |t| t.is_finite() && t >= 0.0)?;
        check("top_p", self.top_p, "above 0, at most 1", |p| p > 0.0 && p <= 1.0)?;
        check("min_p", self.min_p, "from 0 to 1", |p| (0.0..=1.0).contains(&p))?;
        check("repetition_penalty", self.repetition_penalty, "a finite number above 0", |r| r.is_finite() && r > 0.0)?;
        check("repetition_window", self.repetition_window, "at least 1", |n| n >= 1)?;
        if let (Some(window), None) = (self.repetition_window, self.repetition_penalty) {
            return Err(RequestError::InvalidParameter {
                name: "repetition_window",
                value: window.to_string(),
                range: "set only together with `repetition_penalty`",
            }
            .into());
        }
        Ok(())
    }

    /// Refuses parameters that are set but not among `used`.
    ///
    /// # Errors
    /// [`RequestError::UnusedParameter`] for the first such one.
    pub fn allow_only(&self, used: &[&str], sampler: &str) -> Result<()> {
        let set = [
            ("temperature", self.temperature.is_some()),
            ("top_k", self.top_k.is_some()),
            ("top_p", self.top_p.is_some()),
            ("min_p", self.min_p.is_some()),
            ("repetition_penalty", self.repetition_penalty.is_some()),
            ("repetition_window", self.repetition_window.is_some()),
        ];
        match set.into_iter().find(|(name, is_set)| *is_set && !used.contains(name)) {
            Some((name, _)) => Err(RequestError::UnusedParameter { name, sampler: sampler.to_owned() }.into()),
            None => Ok(()),
        }
    }
}

fn check<T: Copy + std::fmt::Display>(
    name: &'static str,
    value: Option<T>,
    range: &'static str,
    accepted: impl Fn(T) -> bool,
) -> Result<()> {
    match value {
        Some(value) if !accepted(value) => {
            Err(RequestError::InvalidParameter { name, value: value.to_string(), range }.into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn out_of_range_is_refused_by_name_and_never_clamped() {
        let params = SamplingParams::new;
        let cases = [
            (params().with_temperature(-0.1), "temperature"),
            (params().with_temperature(f32::NAN), "temperature"),
            (params().with_temperature(f32::INFINITY), "temperature"),
            (params().with_top_p(0.0), "top_p"),
            (params().with_top_p(1.0001), "top_p"),
            (params().with_top_p(f32::NAN), "top_p"),
            (params().with_min_p(-0.1), "min_p"),
            (params().with_min_p(1.1), "min_p"),
            (params().with_min_p(f32::NAN), "min_p"),
            (params().with_repetition_penalty(0.0), "repetition_penalty"),
            (params().with_repetition_penalty(f32::INFINITY), "repetition_penalty"),
            (params().with_repetition_penalty(1.1).with_repetition_window(0), "repetition_window"),
            (params().with_repetition_window(5), "repetition_window"),
        ];
        for (params, expected) in cases {
            match params.validate() {
                Err(Error::Request(RequestError::InvalidParameter { name, .. })) => assert_eq!(name, expected),
                other => panic!("{params:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_borders_of_the_ranges_are_accepted() {
        let params = SamplingParams::new()
            .with_temperature(0.0)
            .with_top_k(0)
            .with_top_p(1.0)
            .with_min_p(0.0)
            .with_repetition_penalty(f32::MIN_POSITIVE)
            .with_repetition_window(1);
        params.validate().unwrap();
        SamplingParams::new().with_min_p(1.0).with_top_k(u32::MAX).validate().unwrap();
    }
}
