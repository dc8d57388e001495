//! Tests of the chain: exact probabilities, order, borders and properties.

use proptest::prelude::*;

use super::*;
use crate::error::RequestError;
use crate::sample::fixtures::{assert_near, at_one, context, logits_of, run, run_with};
use crate::sample::{draw, NoiseKey};
use crate::Error;

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
    let windowed = params.clone().with_penalty_window(2);
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
    assert!(Chain::new().open(&SamplingParams::new().with_top_p(0.0)).is_err());
}

#[test]
fn no_memory_is_allocated_once_the_buffers_have_grown() {
    let logits: Vec<f32> = (0..50_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 1000.0).collect();
    let mut session = ChainSession {
        on_row: Vec::new(),
        filters: vec![Filter::Temperature(1.0), Filter::TopK(2000), Filter::TopP(0.9)],
        mirostat: None,
        candidates: Candidates::default(),
    };
    let mut out = Distribution::new();
    session.distribution(&context(&[], &[]), &mut logits.clone(), &mut out).unwrap();
    let before = session.candidates.memory();
    session.distribution(&context(&[], &[]), &mut logits.clone(), &mut out).unwrap();
    assert_eq!(session.candidates.memory(), before);
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

    #[test]
    fn whatever_the_parameters_and_the_order(
        logits in prop::collection::vec(prop_oneof![6 => -9f32..9.0, 1 => Just(3.0f32), 1 => Just(f32::NEG_INFINITY)], 1..80),
        params in any_params(), order in any_order(), seed: u64,
        history in prop::collection::vec(0u32..80, 0..30),
    ) {
        prop_assume!(logits.iter().any(|logit| logit.is_finite()));
        let chain = Chain::with_order(order.clone()).unwrap();
        let mut session = chain.open(&params).unwrap();
        let (prompt, generated) = history.split_at(history.len() / 2);
        let noise = NoiseKey { seed, choice: 0, position: history.len() as u64 };
        let context = SampleContext { noise, ..context(prompt, generated) };
        let ask = |session: &mut dyn SamplerSession| {
            let mut out = Distribution::new();
            session.distribution(&context, &mut logits.clone(), &mut out).map(|()| out)
        };
        let first = match ask(&mut *session) {
            // The bias may name a token that the vocabulary lacks.
            Err(Error::Request(RequestError::TokenOutOfRange { .. })) => return Ok(()),
            other => other.unwrap(),
        };
        first.validate("chain", logits.len()).unwrap();
        let sum: f64 = first.candidates().iter().map(|c| f64::from(c.probability)).sum();
        prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
        prop_assert!(first.candidates().iter().all(|c| logits[c.token as usize].is_finite() && c.probability > 0.0));
        prop_assert_eq!(&ask(&mut *session).unwrap(), &first);
        let mut fork = session.fork().unwrap();
        let token = draw(&first, &noise).unwrap();
        prop_assert_eq!(draw(&first, &noise).unwrap(), token);
        session.observe(token);
        fork.observe(token);
        prop_assert_eq!(ask(&mut *fork).unwrap(), ask(&mut *session).unwrap());
        // Stages that are not set may stand anywhere.
        let mut rest: Vec<Stage> = order.clone();
        let names: Vec<_> = params.names().collect();
        let is_set = |stage: &Stage| {
            *stage == Stage::Temperature || stage.parameters().iter().any(|name| names.contains(name))
        };
        rest.retain(is_set);
        let mut short = Chain::with_order(rest).unwrap().open(&params).unwrap();
        prop_assert_eq!(ask(&mut *short).unwrap(), first);
    }
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let filters = (
        prop_oneof![Just(0.0f32), 1e-3f32..3.0],
        prop::option::of(0.1f32..4.0),
        prop::option::of(0u32..30),
        prop::option::of(1e-6f32..=1.0),
        prop::option::of(1e-6f32..=1.0),
        prop::option::of(0f32..=1.0),
        prop::option::of((0f32..=1.0, 0f32..=0.5)),
        prop::option::of((0.01f32..8.0, 0f32..=1.0)),
    );
    let penalties = (
        prop::option::of(0.5f32..2.0),
        prop::option::of(-2f32..2.0),
        prop::option::of(-2f32..2.0),
        prop::option::of((0f32..5.0, 1u32..4)),
        prop::option::of((0u32..80, -100f32..100.0)),
        prop::option::of(0f32..=1.0),
    );
    (filters, penalties).prop_map(|(filters, penalties)| {
        let (temperature, top_n_sigma, top_k, typical_p, top_p, min_p, xtc, mirostat) = filters;
        let (repetition_penalty, frequency_penalty, presence_penalty, dry, bias, range) = penalties;
        SamplingParams {
            temperature: Some(temperature),
            dynamic_temperature_range: range.map(|range| range * temperature),
            top_n_sigma,
            top_k,
            typical_p,
            top_p,
            min_p,
            xtc_probability: xtc.map(|xtc| xtc.0),
            xtc_threshold: xtc.map(|xtc| xtc.1),
            mirostat_tau: mirostat.map(|mirostat| mirostat.0),
            mirostat_eta: mirostat.map(|mirostat| mirostat.1),
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            dry_multiplier: dry.map(|dry| dry.0),
            dry_allowed_length: dry.map(|dry| dry.1),
            logit_bias: bias.map(|bias| BTreeMap::from([bias])),
            ..SamplingParams::new()
        }
    })
}

