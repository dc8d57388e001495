//! What a sampler returns: the tokens that may come next, each with its probability.
//!
//! A sampler gives a distribution and not a token, so that the engine can draw it with keyed noise and verify drafts
//! against it.

use crate::error::{RequestError, Result};
use crate::TokenId;

/// One token that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: TokenId,
    /// Its probability, above 0 and at most 1.
    pub probability: f32,
}

/// The candidates of one position, in any order; tokens that are absent have probability 0. Probabilities sum to 1.
///
/// The engine passes the same value at every step, so that its memory is reused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    candidates: Vec<Candidate>,
}

impl Distribution {
    /// How far the sum of the probabilities may be from 1.
    pub const TOLERANCE: f64 = 1e-3;

    /// No candidates.
    pub fn new() -> Self {
        Self::default()
    }

    /// The candidates, in the order in which they were added.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Probability of `token`; 0 if it is no candidate. Linear in the number of candidates.
    pub fn probability(&self, token: TokenId) -> f32 {
        self.candidates.iter().find(|candidate| candidate.token == token).map_or(0.0, |candidate| candidate.probability)
    }

    /// Removes all candidates and keeps the memory.
    pub fn clear(&mut self) {
        self.candidates.clear();
    }

    /// Adds a candidate; each token at most once.
    pub fn push(&mut self, token: TokenId, probability: f32) {
        self.candidates.push(Candidate { token, probability });
    }

    /// Checks what a sampler, perhaps a foreign one, has returned. Linear in the number of candidates.
    ///
    /// # Errors
    /// [`RequestError::InvalidDistribution`] for a probability outside [0, 1], a token outside the vocabulary or a sum
    /// off 1 by more than [`Self::TOLERANCE`]; [`RequestError::NoAllowedToken`] if there is no candidate.
    pub fn validate(&self, sampler: &str, vocab_size: usize) -> Result<()> {
        let invalid =
            |reason: String| Err(RequestError::InvalidDistribution { sampler: sampler.to_owned(), reason }.into());
        let mut sum = 0.0f64;
        for candidate in &self.candidates {
            if !(0.0..=1.0).contains(&candidate.probability) {
                return invalid(format!("token {} has probability {}", candidate.token, candidate.probability));
            }
            if candidate.token as usize >= vocab_size {
                return invalid(format!("token {} is outside the vocabulary of {vocab_size}", candidate.token));
            }
            sum += f64::from(candidate.probability);
        }
        if self.candidates.is_empty() {
            return Err(RequestError::NoAllowedToken.into());
        }
        if (sum - 1.0).abs() > Self::TOLERANCE {
            return invalid(format!("the probabilities sum to {sum}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn validate_names_the_sampler_and_the_fault() {
        for (candidates, word) in [
            (&[(0, 0.5), (1, 0.4)][..], "sum"),
            (&[(0, f32::NAN)], "NaN"),
            (&[(0, 1.5), (1, -0.5)], "1.5"),
            (&[(9, 1.0)], "token 9"),
        ] {
            let mut distribution = Distribution::new();
            candidates.iter().for_each(|&(token, p)| distribution.push(token, p));
            match distribution.validate("mine", 9) {
                Err(Error::Request(RequestError::InvalidDistribution { sampler, reason })) => {
                    assert_eq!(sampler, "mine");
                    assert!(reason.contains(word), "{reason}");
                }
                other => panic!("{other:?}"),
            }
        }
        let error = Distribution::new().validate("mine", 9).unwrap_err();
        assert!(matches!(error, Error::Request(RequestError::NoAllowedToken)));
    }
}
