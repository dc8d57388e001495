//! The stages of a chain and the orders in which they may stand.
//!
//! Data only: what a stage computes is told elsewhere.

use std::fmt;

use crate::error::Result;
use crate::sample::validate::invalid;

/// One stage of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Stage {
    /// Repetition, frequency and presence penalty.
    Penalties,
    /// The penalty on repeated sequences.
    Dry,
    /// Biases of single tokens.
    Bias,
    /// The temperature, dynamic or not.
    Temperature,
    /// Top-n-sigma.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Typical-p.
    Typical,
    /// Top-p.
    TopP,
    /// Min-p.
    MinP,
    /// XTC.
    Xtc,
    /// Mirostat 2.
    Mirostat,
}

impl Stage {
    /// All stages in the order that a chain has by default.
    pub const DEFAULT_ORDER: [Stage; 11] = [
        Stage::Penalties,
        Stage::Dry,
        Stage::Bias,
        Stage::Temperature,
        Stage::TopNSigma,
        Stage::TopK,
        Stage::Typical,
        Stage::TopP,
        Stage::MinP,
        Stage::Xtc,
        Stage::Mirostat,
    ];

    /// The stage's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Penalties => "penalties",
            Stage::Dry => "dry",
            Stage::Bias => "bias",
            Stage::Temperature => "temperature",
            Stage::TopNSigma => "top_n_sigma",
            Stage::TopK => "top_k",
            Stage::Typical => "typical",
            Stage::TopP => "top_p",
            Stage::MinP => "min_p",
            Stage::Xtc => "xtc",
            Stage::Mirostat => "mirostat",
        }
    }

    /// Names of the parameters that the stage reads.
    pub fn parameters(self) -> &'static [&'static str] {
        match self {
            Stage::Penalties => &["repetition_penalty", "frequency_penalty", "presence_penalty", "penalty_window"],
            Stage::Dry => {
                &["dry_multiplier", "dry_base", "dry_allowed_length", "dry_window", "dry_breakers", "dry_breaker_ids"]
            }
            Stage::Bias => &["logit_bias"],
            Stage::Temperature => &["temperature", "dynamic_temperature_range", "dynamic_temperature_exponent"],
            Stage::TopNSigma => &["top_n_sigma"],
            Stage::TopK => &["top_k"],
            Stage::Typical => &["typical_p"],
            Stage::TopP => &["top_p"],
            Stage::MinP => &["min_p"],
            Stage::Xtc => &["xtc_probability", "xtc_threshold"],
            Stage::Mirostat => &["mirostat_tau", "mirostat_eta"],
        }
    }

    /// Whether the stage changes logits of the whole row, so that it must stand before all that drop tokens.
    pub(super) fn is_on_row(self) -> bool {
        matches!(self, Stage::Penalties | Stage::Dry | Stage::Bias)
    }

    /// Whether a chain may have this order.
    pub(super) fn check_order(order: &[Stage]) -> Result<()> {
        const RANGE: &str = "each stage at most once; penalties, dry and bias before all others, mirostat last";
        for (at, stage) in order.iter().enumerate() {
            let fault = if order[..at].contains(stage) {
                "twice"
            } else if stage.is_on_row() && order[..at].iter().any(|before| !before.is_on_row()) {
                "behind a stage that drops tokens or scales logits"
            } else if *stage == Stage::Mirostat && at + 1 < order.len() {
                "before another stage"
            } else {
                continue;
            };
            return Err(invalid("order", format!("{stage} {fault}"), RANGE));
        }
        Ok(())
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
