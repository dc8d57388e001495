//! What the tests of samplers share.

use crate::error::Result;
use crate::sample::{Chain, Distribution, NoiseKey, SampleContext, Sampler, SamplingParams};
use crate::TokenId;

pub(super) fn context<'a>(prompt: &'a [TokenId], generated: &'a [TokenId]) -> SampleContext<'a> {
    let position = prompt.len() + generated.len();
    SampleContext { prompt, generated, position, noise: NoiseKey { seed: 0, choice: 0, position: position as u64 } }
}

/// One distribution of a default chain.
pub(super) fn run_with(
    params: &SamplingParams,
    prompt: &[TokenId],
    generated: &[TokenId],
    logits: &[f32],
) -> Result<Distribution> {
    let mut out = Distribution::new();
    let mut session = Chain::new().open(params)?;
    session.distribution(&context(prompt, generated), &mut logits.to_vec(), &mut out)?;
    Ok(out)
}

/// The same without history, as pairs in order of ids.
pub(super) fn run(params: &SamplingParams, logits: &[f32]) -> Vec<(TokenId, f32)> {
    let distribution = run_with(params, &[], &[], logits).unwrap();
    distribution.validate("chain", logits.len()).unwrap();
    let mut candidates: Vec<_> = distribution.candidates().iter().map(|c| (c.token, c.probability)).collect();
    candidates.sort_by_key(|candidate| candidate.0);
    candidates
}

pub(super) fn logits_of(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[track_caller]
pub(super) fn assert_near(found: &[(TokenId, f32)], expected: &[(TokenId, f32)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6, "{found:?} {expected:?}");
    }
}

pub(super) fn at_one() -> SamplingParams {
    SamplingParams::new().with_temperature(1.0)
}
