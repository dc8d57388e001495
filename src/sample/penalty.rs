//! Penalties on tokens that were seen before, and biases: what changes single logits of the row.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::sample::validate::out_of_range;
use crate::sample::{SampleContext, SamplingParams};
use crate::TokenId;

/// Repetition, frequency and presence penalty, in this order.
///
/// * Repetition (CTRL, arXiv 1909.05858): logits above 0 of tokens seen in prompt or answer are divided, others
///   multiplied by it, once however often a token was seen.
/// * Frequency and presence: what is subtracted depends on the answer's tokens only.
///
/// What was seen is read from the context at every position, so that the result under drafting is that of a
/// step-by-step run. A finite logit never becomes −∞: a penalty must not forbid.
#[derive(Clone, Debug)]
pub(super) struct Penalties {
    repetition: f32,
    frequency: f32,
    presence: f32,
    /// Only the last n tokens of prompt and answer count.
    window: usize,
    /// Per token: 0, or 1 + how often the answer has it; all zero between calls.
    seen: Vec<u32>,
}

impl Penalties {
    /// `None` if the request sets none, or only neutral ones.
    pub(super) fn new(params: &SamplingParams) -> Option<Self> {
        let repetition = params.repetition_penalty.unwrap_or(1.0);
        let frequency = params.frequency_penalty.unwrap_or(0.0);
        let presence = params.presence_penalty.unwrap_or(0.0);
        let window = window(params.penalty_window);
        let acts = repetition != 1.0 || frequency != 0.0 || presence != 0.0;
        acts.then_some(Penalties { repetition, frequency, presence, window, seen: Vec::new() })
    }

    /// Linear in the number of tokens looked at. Tokens outside the vocabulary are ignored.
    pub(super) fn apply(&mut self, context: &SampleContext<'_>, logits: &mut [f32]) {
        let (prompt, generated) = history(context, self.window);
        self.seen.resize(logits.len(), 0);
        for &token in generated {
            if let Some(seen) = self.seen.get_mut(token as usize) {
                *seen = (*seen).max(1).saturating_add(1);
            }
        }
        for &token in prompt {
            if let Some(seen) = self.seen.get_mut(token as usize) {
                *seen = (*seen).max(1);
            }
        }
        for &token in prompt.iter().chain(generated) {
            let token = token as usize;
            // A count of zero: the token is unknown, or was worked off already.
            let count = self.seen.get_mut(token).map_or(0, std::mem::take);
            if count > 0 {
                logits[token] = self.penalized(logits[token], count - 1);
            }
        }
    }

    fn penalized(&self, logit: f32, count: u32) -> f32 {
        if !logit.is_finite() {
            return logit;
        }
        let logit = if logit > 0.0 { logit / self.repetition } else { (logit * self.repetition).max(f32::MIN) };
        if count == 0 {
            return logit;
        }
        lowered(logit, f64::from(self.frequency) * f64::from(count) + f64::from(self.presence))
    }
}

/// A logit less an amount. What cannot be ranked stays so, and what is allowed stays allowed.
pub(super) fn lowered(logit: f32, amount: f64) -> f32 {
    if logit.is_finite() {
        ((f64::from(logit) - amount) as f32).max(f32::MIN)
    } else {
        logit
    }
}

/// Adds each token's bias to its logit; −∞ stays −∞.
pub(super) fn add_bias(bias: &BTreeMap<TokenId, f32>, logits: &mut [f32]) -> Result<()> {
    for (&token, &bias) in bias {
        let vocab_size = logits.len();
        let Some(logit) = logits.get_mut(token as usize) else { return Err(out_of_range(token, vocab_size)) };
        *logit = lowered(*logit, -f64::from(bias));
    }
    Ok(())
}

/// A window in tokens; not set means all.
pub(super) fn window(tokens: Option<u32>) -> usize {
    tokens.map_or(usize::MAX, |tokens| usize::try_from(tokens).unwrap_or(usize::MAX))
}

/// The last `window` tokens of prompt and answer together: what of the prompt, and what of the answer.
pub(super) fn history<'a>(context: &SampleContext<'a>, window: usize) -> (&'a [TokenId], &'a [TokenId]) {
    let generated = last(context.generated, window);
    (last(context.prompt, window - generated.len()), generated)
}

fn last(tokens: &[TokenId], count: usize) -> &[TokenId] {
    &tokens[tokens.len().saturating_sub(count)..]
}

#[cfg(test)]
#[path = "penalty_tests.rs"]
mod tests;
