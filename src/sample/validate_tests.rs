//! Tests of ranges and dependencies.

use super::*;
use crate::Error;

#[track_caller]
fn refused(params: &SamplingParams) -> &'static str {
    match params.validate() {
        Err(Error::Request(RequestError::InvalidParameter { name, .. })) => name,
        other => panic!("{params:?}: {other:?}"),
    }
}

#[test]
fn out_of_range_is_refused_by_name_and_never_clamped() {
    let p = SamplingParams::new;
    let at_one = || p().with_temperature(1.0);
    let xtc = || p().with_xtc_probability(0.5);
    let dry = || p().with_dry_multiplier(1.0);
    let nan = f32::NAN;
    let cases = [
        (p().with_temperature(-0.1), "temperature"),
        (p().with_temperature(nan), "temperature"),
        (p().with_temperature(f32::INFINITY), "temperature"),
        (at_one().with_dynamic_temperature_range(-0.1), "dynamic_temperature_range"),
        (at_one().with_dynamic_temperature_range(1.01), "dynamic_temperature_range"),
        (at_one().with_dynamic_temperature_range(nan), "dynamic_temperature_range"),
        (p().with_dynamic_temperature_range(0.1), "dynamic_temperature_range"),
        (p().with_temperature(f32::MAX).with_dynamic_temperature_range(f32::MAX), "dynamic_temperature_range"),
        (
            at_one().with_dynamic_temperature_range(0.5).with_dynamic_temperature_exponent(0.0),
            "dynamic_temperature_exponent",
        ),
        (p().with_top_n_sigma(0.0), "top_n_sigma"),
        (p().with_top_n_sigma(f32::INFINITY), "top_n_sigma"),
        (p().with_typical_p(0.0), "typical_p"),
        (p().with_typical_p(1.0001), "typical_p"),
        (p().with_top_p(0.0), "top_p"),
        (p().with_top_p(1.0001), "top_p"),
        (p().with_top_p(nan), "top_p"),
        (p().with_min_p(-0.1), "min_p"),
        (p().with_min_p(1.1), "min_p"),
        (p().with_min_p(nan), "min_p"),
        (p().with_xtc_probability(-0.1), "xtc_probability"),
        (p().with_xtc_probability(1.1), "xtc_probability"),
        (xtc().with_xtc_threshold(0.51), "xtc_threshold"),
        (xtc().with_xtc_threshold(nan), "xtc_threshold"),
        (p().with_repetition_penalty(0.0), "repetition_penalty"),
        (p().with_repetition_penalty(f32::INFINITY), "repetition_penalty"),
        (p().with_frequency_penalty(2.01), "frequency_penalty"),
        (p().with_presence_penalty(-2.01), "presence_penalty"),
        (p().with_presence_penalty(nan), "presence_penalty"),
        (p().with_repetition_penalty(1.1).with_penalty_window(0), "penalty_window"),
        (p().with_dry_multiplier(-1.0), "dry_multiplier"),
        (p().with_dry_multiplier(f32::INFINITY), "dry_multiplier"),
        (dry().with_dry_base(0.99), "dry_base"),
        (dry().with_dry_allowed_length(0), "dry_allowed_length"),
        (dry().with_dry_window(0), "dry_window"),
        (dry().with_dry_breakers(vec![String::new()]), "dry_breakers"),
        (dry().with_dry_breakers(vec!["a".repeat(65)]), "dry_breakers"),
        (dry().with_dry_breakers(vec!["a".to_string(); 33]), "dry_breakers"),
        (dry().with_dry_breaker_ids(vec![vec![]]), "dry_breaker_ids"),
        (dry().with_dry_breaker_ids(vec![vec![1; 129]]), "dry_breaker_ids"),
        (dry().with_dry_breakers(vec![]).with_dry_breaker_ids(vec![]), "dry_breaker_ids"),
        (p().with_logit_bias(4, 100.1), "logit_bias"),
        (p().with_logit_bias(4, f32::NEG_INFINITY), "logit_bias"),
        (p().with_logit_bias(4, nan), "logit_bias"),
        (p().with_mirostat_tau(0.0), "mirostat_tau"),
        (p().with_mirostat_tau(5.0).with_mirostat_eta(1.1), "mirostat_eta"),
    ];
    for (params, expected) in cases {
        assert_eq!(refused(&params), expected, "{params:?}");
    }
}

