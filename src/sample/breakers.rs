//! DRY's breakers, from texts to sequences of token ids.
//!
//! Which tokens a text consists of depends on what stands before it, so one text becomes many sequences. Knows no
//! tokenizer: what tokens stand for and how text is encoded is handed in.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::error::Result;
use crate::sample::SamplingParams;
use crate::TokenId;

impl SamplingParams {
    /// Turns `dry_breakers`, or the default ones, into `dry_breaker_ids`. The engine calls it before a sampler's
    /// session is opened; it does nothing unless DRY is on and its breakers are texts.
    ///
    /// A breaker becomes every token whose text contains it, and every token whose text ends with the breaker's
    /// beginning, followed by the encoding of the rest. `bytes_of` says what a token stands for, `None` for tokens that
    /// are no text; `encode` gives the tokens of a text within a text, nothing added. Linear in the vocabulary.
    ///
    /// # Errors
    /// A parameter out of range ([`SamplingParams::validate`]), and whatever `encode` says.
    pub fn resolve_dry_breakers<'a>(
        &mut self,
        vocab_size: usize,
        bytes_of: impl Fn(TokenId) -> Option<Cow<'a, [u8]>>,
        mut encode: impl FnMut(&str) -> Result<Vec<TokenId>>,
    ) -> Result<()> {
        self.validate()?;
        if self.dry_breaker_ids.is_some() || self.dry_multiplier.is_none_or(|multiplier| multiplier == 0.0) {
            return Ok(());
        }
        let defaults = || Self::DEFAULT_DRY_BREAKERS.map(String::from).to_vec();
        let texts = self.dry_breakers.take().unwrap_or_else(defaults);
        let mut sequences = Vec::new();
        // The rests of all breakers, each encoded once, if a token needs it at all.
        let mut rests: BTreeMap<&str, Vec<TokenId>> = BTreeMap::new();
        for token in 0..TokenId::try_from(vocab_size).unwrap_or(TokenId::MAX) {
            let Some(bytes) = bytes_of(token) else { continue };
            for text in &texts {
                if contains(&bytes, text.as_bytes()) {
                    sequences.push(vec![token]);
                    continue;
                }
                for rest in overlaps(&bytes, text) {
                    let tail = match rests.get(rest) {
                        Some(tail) => tail,
                        None => {
                            let tail = encode(rest)?;
                            rests.entry(rest).or_insert(tail)
                        }
                    };
                    // A rest without tokens would make every such token a breaker.
                    if !tail.is_empty() {
                        sequences.push(std::iter::once(token).chain(tail.iter().copied()).collect());
                    }
                }
            }
        }
        sequences.sort_unstable();
        sequences.dedup();
        self.dry_breaker_ids = Some(sequences);
        Ok(())
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    // Both are short: a breaker has at most 64 bytes.
    bytes.windows(text.len()).any(|window| window == text)
}

/// What is left of `text` behind each of its proper beginnings, whole characters each, that `bytes` ends with.
fn overlaps<'t>(bytes: &[u8], text: &'t str) -> impl Iterator<Item = &'t str> {
    let cuts = text.char_indices().map(|(at, _)| at).skip(1);
    cuts.filter(move |&at| bytes.ends_with(&text.as_bytes()[..at]))
        .map(|at| &text[at..])
        .collect::<Vec<_>>()
        .into_iter()
}

#[cfg(test)]
#[path = "breakers_tests.rs"]
mod tests;
