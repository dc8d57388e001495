//! Prompt lookup: what followed the last time these tokens stood here.

use super::{DraftBatch, DraftContext, DraftSession, Drafter, PerSequence};
use crate::types::TokenId;
use crate::{BuildError, Result};

/// The longest ending that is looked for.
const MAX_LENGTH: usize = 64;

/// Looks for the sequence's last tokens earlier in the sequence and proposes what followed them there.
///
/// The longest ending wins, from `max` tokens down to `min`; of several places the most recent one. It needs no second
/// model and no memory, and helps where an answer quotes its prompt or itself: code, summaries, corrections, tables.
/// A proposal costs one pass over the sequence. Source: prompt lookup decoding (Saxena 2023), with the most recent match
/// and with continuations shorter than what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ngram {
    min: usize,
    max: usize,
}

impl Ngram {
    /// Looks for endings of `min` to `max` tokens; `1 <= min <= max <= 64` is checked when the engine is built.
    pub fn new(min: usize, max: usize) -> Ngram {
        Ngram { min, max }
    }
}

impl Default for Ngram {
    /// Endings of 1 to 3 tokens.
    fn default() -> Ngram {
        Ngram::new(1, 3)
    }
}

impl Drafter for Ngram {
    fn name(&self) -> &str {
        "ngram"
    }

    fn start(&self, _: &DraftContext) -> Result<Box<dyn DraftBatch>> {
        if !(1 <= self.min && self.min <= self.max && self.max <= MAX_LENGTH) {
            let value = format!("{} to {}", self.min, self.max);
            let range = format!("1 <= min <= max <= {MAX_LENGTH}");
            return Err(BuildError::InvalidOption { name: "ngram lengths", value, range }.into());
        }
        let ngram = *self;
        Ok(Box::new(PerSequence::new(move |_: &[TokenId]| ngram)))
    }
}

impl DraftSession for Ngram {
    fn propose(&mut self, tokens: &[TokenId], max_tokens: usize, draft: &mut Vec<TokenId>) -> Result<()> {
        if let Some(next) = self.find(tokens) {
            draft.extend(tokens[next..].iter().take(max_tokens));
        }
        Ok(())
    }
}

impl Ngram {
    /// Index of the token after the best earlier occurrence of the sequence's ending.
    fn find(&self, tokens: &[TokenId]) -> Option<usize> {
        let last = *tokens.last()?;
        let mut best = None;
        let mut longest = self.min - 1;
        for end in (0..tokens.len() - 1).rev().filter(|&end| tokens[end] == last) {
            let here = tokens[..=end].iter().rev();
            let length = here.zip(tokens.iter().rev()).take(self.max).take_while(|(a, b)| a == b).count();
            if length > longest {
                (best, longest) = (Some(end + 1), length);
                if length == self.max {
                    break;
                }
            }
        }
        best
    }
}
