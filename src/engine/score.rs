//! Scoring given tokens: perplexity, evaluation, comparison with other engines.

use super::output::Score;
use super::Engine;
use crate::cache::SequenceCache;
use crate::model::Span;
use crate::sample::{log_probs, LogProbs};
use crate::types::TokenId;
use crate::{Error, RequestError, ResourceError, Result};

impl Engine {
    /// Runs `tokens` exactly as given and reports how well the model predicts those from index `first` on (index 0
    /// has no prediction, so `first` 0 means 1), and the logits after the last one.
    ///
    /// # Errors
    /// No tokens, tokens outside the vocabulary, more than the context, `first` beyond the end, a KV cache that
    /// running requests have claimed, logits that are not finite, a quantizer's matrix that fails.
    pub fn score(&mut self, tokens: &[TokenId], first: usize) -> Result<Score> {
        self.check_tokens(tokens)?;
        let (prompt, context) = (tokens.len(), self.context);
        if prompt > context {
            return Err(RequestError::ContextExceeded { prompt, context }.into());
        }
        if first > prompt {
            let range = "at most the number of tokens";
            return Err(RequestError::InvalidParameter { name: "first", value: first.to_string(), range }.into());
        }
        let needed = self.layout.blocks_needed(prompt, self.step_tokens);
        let free = self.arena.capacity().saturating_sub(self.committed);
        if needed > free {
            return Err(ResourceError::CacheInUse { needed, free }.into());
        }
        let mut cache = SequenceCache::new(&self.layout);
        let score = self.score_in(&mut cache, tokens, first.max(1));
        cache.clear(&mut self.arena);
        score
    }

    fn score_in(&mut self, cache: &mut SequenceCache, tokens: &[TokenId], first: usize) -> Result<Score> {
        let Engine { model, arena, layout, cpu, .. } = self;
        let vocab = model.vocab_size();
        let mut scores: Vec<Result<LogProbs, Error>> = Vec::with_capacity(tokens.len().saturating_sub(first));
        let mut last_logits = Vec::new();
        for chunk in tokens.chunks(self.step_tokens) {
            let begin = cache.len();
            cache.reserve(arena, chunk.len()).map_err(|_| ResourceError::OutOfMemory)?;
            // The row of index i predicts the token at i + 1.
            let end = begin + chunk.len();
            let wanted: Vec<usize> = ((first - 1).max(begin)..end).map(|i| i - begin).collect();
            let ends_here = end == tokens.len();
            model.forward(arena, &[Span { tokens: chunk, cache }], &wanted, &mut |at, logits| {
                let rows = &wanted[at..at + logits.len() / vocab];
                let mut results: Vec<Option<Result<LogProbs>>> = rows.iter().map(|_| None).collect();
                cpu.for_each_chunk(&mut results, 1, &|i, result| {
                    let target = tokens.get(begin + rows[i] + 1);
                    result[0] = target.map(|&token| log_probs(&logits[i * vocab..(i + 1) * vocab], token, 1));
                });
                scores.extend(results.into_iter().flatten());
                if ends_here && rows.last() == Some(&(chunk.len() - 1)) {
                    last_logits = logits[logits.len() - vocab..].to_vec();
                }
            })?;
            cache.advance(layout, arena, chunk.len());
        }
        let scores: Vec<LogProbs> = scores.into_iter().collect::<Result<_>>()?;
        let log_probs = scores.iter().map(|s| s.chosen.log_prob).collect();
        let best = scores.iter().filter_map(|s| s.top.first().map(|t| t.token)).collect();
        Ok(Score { log_probs, best, last_logits })
    }
}
