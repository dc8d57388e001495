//! The ranges of sampling parameters, and which of them need which.
//!
//! Knows no sampler: what a sampler reads it says itself, by name.

use std::fmt::Display;

use crate::error::{RequestError, Result};
use crate::sample::SamplingParams;
use crate::TokenId;

/// Texts that DRY may be given as breakers.
const MAX_BREAKERS: usize = 32;
/// Bytes of one such text.
const MAX_BREAKER_BYTES: usize = 64;
/// Tokens of one breaker: a text has fewer, one a byte with what a tokenizer may put before it.
const MAX_BREAKER_TOKENS: usize = 128;

impl SamplingParams {
    /// Checks the range of every parameter that is set, and that those are set without which it means nothing.
    ///
    /// # Errors
    /// [`RequestError::InvalidParameter`] for the first one outside its range.
    pub fn validate(&self) -> Result<()> {
        self.check_filters()?;
        self.check_penalties()?;
        self.check_dry()?;
        self.check_dependencies()
    }

    fn check_filters(&self) -> Result<()> {
        let above_zero = |x: f32| x.is_finite() && x > 0.0;
        check("temperature", self.temperature, "a finite number of at least 0", |t| t.is_finite() && t >= 0.0)?;
        let temperature = self.temperature.unwrap_or(0.0);
        check("dynamic_temperature_range", self.dynamic_temperature_range, "from 0 to `temperature`", |range| {
            (0.0..=temperature).contains(&range) && (temperature + range).is_finite()
        })?;
        let exponent = self.dynamic_temperature_exponent;
        check("dynamic_temperature_exponent", exponent, "a finite number above 0", above_zero)?;
        check("top_n_sigma", self.top_n_sigma, "a finite number above 0", above_zero)?;
        check("typical_p", self.typical_p, "above 0, at most 1", |p| p > 0.0 && p <= 1.0)?;
        check("top_p", self.top_p, "above 0, at most 1", |p| p > 0.0 && p <= 1.0)?;
        check("min_p", self.min_p, "from 0 to 1", |p| (0.0..=1.0).contains(&p))?;
        check("xtc_probability", self.xtc_probability, "from 0 to 1", |p| (0.0..=1.0).contains(&p))?;
        check("xtc_threshold", self.xtc_threshold, "from 0 to 0.5", |t| (0.0..=0.5).contains(&t))?;
        check("mirostat_tau", self.mirostat_tau, "a finite number above 0", above_zero)?;
        check("mirostat_eta", self.mirostat_eta, "from 0 to 1", |eta| (0.0..=1.0).contains(&eta))
    }

    fn check_penalties(&self) -> Result<()> {
        check("repetition_penalty", self.repetition_penalty, "a finite number above 0", |r| r.is_finite() && r > 0.0)?;
        check("frequency_penalty", self.frequency_penalty, "from -2 to 2", |f| (-2.0..=2.0).contains(&f))?;
        check("presence_penalty", self.presence_penalty, "from -2 to 2", |p| (-2.0..=2.0).contains(&p))?;
        check("penalty_window", self.penalty_window, "at least 1", |n| n >= 1)?;
        for (token, bias) in self.logit_bias.iter().flatten() {
            if !(-100.0..=100.0).contains(bias) {
                return Err(invalid("logit_bias", format!("{bias} for token {token}"), "from -100 to 100"));
            }
        }
        Ok(())
    }

    fn check_dry(&self) -> Result<()> {
        check("dry_multiplier", self.dry_multiplier, "a finite number of at least 0", |m| m.is_finite() && m >= 0.0)?;
        check("dry_base", self.dry_base, "a finite number of at least 1", |b| b.is_finite() && b >= 1.0)?;
        check("dry_allowed_length", self.dry_allowed_length, "at least 1", |n| n >= 1)?;
        check("dry_window", self.dry_window, "at least 1", |n| n >= 1)?;
        let texts = self.dry_breakers.as_deref().unwrap_or_default();
        if texts.len() > MAX_BREAKERS {
            return Err(invalid("dry_breakers", format!("{} texts", texts.len()), "at most 32 texts"));
        }
        if let Some(text) = texts.iter().find(|text| !(1..=MAX_BREAKER_BYTES).contains(&text.len())) {
            return Err(invalid("dry_breakers", format!("a text of {} bytes", text.len()), "texts of 1 to 64 bytes"));
        }
        let sequences = self.dry_breaker_ids.as_deref().unwrap_or_default();
        if let Some(ids) = sequences.iter().find(|ids| !(1..=MAX_BREAKER_TOKENS).contains(&ids.len())) {
            let value = format!("a sequence of {} tokens", ids.len());
            return Err(invalid("dry_breaker_ids", value, "sequences of 1 to 128 tokens"));
        }
        if self.dry_breakers.is_some() && self.dry_breaker_ids.is_some() {
            let value = "set beside `dry_breakers`".to_string();
            return Err(invalid("dry_breaker_ids", value, "either texts or ids"));
        }
        Ok(())
    }

