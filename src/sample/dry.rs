//! DRY, "don't repeat yourself": a penalty on tokens that would lengthen a repetition.
//!
//! After p-e-w's proposal (text-generation-webui, 2024) with the conventions of llama.cpp. Knows token ids only: texts
//! that break repetitions are turned into ids by `breakers`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Result;
use crate::sample::penalty::{history, lowered, window};
use crate::sample::validate::invalid;
use crate::sample::{SampleContext, SamplingParams};
use crate::TokenId;

/// Lowers the logit of every token that followed an earlier occurrence of the text's last n tokens, n being at least
/// `allowed_length`, by multiplier · base^(n − allowed_length) for its longest such n.
///
/// * The text is prompt and answer, or their last `window` tokens. Occurrences may overlap the end.
/// * n does not reach across the last breaker, and a token that is a breaker by itself is never penalized.
/// * The penalty is bounded so that the logit stays finite: it must not forbid.
#[derive(Clone, Debug)]
pub(super) struct Dry {
    multiplier: f64,
    base: f64,
    allowed_length: usize,
    window: usize,
    breakers: Breakers,
    /// The text, last token first; and per place how far it matches its beginning. Memory only.
    reversed: Vec<TokenId>,
    matches: Vec<usize>,
    longest: HashMap<TokenId, usize>,
}

/// First token of a breaker, and what may follow it.
#[derive(Clone, Debug, Default)]
struct Breakers {
    tails: Arc<HashMap<TokenId, Vec<Box<[TokenId]>>>>,
    longest: usize,
}

impl Dry {
    /// `None` if the request does not ask for it.
    pub(super) fn new(params: &SamplingParams) -> Result<Option<Self>> {
        if params.dry_breakers.as_ref().is_some_and(|texts| !texts.is_empty()) {
            let value = "not resolved".to_string();
            return Err(invalid("dry_breakers", value, "texts after `resolve_dry_breakers`, or `dry_breaker_ids`"));
        }
        let Some(multiplier) = params.dry_multiplier.filter(|&multiplier| multiplier > 0.0) else { return Ok(None) };
        Ok(Some(Dry {
            multiplier: f64::from(multiplier),
            base: f64::from(params.dry_base.unwrap_or(1.75)),
            allowed_length: window(Some(params.dry_allowed_length.unwrap_or(2))),
            window: window(params.dry_window),
            breakers: Breakers::new(params.dry_breaker_ids.as_deref().unwrap_or_default()),
            reversed: Vec::new(),
            matches: Vec::new(),
            longest: HashMap::new(),
        }))
    }

    /// Linear in the number of tokens looked at. Tokens outside the vocabulary are ignored.
    pub(super) fn apply(&mut self, context: &SampleContext<'_>, logits: &mut [f32]) {
        let (prompt, generated) = history(context, self.window);
        self.reversed.clear();
        self.reversed.extend(generated.iter().rev().chain(prompt.iter().rev()));
        if self.reversed.len() <= self.allowed_length {
            return;
        }
        prefix_matches(&self.reversed, &mut self.matches);
        let longest = self.matches.iter().skip(1).copied().max().unwrap_or(0);
        let limit = self.breakers.limit(&self.reversed, longest);
        if limit.min(longest) < self.allowed_length {
            return;
        }
        self.longest.clear();
        for (place, &length) in self.matches.iter().enumerate().skip(1) {
            let length = length.min(limit);
            if length >= self.allowed_length {
                // What came after an earlier occurrence stands before it here.
                let entry = self.longest.entry(self.reversed[place - 1]).or_insert(0);
                *entry = length.max(*entry);
            }
        }
        for (&token, &length) in &self.longest {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            if !self.breakers.is_one(token) {
                let excess = (length - self.allowed_length) as f64;
                *logit = lowered(*logit, (self.multiplier * self.base.powf(excess)).min(f64::from(f32::MAX)));
            }
        }
    }
}

impl Breakers {
    fn new(sequences: &[Vec<TokenId>]) -> Self {
        let mut tails: HashMap<TokenId, Vec<Box<[TokenId]>>> = HashMap::new();
        for sequence in sequences {
            let Some((&head, tail)) = sequence.split_first() else { continue };
            tails.entry(head).or_default().push(tail.into());
        }
        for tails in tails.values_mut() {
            // Longest first: it decides.
            tails.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
            tails.dedup();
        }
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
        Breakers { tails: Arc::new(tails), longest }
    }

    /// Whether the token is a breaker by itself.
    fn is_one(&self, token: TokenId) -> bool {
        self.tails.get(&token).is_some_and(|tails| tails.last().is_some_and(|tail| tail.is_empty()))
    }

    /// How many tokens stand after the last breaker. Nothing beyond `needed` of them matters.
    fn limit(&self, reversed: &[TokenId], needed: usize) -> usize {
        let reach = needed.saturating_add(self.longest).min(reversed.len());
        for (place, token) in reversed[..reach].iter().enumerate() {
            for tail in self.tails.get(token).into_iter().flatten() {
                if tail.len() <= place && tail.iter().eq(reversed[place - tail.len()..place].iter().rev()) {
                    return place - tail.len();
                }
            }
        }
        reversed.len()
    }
}

/// `matches[i]` is how far `text[i..]` and `text` agree (the Z function); `matches[0]` is 0. Linear.
fn prefix_matches(text: &[TokenId], matches: &mut Vec<usize>) {
    matches.clear();
    matches.resize(text.len(), 0);
    // The match that reaches furthest: where it begins and ends.
    let (mut begin, mut end) = (0, 0);
    for place in 1..text.len() {
        let mut length = if place < end { matches[place - begin].min(end - place) } else { 0 };
        while text.get(place + length).is_some_and(|token| *token == text[length]) {
            length += 1;
        }
        if place + length > end {
            (begin, end) = (place, place + length);
        }
        matches[place] = length;
    }
}

#[cfg(test)]
#[path = "dry_tests.rs"]
mod tests;