/// All stages in any order that is allowed.
fn any_order() -> impl Strategy<Value = Vec<Stage>> {
    let [on_row @ .., _, _, _, _, _, _, _, _] = Stage::DEFAULT_ORDER;
    let [_, _, _, filters @ .., mirostat] = Stage::DEFAULT_ORDER;
    (Just(on_row.to_vec()).prop_shuffle(), Just(filters.to_vec()).prop_shuffle())
        .prop_map(move |(on_row, filters)| [on_row, filters, vec![mirostat]].concat())
}

#[test]
fn another_order_gives_what_it_says() {
    // Top-p before the temperature: of 0.1, 0.2, 0.3, 0.4 it needs two for 0.5; squared, they are 9 and 16 of 25.
    let order = [Stage::TopP, Stage::Temperature];
    let params = SamplingParams::new().with_temperature(0.5).with_top_p(0.5);
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    let with = |order: &[Stage], params: &SamplingParams| {
        let mut session = Chain::with_order(order).unwrap().open(params).unwrap();
        let mut out = Distribution::new();
        session.distribution(&context(&[], &[]), &mut logits.clone(), &mut out).unwrap();
        let mut found: Vec<_> = out.candidates().iter().map(|c| (c.token, c.probability)).collect();
        found.sort_by_key(|entry| entry.0);
        found
    };
    assert_near(&with(&order, &params), &[(2, 9.0 / 25.0), (3, 16.0 / 25.0)]);
    // Min-p before top-k and top-p, the temperature left out: 0.3 and 0.4 remain, and 4/7 reaches 0.55.
    let params = SamplingParams::new().with_min_p(0.6).with_top_p(0.55);
    assert_near(&with(&[Stage::MinP, Stage::TopP], &params), &[(3, 1.0)]);
    // XTC before a temperature of 0: the best of what it leaves.
    let params = SamplingParams::new().with_xtc_probability(1.0).with_xtc_threshold(0.25);
    assert_near(&with(&[Stage::Xtc, Stage::Temperature], &params), &[(2, 1.0)]);
    // And a low one after XTC has taken the best: the rest does not vanish.
    let cold = params.with_temperature(1e-6);
    assert_near(&with(&[Stage::Xtc, Stage::Temperature], &cold), &[(2, 1.0)]);
}

