//! Log-probabilities for reports: raw, from the logits of the model before penalties, masks and temperature, or
//! processed, from the distribution that was drawn from. The two must not be mixed.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::error::{RequestError, Result};
use crate::sample::logits::argmax;
use crate::sample::Distribution;
use crate::TokenId;

/// A token with its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogProb {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm of its probability; −∞ for a forbidden token.
    pub log_prob: f32,
}

/// Log-probabilities of one position.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// The token that was chosen.
    pub chosen: TokenLogProb,
    /// The most probable tokens, best first, ties to the lower id.
    pub top: Vec<TokenLogProb>,
}

/// Which probabilities are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogprobsMode {
    /// The model's own: no sampling parameter, mask or bias applied.
    #[default]
    Raw,
    /// Those that the token was drawn with; tokens that could not be drawn have −∞.
    Processed,
}

/// Log-softmax of `logits` for the chosen token and the `top_n` best. More than the vocabulary gives all of it.
///
/// Exponentials are f32 of the difference to the maximum, their sum is f64 in the order of ids.
///
/// # Errors
/// Logits that are NaN or +∞, none above −∞, or a chosen token outside the vocabulary.
pub fn log_probs(logits: &[f32], chosen: TokenId, top_n: usize) -> Result<LogProbs> {
    let (_, maximum) = argmax(logits)?;
    let Some(&chosen_logit) = logits.get(chosen as usize) else {
        return Err(RequestError::TokenOutOfRange { token: chosen, vocab_size: logits.len() }.into());
    };
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - maximum).exp())).sum();
    let log_sum = sum.ln();
    let log_prob_of = |token: TokenId, logit: f32| TokenLogProb {
        token,
        log_prob: (f64::from(logit) - f64::from(maximum) - log_sum) as f32,
    };
    let row = logits.iter().enumerate().map(|(token, &value)| Ranked { value, token: token as TokenId });
    let top = best(row, top_n.min(logits.len()));
    let top = top.into_iter().map(|ranked| log_prob_of(ranked.token, ranked.value)).collect();
    Ok(LogProbs { chosen: log_prob_of(chosen, chosen_logit), top })
}

/// Logarithms of a distribution's probabilities, renormalized, for the chosen token and the `top_n` best: after
/// penalties, masks, temperature and filters. Tokens without a positive probability are not among the best, so that
/// there may be fewer; as the chosen token such a one has −∞.
///
/// # Errors
/// [`RequestError::NoAllowedToken`] if no probability is positive.
pub fn processed_log_probs(distribution: &Distribution, chosen: TokenId, top_n: usize) -> Result<LogProbs> {
    let support = || distribution.candidates().iter().filter(|candidate| candidate.probability > 0.0);
    let sum: f64 = support().map(|candidate| f64::from(candidate.probability)).sum();
    if sum == 0.0 {
        return Err(RequestError::NoAllowedToken.into());
    }
    let log_prob_of =
        |token, probability: f32| TokenLogProb { token, log_prob: (f64::from(probability) / sum).ln() as f32 };
    let ranked = support().map(|candidate| Ranked { value: candidate.probability, token: candidate.token });
    let top = best(ranked, top_n.min(distribution.candidates().len()));
    Ok(LogProbs {
        chosen: log_prob_of(chosen, distribution.probability(chosen).max(0.0)),
        top: top.into_iter().map(|ranked| log_prob_of(ranked.token, ranked.value)).collect(),
    })
}

/// Greater is worse: a max-heap then keeps its worst member on top.
#[derive(PartialEq)]
struct Ranked {
    /// Logit or probability.
    value: f32,
    token: TokenId,
}

impl Eq for Ranked {}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        // Callers have excluded NaN.
        other.value.partial_cmp(&self.value).unwrap_or(Ordering::Equal).then(self.token.cmp(&other.token))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The `count` best, best first.
fn best(all: impl Iterator<Item = Ranked>, count: usize) -> Vec<Ranked> {
    let mut kept = BinaryHeap::with_capacity(count);
    for this in all {
        if kept.len() < count {
            kept.push(this);
        } else if let Some(mut worst) = kept.peek_mut() {
            if this < *worst {
                *worst = this;
            }
        }
    }
    kept.into_sorted_vec()
}

#[cfg(test)]
#[path = "log_probs_tests.rs"]
mod tests;
