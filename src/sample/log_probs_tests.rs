//! Tests of log-probabilities.

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

#[test]
fn processed_ones_are_those_of_the_distribution() {
    let mut distribution = Distribution::new();
    for (token, p) in [(7, 0.125), (3, 0.25), (5, 0.5), (4, 0.125), (6, 0.0)] {
        distribution.push(token, p);
    }
    let result = processed_log_probs(&distribution, 3, 3).unwrap();
    assert_eq!(result.chosen, TokenLogProb { token: 3, log_prob: 0.25f32.ln() });
    // Ties to the lower id.
    assert_eq!(result.top.iter().map(|entry| entry.token).collect::<Vec<_>>(), [5, 3, 4]);
    assert_eq!(result.top[0].log_prob, 0.5f32.ln());
    // Outside the support: not among the best, −∞ as the chosen one.
    let all = processed_log_probs(&distribution, 6, 99).unwrap();
    assert_eq!((all.top.len(), all.chosen.log_prob), (4, f32::NEG_INFINITY));
    assert_eq!(processed_log_probs(&distribution, 99, 0).unwrap().chosen.log_prob, f32::NEG_INFINITY);
    // Renormalized: 1 and 3 of 4.
    let mut half = Distribution::new();
    half.push(0, 0.125);
    half.push(1, 0.375);
    let result = processed_log_probs(&half, 0, 1).unwrap();
    assert_eq!((result.chosen.log_prob, result.top[0].log_prob), (0.25f32.ln(), 0.75f32.ln()));
    let error = processed_log_probs(&Distribution::new(), 0, 1).unwrap_err();
    assert!(matches!(error, Error::Request(RequestError::NoAllowedToken)));
}
