//! The sampling parameters of one request: plain data.
//!
//! Their ranges are checked next door, in `validate`; which of them mean something is the sampler's matter.

use std::collections::BTreeMap;

use crate::TokenId;

/// Sampling parameters of one request. `None` is "not set": the neutral value, and for the temperature 0 (greedy).
///
/// A parameter that is set must be used: a sampler refuses what it does not read. So does a parameter that means
/// nothing without another one. Nothing is clamped.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SamplingParams {
    /// Divides the logits; finite, at least 0. 0 takes the token with the highest logit, ties to the lower id.
    pub temperature: Option<f32>,
    /// Lets the temperature follow the entropy, between `temperature` − range and `temperature` + range; from 0 to
    /// `temperature`, 0 changes nothing.
    pub dynamic_temperature_range: Option<f32>,
    /// Exponent on the normalized entropy, with `dynamic_temperature_range`; finite, above 0. Default: 1.
    pub dynamic_temperature_exponent: Option<f32>,
    /// Keeps tokens whose logit is at most this many standard deviations of all allowed logits below the highest;
    /// finite, above 0.
    pub top_n_sigma: Option<f32>,
    /// Keeps the k tokens with the highest logits, ties to the lower id; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keeps the smallest set of tokens, those first whose information is nearest to the entropy, whose mass is at
    /// least this; in (0, 1], 1 keeps all.
    pub typical_p: Option<f32>,
    /// Keeps the smallest set of most probable tokens whose mass is at least this; in (0, 1], 1 keeps all.
    pub top_p: Option<f32>,
    /// Keeps tokens with at least this share of the largest probability; in \[0, 1\], 0 keeps all.
    pub min_p: Option<f32>,
    /// How often XTC ("exclude top choices") acts: it drops all tokens of at least `xtc_threshold` but the least
    /// probable of them; in \[0, 1\], 0 changes nothing.
    pub xtc_probability: Option<f32>,
    /// Probability from which XTC counts a token as a top choice; from 0 to 0.5, for above that there can be no two.
    /// Default: 0.1.
    pub xtc_threshold: Option<f32>,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer; finite, above 0, 1 changes nothing.
    pub repetition_penalty: Option<f32>,
    /// Subtracted once for each time that the answer has the token; in [−2, 2], 0 changes nothing.
    pub frequency_penalty: Option<f32>,
    /// Subtracted once if the answer has the token; in [−2, 2], 0 changes nothing.
    pub presence_penalty: Option<f32>,
    /// Restricts the three penalties to the last n tokens of prompt and answer together; at least 1. Default: all.
    pub penalty_window: Option<u32>,
    /// DRY ("don't repeat yourself"): the penalty on a token that would lengthen a repetition of `dry_allowed_length`
    /// tokens; finite, at least 0, 0 changes nothing.
    pub dry_multiplier: Option<f32>,
    /// Factor of the penalty for each further token of the repetition; finite, at least 1. Default: 1.75.
    pub dry_base: Option<f32>,
    /// The longest repetition that DRY leaves alone is one shorter than this; at least 1. Default: 2.
    pub dry_allowed_length: Option<u32>,
    /// Restricts DRY to the last n tokens of prompt and answer together; at least 1. Default: all.
    pub dry_window: Option<u32>,
    /// Texts that a repetition does not reach across; at most 32 of at most 64 bytes. Default:
    /// [`Self::DEFAULT_DRY_BREAKERS`]. The engine turns them into `dry_breaker_ids`.
    pub dry_breakers: Option<Vec<String>>,
    /// The same as sequences of token ids, instead of texts; each of 1 to 128 tokens.
    pub dry_breaker_ids: Option<Vec<Vec<TokenId>>>,
    /// Added to the logits of these tokens; each in [−100, 100]. A forbidden token stays forbidden.
    pub logit_bias: Option<BTreeMap<TokenId, f32>>,
    /// Mirostat 2: the surprise, in bits per token, that the answer is held at; finite, above 0.
    pub mirostat_tau: Option<f32>,
    /// How fast mirostat corrects itself; in [0, 1]. Default: 0.1.
    pub mirostat_eta: Option<f32>,
}

impl SamplingParams {
    /// What no repetition reaches across, if the request does not say otherwise.
    pub const DEFAULT_DRY_BREAKERS: [&'static str; 4] = ["\n", ":", "\"", "*"];

    /// Nothing set.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Setters, all alike.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $field:ident = $type:ty;)*) => {
        impl SamplingParams {
            $($(#[$doc])*
            pub fn $name(mut self, $field: $type) -> Self {
                self.$field = Some($field);
                self
            })*
        }
    };
}

setters! {
    /// Sets the temperature.
    with_temperature: temperature = f32;
    /// Sets the range of the dynamic temperature.
    with_dynamic_temperature_range: dynamic_temperature_range = f32;
    /// Sets the exponent of the dynamic temperature.
    with_dynamic_temperature_exponent: dynamic_temperature_exponent = f32;
    /// Sets top-n-sigma.
    with_top_n_sigma: top_n_sigma = f32;
    /// Sets top-k.
    with_top_k: top_k = u32;
    /// Sets typical-p.
    with_typical_p: typical_p = f32;
    /// Sets top-p.
    with_top_p: top_p = f32;
    /// Sets min-p.
    with_min_p: min_p = f32;
    /// Sets how often XTC acts.
    with_xtc_probability: xtc_probability = f32;
    /// Sets XTC's threshold.
    with_xtc_threshold: xtc_threshold = f32;
    /// Sets the repetition penalty.
    with_repetition_penalty: repetition_penalty = f32;
    /// Sets the frequency penalty.
    with_frequency_penalty: frequency_penalty = f32;
    /// Sets the presence penalty.
    with_presence_penalty: presence_penalty = f32;
    /// Sets the window of the penalties.
    with_penalty_window: penalty_window = u32;
    /// Sets DRY's multiplier.
    with_dry_multiplier: dry_multiplier = f32;
    /// Sets DRY's base.
    with_dry_base: dry_base = f32;
    /// Sets the repetition from which DRY acts.
    with_dry_allowed_length: dry_allowed_length = u32;
    /// Sets DRY's window.
    with_dry_window: dry_window = u32;
    /// Sets DRY's breakers as texts.
    with_dry_breakers: dry_breakers = Vec<String>;
    /// Sets DRY's breakers as sequences of token ids.
    with_dry_breaker_ids: dry_breaker_ids = Vec<Vec<TokenId>>;
    /// Sets mirostat's target.
    with_mirostat_tau: mirostat_tau = f32;
    /// Sets mirostat's rate.
    with_mirostat_eta: mirostat_eta = f32;
}

impl SamplingParams {
    /// Adds a token's bias; the last one of a token counts.
    pub fn with_logit_bias(mut self, token: TokenId, bias: f32) -> Self {
        self.logit_bias.get_or_insert_default().insert(token, bias);
        self
    }
}
