//! Log-probabilities for reports, from the raw logits of the model: before penalties, masks and temperature.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::error::{RequestError, Result};
use crate::sample::logits::argmax;
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
    let top = best(logits, top_n).into_iter().map(|ranked| log_prob_of(ranked.token, ranked.logit)).collect();
    Ok(LogProbs { chosen: log_prob_of(chosen, chosen_logit), top })
}

/// Greater is worse: a max-heap then keeps its worst member on top.
#[derive(PartialEq)]
struct Ranked {
    logit: f32,
    token: TokenId,
}

impl Eq for Ranked {}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        // Callers have excluded NaN.
        other.logit.partial_cmp(&self.logit).unwrap_or(Ordering::Equal).then(self.token.cmp(&other.token))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn best(logits: &[f32], count: usize) -> Vec<Ranked> {
    let count = count.min(logits.len());
    let mut kept = BinaryHeap::with_capacity(count);
    for (token, &logit) in logits.iter().enumerate() {
        let this = Ranked { logit, token: token as TokenId };
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
mod tests {
    use super::*;
    use crate::Error;
    use proptest::prelude::*;

    #[test]
    fn hand_computed() {
        // Probabilities 1/8, 1/2, 1/4, 1/8.
        let logits: Vec<f32> = [1.0f32, 4.0, 2.0, 1.0].iter().map(|weight| weight.ln() + 3.0).collect();
        let result = log_probs(&logits, 3, 3).unwrap();
        assert_eq!(result.chosen.token, 3);
        assert!((result.chosen.log_prob - 0.125f32.ln()).abs() < 1e-6);
        assert_eq!(result.top.iter().map(|entry| entry.token).collect::<Vec<_>>(), [1, 2, 0]);
        assert!((result.top[0].log_prob - 0.5f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn accurate_for_a_large_flat_vocabulary() {
        let logits = vec![17.25; 262_144];
        let result = log_probs(&logits, 262_143, 0).unwrap();
        assert_eq!(result.chosen.log_prob, -(262_144f64.ln()) as f32);
        assert!(result.top.is_empty());
    }

    #[test]
    fn forbidden_and_foreign_tokens() {
        let result = log_probs(&[0.0, f32::NEG_INFINITY], 1, 9).unwrap();
        assert_eq!(result.chosen.log_prob, f32::NEG_INFINITY);
        assert_eq!(result.top.len(), 2);
        let error = log_probs(&[0.0, 1.0], 2, 1).unwrap_err();
        assert!(matches!(error, Error::Request(RequestError::TokenOutOfRange { token: 2, vocab_size: 2 })));
        let error = log_probs(&[0.0, f32::NAN], 0, 1).unwrap_err();
        assert!(matches!(error, Error::Request(RequestError::NonFiniteLogits { token: 1, .. })));
    }

    proptest! {
        #[test]
        fn top_equals_a_full_sort(logits in prop::collection::vec(-5i8..5, 1..200), n in 0usize..220) {
            let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
            let mut ids: Vec<TokenId> = (0..logits.len() as TokenId).collect();
            ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
            ids.truncate(n);
            let top = log_probs(&logits, 0, n).unwrap().top;
            prop_assert_eq!(top.iter().map(|entry| entry.token).collect::<Vec<_>>(), ids);
            let exact: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            for entry in top {
                let expected = f64::from(logits[entry.token as usize]) - exact.ln();
                prop_assert!((f64::from(entry.log_prob) - expected).abs() < 2e-6);
            }
        }
    }
}