#[test]
fn impossible_orders_and_parameters_without_a_stage_are_refused() {
    for (order, word) in [
        (&[Stage::TopK, Stage::TopP, Stage::TopK][..], "top_k twice"),
        (&[Stage::Temperature, Stage::Dry], "dry behind"),
        (&[Stage::TopK, Stage::Bias], "bias behind"),
        (&[Stage::Mirostat, Stage::TopK], "mirostat before"),
    ] {
        let error = Chain::with_order(order).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("order"), "{error}");
    }
    let chain = Chain::with_order([Stage::TopK]).unwrap();
    match chain.open(&SamplingParams::new().with_top_k(2).with_temperature(1.0)).map(|_| ()) {
        Err(Error::Request(RequestError::UnusedParameter { name, sampler })) => {
            assert_eq!((name, sampler.as_str()), ("temperature", "chain"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(Chain::default().order(), Stage::DEFAULT_ORDER);
}

/// Mirostat by hand; surprises in bits, the rate 1, the target 1.25, so that the bound starts at 2.5.
#[test]
fn mirostat_follows_the_surprise() {
    let params = at_one().with_mirostat_tau(1.25).with_mirostat_eta(1.0);
    let logits = logits_of(&[0.5, 0.25, 0.125, 0.125]);
    let mut session = Chain::new().open(&params).unwrap();
    let mut ask = |observed: &[TokenId]| {
        observed.iter().for_each(|token| session.observe(*token));
        let mut out = Distribution::new();
        session.distribution(&context(&[], &[]), &mut logits.clone(), &mut out).unwrap();
        let mut found: Vec<_> = out.candidates().iter().map(|c| (c.token, c.probability)).collect();
        found.sort_by_key(|entry| entry.0);
        found
    };
    // 1 and 2 bits pass, 3 do not.
    let two = [(0, 2.0 / 3.0), (1, 1.0 / 3.0)];
    assert_near(&ask(&[]), &two);
    // 1/3 is 1.585 bits: the bound falls to 2.165. Token 3 was no candidate and teaches nothing.
    assert_near(&ask(&[1]), &two);
    assert_near(&ask(&[3]), &two);
    // 2/3 is 0.585 bits: 2.830, and once more 3.495, where all pass.
    assert_near(&ask(&[0]), &two);
    assert_near(&ask(&[0]), &[(0, 0.5), (1, 0.25), (2, 0.125), (3, 0.125)]);
    // 1/8 is 3 bits: 1.745, only the first passes; it has no surprise then: 2.995 lets two pass again.
    assert_near(&ask(&[3]), &[(0, 1.0)]);
    assert_near(&ask(&[0]), &two);
    // A bound below every surprise leaves the best.
    assert_near(&run(&at_one().with_mirostat_tau(0.2), &logits), &[(0, 1.0)]);
}

#[test]
fn draws_of_a_chain_follow_its_distribution() {
    // Top-k leaves 4, 3, 2 of 9. Two degrees of freedom: 13.8 has a tail of 0.1 %.
    let params = at_one().with_top_k(3);
    let mut session = Chain::new().open(&params).unwrap();
    let logits = logits_of(&[0.1, 0.2, 0.3, 0.4]);
    let mut counts = [0u32; 4];
    let mut out = Distribution::new();
    for position in 0..100_000 {
        let noise = NoiseKey { seed: 11, choice: 2, position };
        session.distribution(&SampleContext { noise, ..context(&[], &[]) }, &mut logits.clone(), &mut out).unwrap();
        counts[draw(&out, &noise).unwrap() as usize] += 1;
    }
    assert_eq!(counts[0], 0);
    let chi: f64 = counts[1..]
        .iter()
        .zip([2.0, 3.0, 4.0])
        .map(|(&n, w)| {
            let expected = 100_000.0 * w / 9.0;
            (f64::from(n) - expected).powi(2) / expected
        })
        .sum();
    assert!(chi < 13.8, "{chi}");
}

/// The least of several times, so that whatever else runs here does not count. The bounds are far above what it takes.
#[test]
fn a_large_vocabulary_is_sampled_fast() {
    let logits: Vec<f32> = crate::testing::normal(3, "row", 262_144).iter().map(|x| 3.0 * x).collect();
    let measure = |name: &str, params: SamplingParams, most: u128| {
        let mut session = Chain::new().open(&params).unwrap();
        let mut out = Distribution::new();
        let history: Vec<TokenId> = (0..2000).map(|i| i * i % 977).collect();
        let times = (0..15).map(|_| {
            let mut row = logits.clone();
            let start = std::time::Instant::now();
            session.distribution(&context(&history, &[]), &mut row, &mut out).unwrap();
            start.elapsed().as_micros()
        });
        let least = times.min().unwrap();
        println!("{name}: {least} microseconds, {} candidates", out.candidates().len());
        assert!(least < most, "{name}: {least} microseconds");
    };
    let usual = || at_one().with_top_k(40).with_top_p(0.95);
    measure("greedy", SamplingParams::new(), 10_000);
    measure("top-k, top-p", usual(), 10_000);
    measure("top-k, top-p, penalties, DRY", usual().with_repetition_penalty(1.1).with_dry_multiplier(0.8), 20_000);
    measure("min-p", at_one().with_min_p(0.05), 10_000);
    measure("top-n-sigma", at_one().with_top_n_sigma(1.0), 20_000);
    measure("top-p", at_one().with_top_p(0.95), 2_000_000);
    measure("typical", at_one().with_typical_p(0.95), 4_000_000);
}
