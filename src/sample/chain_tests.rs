//! Tests of the chain: exact probabilities, order, borders and properties.

use proptest::prelude::*;

use super::*;
use crate::error::RequestError;
use crate::Error;

fn run_with(
    params: &SamplingParams,
    prompt: &[TokenId],
    generated: &[TokenId],
    logits: &[f32],
) -> Result<Distribution> {
    let mut out = Distribution::new();
    let context = SampleContext { prompt, generated, position: prompt.len() + generated.len() };
    let mut session = Chain.open(params)?;
    session.distribution(&context, &mut logits.to_vec(), &mut out)?;
    Ok(out)
}

fn run(params: &SamplingParams, logits: &[f32]) -> Vec<(TokenId, f32)> {
    let distribution = run_with(params, &[], &[], logits).unwrap();
    distribution.validate("chain", logits.len()).unwrap();
    let mut candidates: Vec<_> = distribution.candidates().iter().map(|c| (c.token, c.probability)).collect();
    candidates.sort_by_key(|candidate| candidate.0);
    candidates
}

fn logits_of(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[track_caller]
fn assert_near(found: &[(TokenId, f32)], expected: &[(TokenId, f32)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6, "{found:?} {expected:?}");
    }
}

fn at_one() -> SamplingParams {
    SamplingParams::new().with_temperature(1.0)
}

#[test]
fn neutral_parameters_give_the_softmax() {
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    assert_near(&run(&at_one(), &logits), &[(0, 0.1), (1, 0.2), (2, 0.3), (3, 0.4)]);
    let spelled_out = at_one().with_top_k(0).with_top_p(1.0).with_min_p(0.0).with_repetition_penalty(1.0);
    assert_eq!(run(&spelled_out, &logits), run(&at_one(), &logits));
}

#[test]
fn temperature_sharpens_by_its_inverse_power() {
    // Temperature 0.5 squares probabilities: 1, 4, 9, 16 of 30.
    let params = SamplingParams::new().with_temperature(0.5);
    let expected = [(0, 1.0 / 30.0), (1, 4.0 / 30.0), (2, 9.0 / 30.0), (3, 16.0 / 30.0)];
    assert_near(&run(&params, &logits_of(&[0.1, 0.2, 0.3, 0.4])), &expected);
}

#[test]
fn temperature_zero_is_greedy_and_ties_go_to_the_lower_id() {
    let logits = [1.0, 3.0, 3.0, 2.0];
    assert_eq!(run(&SamplingParams::new(), &logits), [(1, 1.0)]);
    let filtered = SamplingParams::new().with_temperature(0.0).with_top_k(2).with_top_p(0.1).with_min_p(0.5);
    assert_eq!(run(&filtered, &logits), [(1, 1.0)]);
}

#[test]
fn tiny_temperatures_and_huge_logits_do_not_overflow() {
    for temperature in [1e-3, 1e-20, f32::MIN_POSITIVE, f32::from_bits(1)] {
        let params = SamplingParams::new().with_temperature(temperature);
        assert_eq!(run(&params, &[1.0, 3.0, 2.0]), [(1, 1.0)]);
        assert_eq!(run(&params, &[f32::MAX, -f32::MAX, f32::MIN]), [(0, 1.0)]);
        assert_eq!(run(&params, &[7.0, 7.0, 2.0]), [(0, 0.5), (1, 0.5)]);
    }
    let hot = SamplingParams::new().with_temperature(f32::MAX);
    assert_near(&run(&hot, &[1.0, 3.0]), &[(0, 0.5), (1, 0.5)]);
}

