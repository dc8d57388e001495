//! Sampling parameters of a request, one setter each: the request's side of [`SamplingParams`].
//!
//! Sets and checks nothing: ranges are checked at submit, by the sampler.

use super::Request;
use crate::sample::SamplingParams;
use crate::types::TokenId;

/// Setters, all alike.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        /// Sampling parameters. Values out of range, and parameters that the sampler does not use, are errors at submit.
        impl Request {
            $($(#[$doc])*
            pub fn $name(mut self, $name: $type) -> Request {
                self.params.$name = Some($name);
                self
            })*
        }
    };
}

setters! {
    /// Sampling temperature: 0 (the default) takes the most probable token, 1 samples as the model says.
    temperature: f32;
    /// How far the temperature may go up and down with the entropy, from 0 to the temperature.
    dynamic_temperature_range: f32;
    /// The exponent of the dynamic temperature, above 0; default: 1.
    dynamic_temperature_exponent: f32;
    /// Keeps tokens within this many standard deviations of the highest logit, above 0.
    top_n_sigma: f32;
    /// Keeps the k most probable tokens; 0 keeps all.
    top_k: u32;
    /// Keeps the smallest set of typical tokens with at least this mass, in (0, 1].
    typical_p: f32;
    /// Keeps the smallest set of most probable tokens with at least this mass, in (0, 1].
    top_p: f32;
    /// Keeps tokens with at least this share of the most probable one's probability, in [0, 1].
    min_p: f32;
    /// How often XTC drops the top choices but the last of them, in [0, 1].
    xtc_probability: f32;
    /// From which probability XTC counts a token as a top choice, in [0, 0.5]; default: 0.1.
    xtc_threshold: f32;
    /// Divides the positive logits of tokens seen before, and multiplies the negative ones; above 0, 1 is neutral.
    repetition_penalty: f32;
    /// Subtracted from a token's logit for each time that the answer has it, in [-2, 2].
    frequency_penalty: f32;
    /// Subtracted from a token's logit if the answer has it, in [-2, 2].
    presence_penalty: f32;
    /// Restricts these three penalties to the last n tokens; default: all.
    penalty_window: u32;
    /// DRY's penalty on lengthening a repetition; at least 0, 0 is off.
    dry_multiplier: f32;
    /// Growth of DRY's penalty per token of the repetition, at least 1; default: 1.75.
    dry_base: f32;
    /// Repetition from which DRY acts, in tokens; default: 2.
    dry_allowed_length: u32;
    /// Restricts DRY to the last n tokens; default: all.
    dry_window: u32;
    /// Texts that a repetition does not reach across; default: [`SamplingParams::DEFAULT_DRY_BREAKERS`].
    dry_breakers: Vec<String>;
    /// The same as sequences of token ids, instead of texts.
    dry_breaker_ids: Vec<Vec<TokenId>>;
    /// Mirostat 2: bits of surprise per token to hold the answer at, above 0.
    mirostat_tau: f32;
    /// How fast mirostat corrects itself, in [0, 1]; default: 0.1.
    mirostat_eta: f32;
}

impl Request {
    /// Adds this to the token's logit, in [-100, 100]; may be called for several tokens.
    pub fn logit_bias(mut self, token: TokenId, bias: f32) -> Request {
        self.params = self.params.with_logit_bias(token, bias);
        self
    }

    /// All sampling parameters at once.
    pub fn params(mut self, params: SamplingParams) -> Request {
        self.params = params;
        self
    }
}