    fn check_dependencies(&self) -> Result<()> {
        const DRY: &str = "set only together with `dry_multiplier`";
        let penalties = [self.repetition_penalty, self.frequency_penalty, self.presence_penalty];
        let has_penalty = penalties.iter().any(Option::is_some);
        let has_range = self.dynamic_temperature_range.is_some();
        let (has_xtc, has_dry) = (self.xtc_probability.is_some(), self.dry_multiplier.is_some());
        for (name, other_is_set, range) in [
            ("dynamic_temperature_exponent", has_range, "set only together with `dynamic_temperature_range`"),
            ("xtc_threshold", has_xtc, "set only together with `xtc_probability`"),
            (
                "penalty_window",
                has_penalty,
                "set only together with `repetition_penalty`, `frequency_penalty` or `presence_penalty`",
            ),
            ("dry_base", has_dry, DRY),
            ("dry_allowed_length", has_dry, DRY),
            ("dry_window", has_dry, DRY),
            ("dry_breakers", has_dry, DRY),
            ("dry_breaker_ids", has_dry, DRY),
            ("mirostat_eta", self.mirostat_tau.is_some(), "set only together with `mirostat_tau`"),
        ] {
            if !other_is_set && self.names().any(|set| set == name) {
                return Err(invalid(name, "set alone".to_string(), range));
            }
        }
        Ok(())
    }

    /// Checks every token id among the parameters against the vocabulary.
    ///
    /// # Errors
    /// [`RequestError::TokenOutOfRange`] for the first one that the vocabulary lacks.
    pub fn check_vocabulary(&self, vocab_size: usize) -> Result<()> {
        let biased = self.logit_bias.iter().flat_map(|bias| bias.keys());
        let breakers = self.dry_breaker_ids.iter().flatten().flatten();
        match biased.chain(breakers).find(|token| **token as usize >= vocab_size) {
            Some(&token) => Err(out_of_range(token, vocab_size)),
            None => Ok(()),
        }
    }

    /// Refuses parameters that are set but not among `used`.
    ///
    /// # Errors
    /// [`RequestError::UnusedParameter`] for the first such one.
    pub fn allow_only(&self, used: &[&str], sampler: &str) -> Result<()> {
        match self.names().find(|name| !used.contains(name)) {
            Some(name) => Err(RequestError::UnusedParameter { name, sampler: sampler.to_owned() }.into()),
            None => Ok(()),
        }
    }

    /// Names of the parameters that are set.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        [
            ("temperature", self.temperature.is_some()),
            ("dynamic_temperature_range", self.dynamic_temperature_range.is_some()),
            ("dynamic_temperature_exponent", self.dynamic_temperature_exponent.is_some()),
            ("top_n_sigma", self.top_n_sigma.is_some()),
            ("top_k", self.top_k.is_some()),
            ("typical_p", self.typical_p.is_some()),
            ("top_p", self.top_p.is_some()),
            ("min_p", self.min_p.is_some()),
            ("xtc_probability", self.xtc_probability.is_some()),
            ("xtc_threshold", self.xtc_threshold.is_some()),
            ("repetition_penalty", self.repetition_penalty.is_some()),
            ("frequency_penalty", self.frequency_penalty.is_some()),
            ("presence_penalty", self.presence_penalty.is_some()),
            ("penalty_window", self.penalty_window.is_some()),
            ("dry_multiplier", self.dry_multiplier.is_some()),
            ("dry_base", self.dry_base.is_some()),
            ("dry_allowed_length", self.dry_allowed_length.is_some()),
            ("dry_window", self.dry_window.is_some()),
            ("dry_breakers", self.dry_breakers.is_some()),
            ("dry_breaker_ids", self.dry_breaker_ids.is_some()),
            ("logit_bias", self.logit_bias.is_some()),
            ("mirostat_tau", self.mirostat_tau.is_some()),
            ("mirostat_eta", self.mirostat_eta.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, is_set)| is_set.then_some(name))
    }
}

pub(super) fn invalid(name: &'static str, value: String, range: &'static str) -> crate::Error {
    RequestError::InvalidParameter { name, value, range }.into()
}

pub(super) fn out_of_range(token: TokenId, vocab_size: usize) -> crate::Error {
    RequestError::TokenOutOfRange { token, vocab_size }.into()
}

fn check<T: Copy + Display>(
    name: &'static str,
    value: Option<T>,
    range: &'static str,
    accepted: impl Fn(T) -> bool,
) -> Result<()> {
    match value {
        Some(value) if !accepted(value) => Err(invalid(name, value.to_string(), range)),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