#[test]
fn what_means_nothing_alone_is_refused() {
    let p = SamplingParams::new;
    for (params, expected) in [
        (p().with_dynamic_temperature_exponent(1.0), "dynamic_temperature_exponent"),
        (p().with_xtc_threshold(0.1), "xtc_threshold"),
        (p().with_penalty_window(5), "penalty_window"),
        (p().with_dry_base(2.0), "dry_base"),
        (p().with_dry_allowed_length(2), "dry_allowed_length"),
        (p().with_dry_window(9), "dry_window"),
        (p().with_dry_breakers(vec!["a".to_string()]), "dry_breakers"),
        (p().with_dry_breaker_ids(vec![vec![1]]), "dry_breaker_ids"),
        (p().with_mirostat_eta(0.1), "mirostat_eta"),
    ] {
        assert_eq!(refused(&params), expected);
    }
    for penalty in [p().with_repetition_penalty(1.1), p().with_frequency_penalty(0.1), p().with_presence_penalty(0.1)] {
        penalty.with_penalty_window(5).validate().unwrap();
    }
}

#[test]
fn the_borders_of_the_ranges_are_accepted() {
    let lowest = SamplingParams::new()
        .with_temperature(0.0)
        .with_dynamic_temperature_range(0.0)
        .with_dynamic_temperature_exponent(f32::MIN_POSITIVE)
        .with_top_n_sigma(f32::MIN_POSITIVE)
        .with_top_k(0)
        .with_typical_p(f32::MIN_POSITIVE)
        .with_top_p(f32::MIN_POSITIVE)
        .with_min_p(0.0)
        .with_xtc_probability(0.0)
        .with_xtc_threshold(0.0)
        .with_repetition_penalty(f32::MIN_POSITIVE)
        .with_frequency_penalty(-2.0)
        .with_presence_penalty(-2.0)
        .with_penalty_window(1)
        .with_dry_multiplier(0.0)
        .with_dry_base(1.0)
        .with_dry_allowed_length(1)
        .with_dry_window(1)
        .with_dry_breakers(vec![])
        .with_logit_bias(0, -100.0)
        .with_mirostat_tau(f32::MIN_POSITIVE)
        .with_mirostat_eta(0.0);
    lowest.validate().unwrap();
    let highest = SamplingParams::new()
        .with_temperature(1.0)
        .with_dynamic_temperature_range(1.0)
        .with_typical_p(1.0)
        .with_top_p(1.0)
        .with_min_p(1.0)
        .with_top_k(u32::MAX)
        .with_xtc_probability(1.0)
        .with_xtc_threshold(0.5)
        .with_frequency_penalty(2.0)
        .with_presence_penalty(2.0)
        .with_dry_multiplier(f32::MAX)
        .with_dry_breaker_ids(vec![vec![1; 128]])
        .with_logit_bias(0, 100.0)
        .with_mirostat_tau(f32::MAX)
        .with_mirostat_eta(1.0);
    highest.validate().unwrap();
    // Every parameter has its name, and each can be refused by it.
    let names: Vec<_> = lowest.names().chain(highest.names()).collect();
    for stage in crate::sample::Stage::DEFAULT_ORDER {
        for name in stage.parameters() {
            assert!(names.contains(name), "{name}");
        }
    }
    for name in lowest.names() {
        let others: Vec<_> = lowest.names().filter(|other| *other != name).collect();
        match lowest.allow_only(&others, "mine") {
            Err(Error::Request(RequestError::UnusedParameter { name: refused, .. })) => assert_eq!(refused, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn token_ids_are_checked_against_the_vocabulary() {
    let bias = SamplingParams::new().with_logit_bias(9, 1.0);
    let breakers = SamplingParams::new().with_dry_multiplier(1.0).with_dry_breaker_ids(vec![vec![1], vec![2, 9]]);
    for params in [bias, breakers] {
        params.check_vocabulary(10).unwrap();
        let error = params.check_vocabulary(9).unwrap_err();
        assert!(matches!(error, Error::Request(RequestError::TokenOutOfRange { token: 9, vocab_size: 9 })));
    }
}
