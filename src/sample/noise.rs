//! Keyed noise and the draw: which token a distribution yields is a pure function of (seed, choice, position).
//!
//! The noise of a token does not depend on other requests, on the batch, on the order of candidates or on who asks: a
//! drafter and the target draw with the same noise. Knows neither logits nor sampling parameters.

use crate::error::{RequestError, Result};
use crate::sample::Distribution;
use crate::TokenId;

/// Names the noise of one position of one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NoiseKey {
    /// The request's seed.
    pub seed: u64,
    /// Index of the answer among the request's n.
    pub choice: u32,
    /// Absolute position of the drawn token: tokens of prompt and answer before it.
    pub position: u64,
}

/// Keeps noise for different uses apart.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Purpose {
    Draw = 1,
    Decision = 2,
}

impl NoiseKey {
    /// Uniform noise of a token in the open interval (0, 1), a multiple of 2⁻⁵³.
    ///
    /// Construction: seed, choice with purpose, and position are absorbed one after the other, each by an odd
    /// multiplier and the 64-bit finalizer of SplitMix64 (Steele, Lea, Flood 2014, with Stafford's constants); the
    /// result is the start of a SplitMix64 sequence, and the token selects its member. 52 bits are used.
    pub fn uniform(&self, token: TokenId) -> f64 {
        uniform_at(self.absorb(Purpose::Draw), token)
    }

    /// Uniform noise in the open interval (0, 1) for a sampler's own decisions, such as whether XTC acts; `which` tells
    /// several decisions of one sampler apart. Independent of the noise of the draw.
    pub fn decision(&self, which: u32) -> f64 {
        uniform_at(self.absorb(Purpose::Decision), which)
    }

    fn absorb(&self, purpose: Purpose) -> u64 {
        let seeded = finalize(self.seed.wrapping_add(GOLDEN));
        let which = (u64::from(self.choice) << 32) | u64::from(purpose as u32);
        let chosen = finalize(seeded ^ which.wrapping_mul(0xd6e8_feb8_6659_fd93));
        finalize(chosen ^ self.position.wrapping_mul(0xa076_1d64_78bd_642f))
    }
}

/// 2⁶⁴ divided by the golden ratio, odd: the increment of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn finalize(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn uniform_at(start: u64, token: TokenId) -> f64 {
    let bits = finalize(start.wrapping_add((u64::from(token) + 1).wrapping_mul(GOLDEN)));
    // Half a step is added: neither 0 nor 1 can occur, and both borders are equally far.
    ((bits >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// Draws a token: argmax of log p + Gumbel noise, ties to the lower id. Over the keys, each token comes with its
/// probability; for one key the result does not depend on the order of the candidates.
///
/// The Gumbel noise of u is −log(−log u), so the token is also the argmin of −log(u) / p, which is what is computed,
/// in f64. As −log(u) ≥ 1 − u, most candidates are dismissed without a logarithm. Probabilities need not sum to 1.
///
/// # Errors
/// [`RequestError::NoAllowedToken`] if no candidate has a positive probability; NaN counts as none.
pub fn draw(distribution: &Distribution, key: &NoiseKey) -> Result<TokenId> {
    // The logarithm may round below the bound by a few units in the last place.
    const SLACK: f64 = 1.0 + 1e-12;
    let start = key.absorb(Purpose::Draw);
    let mut best: Option<(f64, TokenId)> = None;
    for candidate in distribution.candidates() {
        let probability = f64::from(candidate.probability);
        if !(probability > 0.0 && probability.is_finite()) {
            continue;
        }
        let u = uniform_at(start, candidate.token);
        let Some((time, token)) = best else {
            best = Some((-u.ln() / probability, candidate.token));
            continue;
        };
        if 1.0 - u > time * probability * SLACK {
            continue;
        }
        let this_time = -u.ln() / probability;
        if this_time < time || (this_time == time && candidate.token < token) {
            best = Some((this_time, candidate.token));
        }
    }
    best.map(|(_, token)| token).ok_or_else(|| RequestError::NoAllowedToken.into())
}

#[cfg(test)]
#[path = "noise_tests.rs"]
mod tests;
