//! A sequence: its tokens, and which of them the model has run.

use crate::cache::SequenceCache;
use crate::types::TokenId;

/// Prompt and generated tokens with their place in the KV cache.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) prompt_len: usize,
    pub(crate) cache: SequenceCache,
    /// Blocks that the sequence may come to hold, set aside at admission.
    pub(crate) blocks: usize,
}

impl Sequence {
    /// Tokens that the model has not run yet.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.cache.len()
    }

    /// Whether only the last token has not run: the next row gives a new one.
    pub(crate) fn decodes(&self) -> bool {
        self.pending() == 1
    }

    pub(crate) fn prompt(&self) -> &[TokenId] {
        &self.tokens[..self.prompt_len]
    }

    pub(crate) fn generated(&self) -> &[TokenId] {
        &self.tokens[self.prompt_len..]
    }
}