#[test]
fn top_k_keeps_k_and_ties_go_to_the_lower_id() {
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    assert_near(&run(&at_one().with_top_k(2), &logits), &[(2, 3.0 / 7.0), (3, 4.0 / 7.0)]);
    assert_near(&run(&at_one().with_top_k(1), &logits), &[(3, 1.0)]);
    assert_near(&run(&at_one().with_top_k(9), &logits), &run(&at_one(), &logits));
    assert_near(&run(&at_one().with_top_k(2), &[1.0, 1.0, 1.0]), &[(0, 0.5), (1, 0.5)]);
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_the_mass() {
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    assert_near(&run(&at_one().with_top_p(0.35), &logits), &[(3, 1.0)]);
    assert_near(&run(&at_one().with_top_p(0.5), &logits), &[(2, 3.0 / 7.0), (3, 4.0 / 7.0)]);
    assert_near(&run(&at_one().with_top_p(0.8), &logits), &[(1, 2.0 / 9.0), (2, 3.0 / 9.0), (3, 4.0 / 9.0)]);
    assert_near(&run(&at_one().with_top_p(f32::MIN_POSITIVE), &logits), &[(3, 1.0)]);
    assert_near(&run(&at_one().with_top_p(0.4), &[0.0; 4]), &[(0, 0.5), (1, 0.5)]);
}

#[test]
fn min_p_is_relative_to_the_best() {
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    assert_near(&run(&at_one().with_min_p(0.6), &logits), &[(2, 3.0 / 7.0), (3, 4.0 / 7.0)]);
    assert_near(&run(&at_one().with_min_p(1.0), &logits), &[(3, 1.0)]);
    assert_near(&run(&at_one().with_min_p(1.0), &[2.0, 2.0, 1.0]), &[(0, 0.5), (1, 0.5)]);
}

#[test]
fn filters_follow_the_documented_order() {
    // Temperature before top-p: squared, the best token alone has 16/30 > 0.5.
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    let params = SamplingParams::new().with_temperature(0.5).with_top_p(0.5);
    assert_near(&run(&params, &logits), &[(3, 1.0)]);
    // Top-k before top-p: of 3/7 and 4/7 the best alone has 0.571 > 0.55, while of all it has only 0.4.
    assert_near(&run(&at_one().with_top_k(2).with_top_p(0.55), &logits), &[(3, 1.0)]);
    assert_near(&run(&at_one().with_top_p(0.55), &logits), &[(2, 3.0 / 7.0), (3, 4.0 / 7.0)]);
    // Top-p before min-p: top-p counts the mass that min-p drops afterwards.
    assert_near(&run(&at_one().with_top_p(0.55).with_min_p(0.5), &logits), &[(2, 3.0 / 7.0), (3, 4.0 / 7.0)]);
    assert_near(&run(&at_one().with_top_p(0.95).with_min_p(0.6), &logits), &[(2, 3.0 / 7.0), (3, 4.0 / 7.0)]);
    // Temperature before min-p: 9/16 < 0.6.
    assert_near(&run(&SamplingParams::new().with_temperature(0.5).with_min_p(0.6), &logits), &[(3, 1.0)]);
    // Penalty before temperature 0.
    let penalized = SamplingParams::new().with_repetition_penalty(2.0);
    let distribution = run_with(&penalized, &[1], &[], &[1.6, 3.0]).unwrap();
    assert_eq!(distribution.probability(0), 1.0);
}

#[test]
fn the_repetition_penalty_counts_each_token_of_its_window_once() {
    let params = at_one().with_repetition_penalty(2.0);
    let logits = [2.0, -1.0, 0.0, 4.0];
    let by_hand = |logits: [f32; 4]| run(&at_one(), &logits);
    let found = |params: &SamplingParams, prompt: &[TokenId], generated: &[TokenId]| {
        let distribution = run_with(params, prompt, generated, &logits).unwrap();
        let mut found: Vec<_> = distribution.candidates().iter().map(|c| (c.token, c.probability)).collect();
        found.sort_by_key(|candidate| candidate.0);
        found
    };
    assert_eq!(found(&params, &[0, 0, 1], &[0, 2]), by_hand([1.0, -2.0, 0.0, 4.0]));
    assert_eq!(found(&params, &[], &[3, 77, u32::MAX]), by_hand([2.0, -1.0, 0.0, 2.0]));
    let windowed = params.clone().with_repetition_window(2);
    assert_eq!(found(&windowed, &[0, 1], &[3]), by_hand([2.0, -2.0, 0.0, 2.0]));
    assert_eq!(found(&windowed, &[0, 1], &[3, 3]), by_hand([2.0, -1.0, 0.0, 2.0]));
    assert_eq!(found(&windowed, &[0, 1], &[]), by_hand([1.0, -2.0, 0.0, 4.0]));
}

#[test]
fn forbidden_tokens_stay_forbidden() {
    let none = f32::NEG_INFINITY;
    assert_near(&run(&at_one().with_top_k(3), &[none, 0.0, none, 0.0]), &[(1, 0.5), (3, 0.5)]);
    assert_near(&run(&at_one().with_top_p(0.9999), &[none, 0.0, none, 0.0]), &[(1, 0.5), (3, 0.5)]);
    let error = run_with(&at_one(), &[], &[], &[none; 3]).unwrap_err();
    assert!(matches!(error, Error::Request(RequestError::NoAllowedToken)));
}

#[test]
fn logits_without_rank_are_named() {
    for temperature in [0.0, 1.0] {
        let params = SamplingParams::new().with_temperature(temperature);
        let error = run_with(&params, &[], &[], &[0.0, 1.0, f32::NAN]).unwrap_err();
        assert!(matches!(error, Error::Request(RequestError::NonFiniteLogits { token: 2, .. })));
    }
    // A penalty that overflows is an error as well.
    let params = at_one().with_repetition_penalty(f32::MIN_POSITIVE);
    let error = run_with(&params, &[1], &[], &[0.0, 10.0]).unwrap_err();
    assert!(matches!(error, Error::Request(RequestError::NonFiniteLogits { token: 1, .. })));
}

#[test]
fn parameters_out_of_range_are_refused_at_open() {
    assert!(Chain.open(&SamplingParams::new().with_top_p(0.0)).is_err());
}

#[test]
fn no_memory_is_allocated_once_the_buffers_have_grown() {
    let logits: Vec<f32> = (0..50_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 1000.0).collect();
    let mut session = ChainSession {
        penalty: None,
        temperature: 1.0,
        top_k: Some(2000),
        top_p: Some(0.9),
        min_p: None,
        kept: Vec::new(),
    };
    let mut out = Distribution::new();
    let context = SampleContext { prompt: &[], generated: &[], position: 0 };
    session.distribution(&context, &mut logits.clone(), &mut out).unwrap();
    let before = (session.kept.capacity(), session.kept.as_ptr());
    session.distribution(&context, &mut logits.clone(), &mut out).unwrap();
    assert_eq!((session.kept.capacity(), session.kept.as_ptr()), before);
}

/// The definition, by a full sort in f64.
fn by_full_sort(params: &SamplingParams, logits: &[f32]) -> Vec<(TokenId, f64)> {
    let temperature = f64::from(params.temperature.unwrap());
    let mut all: Vec<(TokenId, f64)> =
        logits.iter().enumerate().map(|(id, &logit)| (id as TokenId, (f64::from(logit) / temperature).exp())).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if let Some(k) = params.top_k.filter(|&k| k > 0) {
        all.truncate(k as usize);
    }
    let sum: f64 = all.iter().map(|entry| entry.1).sum();
    let target = f64::from(params.top_p.unwrap_or(1.0)) * sum;
    let mut reached = 0.0;
    let mut head = 0;
    while head < all.len() && reached < target {
        reached += all[head].1;
        head += 1;
    }
    if params.top_p.is_some_and(|p| p < 1.0) {
        all.truncate(head.max(1));
    }
    let floor = f64::from(params.min_p.unwrap_or(0.0)) * all[0].1;
    all.retain(|entry| entry.1 >= floor);
    let sum: f64 = all.iter().map(|entry| entry.1).sum();
    all.iter_mut().for_each(|entry| entry.1 /= sum);
    all.sort_by_key(|entry| entry.0);
    all
}

proptest! {
    #[test]
    fn sums_to_one_and_the_best_token_survives(
        logits in prop::collection::vec(prop_oneof![4 => -30f32..30.0, 1 => Just(f32::NEG_INFINITY)], 1..3000),
        temperature in prop_oneof![Just(0.0f32), 1e-6f32..3.0], top_k in prop::option::of(0u32..50),
        top_p in prop::option::of(1e-6f32..=1.0), min_p in prop::option::of(0f32..=1.0),
    ) {
        prop_assume!(logits.iter().any(|logit| logit.is_finite()));
        let (best, _) = argmax(&logits).unwrap();
        let params = SamplingParams { temperature: Some(temperature), top_k, top_p, min_p, ..SamplingParams::new() };
        let distribution = run_with(&params, &[], &[], &logits).unwrap();
        distribution.validate("chain", logits.len()).unwrap();
        let sum: f64 = distribution.candidates().iter().map(|c| f64::from(c.probability)).sum();
        prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
        let largest = distribution.candidates().iter().map(|c| c.probability).fold(0.0, f32::max);
        prop_assert_eq!(distribution.probability(best), largest);
        prop_assert!(distribution.candidates().iter().all(|c| logits[c.token as usize].is_finite()));
    }

    #[test]
    fn equals_a_full_sort(
        // Distinct logits with gaps keep f32 and f64 on the same side of every border but top-p's.
        logits in Just((0..2500).map(|i| i as f32 / 64.0 - 20.0).collect::<Vec<_>>()).prop_shuffle(),
        top_k in prop::option::of(0u32..2600), top_p in prop::option::of(0.01f32..=1.0), min_p in prop::option::of(0f32..1.0),
    ) {
        let params = SamplingParams { temperature: Some(1.5), top_k, top_p, min_p, ..SamplingParams::new() };
        let found = run(&params, &logits);
        let expected = by_full_sort(&params, &logits);
        prop_assert!(found.len().abs_diff(expected.len()) <= 1);
        for (token, p) in &found {
            let expected = expected.iter().find(|entry| entry.0 == *token).map_or(0.0, |entry| entry.1);
            prop_assert!((f64::from(*p) - expected).abs() < 0.02 * expected + 1e-4 || found.len() < 50);
        }
    }
}
