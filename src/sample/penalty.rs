//! Penalties on tokens that were seen before.

use crate::sample::SampleContext;
use crate::TokenId;

/// Repetition penalty (CTRL, arXiv 1909.05858): logits above 0 of seen tokens are divided, others multiplied by it.
///
/// A token is penalized once, however often it was seen. What was seen is read from the context at every position, so
/// that the result under drafting is that of a step-by-step run.
#[derive(Clone, Debug)]
pub(super) struct RepetitionPenalty {
    penalty: f32,
    /// Only the last n tokens of prompt and answer count; `None`: all.
    window: Option<usize>,
    /// One bit per token; all zero between calls.
    seen: Vec<u64>,
}

impl RepetitionPenalty {
    pub(super) fn new(penalty: f32, window: Option<u32>) -> Self {
        let window = window.map(|window| usize::try_from(window).unwrap_or(usize::MAX));
        RepetitionPenalty { penalty, window, seen: Vec::new() }
    }

    /// Linear in the number of tokens looked at. Tokens outside the vocabulary are ignored.
    pub(super) fn apply(&mut self, context: &SampleContext<'_>, logits: &mut [f32]) {
        let window = self.window.unwrap_or(usize::MAX);
        let generated = last(context.generated, window);
        let prompt = last(context.prompt, window - generated.len());
        self.seen.resize(logits.len().div_ceil(64), 0);
        for &token in prompt.iter().chain(generated) {
            let token = token as usize;
            let Some(logit) = logits.get_mut(token) else { continue };
            let (word, bit) = (token / 64, 1 << (token % 64));
            if self.seen[word] & bit == 0 {
                self.seen[word] |= bit;
                *logit = if *logit > 0.0 { *logit / self.penalty } else { *logit * self.penalty };
            }
        }
        for &token in prompt.iter().chain(generated) {
            if let Some(word) = self.seen.get_mut(token as usize / 64) {
                *word = 0;
            }
        }
    }
}

fn last(tokens: &[TokenId], count: usize) -> &[TokenId] {
    &tokens[tokens.len().saturating_sub(count)..]
}
