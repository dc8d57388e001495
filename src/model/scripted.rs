//! A model that a test writes: logits are a function of the tokens so far.
//!
//! It keeps its tokens where a model keeps its keys, in the KV blocks, and reads the history back from there. So whatever
//! the engine does wrong with tables, rejected drafts or copies shows as a wrong history.

use super::{Model, Span, TakeLogits};
use crate::cache::{BlockArena, CacheLayout};
use crate::error::MatmulError;
use crate::kernel::{KvShape, BLOCK_TOKENS};
use crate::quant::MatrixInfo;
use crate::source::Metadata;
use crate::types::TokenId;
use crate::Result;

/// Writes the logits after a history; they are −∞ before the call.
pub(crate) type Script = Box<dyn FnMut(&[TokenId], &mut [f32]) + Send>;

/// See the file's head.
pub(crate) struct Scripted {
    pub(crate) vocab_size: usize,
    pub(crate) context_length: usize,
    pub(crate) script: Script,
}

impl Scripted {
    /// Vocabulary and context of the model that a script stands in for.
    pub(crate) fn sizes(metadata: &Metadata) -> Result<(usize, usize)> {
        let key = "general.architecture";
        let architecture = metadata.string(key)?.ok_or_else(|| metadata.missing(key))?;
        let key = format!("{architecture}.context_length");
        let context = metadata.unsigned(&key)?.ok_or_else(|| metadata.missing(&key))?;
        let vocab = metadata.strings("tokenizer.ggml.tokens")?.map_or(0, |tokens| tokens.len());
        Ok((vocab, usize::try_from(context).unwrap_or(usize::MAX)))
    }
}

impl Model for Scripted {
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn context_length(&self) -> usize {
        self.context_length
    }

    fn kv_shape(&self) -> KvShape {
        KvShape { kv_heads: 1, head_dim: 1 }
    }

    fn cache_layout(&self) -> CacheLayout {
        CacheLayout::new([None])
    }

    fn matrices(&self) -> Vec<MatrixInfo> {
        Vec::new()
    }

    fn row_invariant(&self) -> bool {
        true
    }

    fn forward(
        &mut self,
        arena: &mut BlockArena,
        spans: &[Span<'_>],
        wanted: &[usize],
        take: &mut TakeLogits<'_>,
    ) -> Result<(), MatmulError> {
        let mut wanted = wanted.iter().copied().enumerate().peekable();
        let mut logits = vec![f32::NEG_INFINITY; self.vocab_size];
        let mut row = 0;
        for span in spans {
            let table = span.cache.table(0);
            let first = span.cache.len();
            let place = |at: usize| (table[at / BLOCK_TOKENS], at % BLOCK_TOKENS);
            let mut history: Vec<TokenId> = Vec::with_capacity(first + span.tokens.len());
            for at in 0..first {
                let (block, offset) = place(at);
                let mut key = [0.0];
                arena.blocks().read_key(block, offset, &mut key);
                history.push(key[0] as TokenId);
            }
            for (at, &token) in (first..).zip(span.tokens) {
                let (block, offset) = place(at);
                // Exact: ids are far below 2²⁴, and the engine of a script keeps its keys in f32.
                arena.blocks_mut().write(block, offset, &[token as f32], &[0.0]);
                history.push(token);
                if let Some((index, _)) = wanted.next_if(|(_, wanted)| *wanted == row) {
                    logits.fill(f32::NEG_INFINITY);
                    (self.script)(&history, &mut logits);
                    take(index, &mut logits);
                }
                row += 1;
            }
        }
        Ok(())
    }
}
