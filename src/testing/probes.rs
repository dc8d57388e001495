//! Values of every sampling parameter: out of range for all samplers, and such that one who reads it must show it.
//!
//! Data of the conformance suite for samplers.

use crate::sample::SamplingParams;

/// A parameter, set to a value that is not neutral on top of what it belongs to.
pub(super) struct Probe {
    pub(super) name: &'static str,
    pub(super) base: fn(SamplingParams) -> SamplingParams,
    pub(super) with: fn(SamplingParams) -> SamplingParams,
}

pub(super) fn probes() -> Vec<Probe> {
    type Change = fn(SamplingParams) -> SamplingParams;
    let none: Change = |p| p;
    let with_penalties: Change = |p| p.with_repetition_penalty(1.5);
    let with_dry: Change = |p| p.with_dry_multiplier(1.0).with_dry_allowed_length(1);
    let list: [(&'static str, Change, Change); 22] = [
        ("temperature", none, |p| p.with_temperature(2.0)),
        ("dynamic_temperature_range", none, |p| p.with_dynamic_temperature_range(0.5)),
        (
            "dynamic_temperature_exponent",
            |p| p.with_dynamic_temperature_range(0.5),
            |p| p.with_dynamic_temperature_exponent(4.0),
        ),
        ("top_n_sigma", none, |p| p.with_top_n_sigma(0.7)),
        ("top_k", none, |p| p.with_top_k(3)),
        ("typical_p", none, |p| p.with_typical_p(0.3)),
        ("top_p", none, |p| p.with_top_p(0.3)),
        ("min_p", none, |p| p.with_min_p(0.5)),
        ("xtc_probability", none, |p| p.with_xtc_probability(1.0).with_xtc_threshold(0.03)),
        ("xtc_threshold", |p| p.with_xtc_probability(1.0).with_xtc_threshold(0.03), |p| p.with_xtc_threshold(0.005)),
        ("repetition_penalty", none, with_penalties),
        ("frequency_penalty", none, |p| p.with_frequency_penalty(0.5)),
        ("presence_penalty", none, |p| p.with_presence_penalty(0.5)),
        ("penalty_window", with_penalties, |p| p.with_penalty_window(2)),
        ("dry_multiplier", none, with_dry),
        ("dry_base", with_dry, |p| p.with_dry_base(1.1)),
        ("dry_allowed_length", with_dry, |p| p.with_dry_allowed_length(2)),
        ("dry_window", with_dry, |p| p.with_dry_window(9)),
        ("dry_breaker_ids", with_dry, |p| p.with_dry_breaker_ids(vec![vec![2]])),
        ("logit_bias", none, |p| p.with_logit_bias(7, 3.0)),
        ("mirostat_tau", none, |p| p.with_mirostat_tau(1.5)),
        ("mirostat_eta", |p| p.with_mirostat_tau(1.5), |p| p.with_mirostat_eta(1.0)),
    ];
    list.into_iter().map(|(name, base, with)| Probe { name, base, with }).collect()
}

/// Parameters that no sampler accepts: values out of range, and parameters without the one that they belong to.
pub(super) fn out_of_range() -> Vec<SamplingParams> {
    let p = SamplingParams::new;
    let warm = || p().with_temperature(1.0);
    let dry = || p().with_dry_multiplier(1.0);
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    vec![
        p().with_temperature(-0.1),
        p().with_temperature(nan),
        p().with_temperature(infinity),
        warm().with_dynamic_temperature_range(1.1),
        warm().with_dynamic_temperature_range(-0.1),
        warm().with_dynamic_temperature_range(nan),
        p().with_dynamic_temperature_range(0.5),
        warm().with_dynamic_temperature_exponent(1.0),
        warm().with_dynamic_temperature_range(0.5).with_dynamic_temperature_exponent(0.0),
        warm().with_top_n_sigma(0.0),
        warm().with_top_n_sigma(nan),
        warm().with_typical_p(0.0),
        warm().with_typical_p(1.1),
        warm().with_top_p(0.0),
        warm().with_top_p(1.1),
        warm().with_top_p(nan),
        warm().with_min_p(-0.1),
        warm().with_min_p(1.1),
        warm().with_xtc_probability(1.1),
        warm().with_xtc_probability(0.5).with_xtc_threshold(0.6),
        warm().with_xtc_threshold(0.1),
        p().with_repetition_penalty(0.0),
        p().with_repetition_penalty(infinity),
        p().with_frequency_penalty(2.1),
        p().with_presence_penalty(-2.1),
        p().with_penalty_window(8),
        p().with_repetition_penalty(1.1).with_penalty_window(0),
        p().with_dry_multiplier(-1.0),
        dry().with_dry_base(0.9),
        dry().with_dry_allowed_length(0),
        dry().with_dry_window(0),
        dry().with_dry_breaker_ids(vec![vec![]]),
        dry().with_dry_breakers(vec![String::new()]),
        p().with_dry_base(2.0),
        p().with_dry_allowed_length(3),
        p().with_dry_window(3),
        p().with_dry_breakers(vec!["\n".to_string()]),
        p().with_dry_breaker_ids(vec![vec![1]]),
        p().with_logit_bias(1, 100.5),
        p().with_logit_bias(1, nan),
        p().with_logit_bias(1, f32::NEG_INFINITY),
        warm().with_mirostat_tau(0.0),
        warm().with_mirostat_tau(2.0).with_mirostat_eta(1.1),
        warm().with_mirostat_eta(0.1),
    ]
}
