//! One pass over a row of logits: the maximum, its lowest id, and whether all can be ranked.

use crate::error::{RequestError, Result};
use crate::TokenId;

/// Token with the highest logit, ties to the lower id, and that logit, which is finite. One pass; samplers that do
/// not need the token call it for its errors, which are those that [`distribution`] owes.
///
/// [`distribution`]: crate::sample::SamplerSession::distribution
///
/// # Errors
/// [`RequestError::NonFiniteLogits`] for NaN or +∞, [`RequestError::NoAllowedToken`] if all are −∞ or there are none.
pub fn argmax(logits: &[f32]) -> Result<(TokenId, f32)> {
    // Maxima per lane compile to vector code; the position is only looked up in blocks that raise the maximum.
    const LANES: usize = 16;
    const BLOCK: usize = 64 * LANES;
    let mut best = f32::NEG_INFINITY;
    let mut best_at = 0;
    for (block_index, block) in logits.chunks(BLOCK).enumerate() {
        let mut maxima = [f32::NEG_INFINITY; LANES];
        // Words, since flags of a byte would be packed for every group.
        let mut unordered = [0u32; LANES];
        let mut groups = block.chunks_exact(LANES);
        for group in &mut groups {
            for lane in 0..LANES {
                maxima[lane] = if group[lane] > maxima[lane] { group[lane] } else { maxima[lane] };
                unordered[lane] |= u32::from(group[lane].is_nan());
            }
        }
        for (lane, &logit) in groups.remainder().iter().enumerate() {
            maxima[lane] = if logit > maxima[lane] { logit } else { maxima[lane] };
            unordered[lane] |= u32::from(logit.is_nan());
        }
        let maximum = maxima.into_iter().fold(f32::NEG_INFINITY, f32::max);
        if unordered.iter().any(|&flag| flag != 0) || maximum == f32::INFINITY {
            return Err(first_unranked(logits).into());
        }
        if maximum > best {
            best = maximum;
            best_at = block_index * BLOCK + block.iter().position(|&logit| logit == maximum).unwrap_or(0);
        }
    }
    if best == f32::NEG_INFINITY {
        return Err(RequestError::NoAllowedToken.into());
    }
    Ok((best_at as TokenId, best))
}

fn first_unranked(logits: &[f32]) -> RequestError {
    let is_unranked = |logit: f32| logit.is_nan() || logit == f32::INFINITY;
    let token = logits.iter().position(|&logit| is_unranked(logit)).unwrap_or(0);
    RequestError::NonFiniteLogits { token: token as TokenId, value: logits.get(token).copied().unwrap_or(f32::NAN) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn argmax_is_the_first_of_the_largest(logits in prop::collection::vec(-3i8..3, 1..3000)) {
            let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let first = logits.iter().position(|&logit| logit == largest).unwrap();
            prop_assert_eq!(argmax(&logits).unwrap(), (first as TokenId, largest));
        }

        #[test]
        fn one_bad_logit_anywhere_is_named(length in 1usize..3000, at: prop::sample::Index, nan: bool) {
            let mut logits = vec![1.0; length];
            let at = at.index(length);
            logits[at] = if nan { f32::NAN } else { f32::INFINITY };
            match argmax(&logits) {
                Err(Error::Request(RequestError::NonFiniteLogits { token, .. })) => prop_assert_eq!(token as usize, at),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    #[test]
    fn nothing_allowed_is_an_error() {
        for logits in [&[][..], &[f32::NEG_INFINITY; 40]] {
            assert!(matches!(argmax(logits), Err(Error::Request(RequestError::NoAllowedToken))));
        }
    }
}
