//! Tests of single filters against probabilities worked out by hand.

use proptest::prelude::*;

use crate::sample::fixtures::{assert_near, at_one, context, logits_of, run};
use crate::sample::{Chain, Distribution, NoiseKey, SampleContext, Sampler, SamplingParams};

/// 1, 2, 3 and 3 bits of information: an entropy of 1/2 + 2/4 + 3/8 + 3/8 = 1.75 bits.
const DYADIC: [f32; 4] = [0.5, 0.25, 0.125, 0.125];

#[test]
fn typical_begins_nearest_to_the_entropy() {
    let logits = logits_of(&DYADIC);
    // Distances 0.75, 0.25, 1.25, 1.25: the order is 1, 0, 2, 3, with masses 2/8, 6/8, 7/8, 1.
    assert_near(&run(&at_one().with_typical_p(0.2), &logits), &[(1, 1.0)]);
    assert_near(&run(&at_one().with_typical_p(0.5), &logits), &[(0, 2.0 / 3.0), (1, 1.0 / 3.0)]);
    assert_near(&run(&at_one().with_typical_p(0.8), &logits), &[(0, 4.0 / 7.0), (1, 2.0 / 7.0), (2, 1.0 / 7.0)]);
    assert_eq!(run(&at_one().with_typical_p(1.0), &logits), run(&at_one(), &logits));
    // Entropy 0.4 · 1.32 + 0.6 · 2.32 = 1.92 bits: the three at 2.32 are nearer than the one at 1.32.
    let third = 1.0 / 3.0;
    let flat = logits_of(&[0.4, 0.2, 0.2, 0.2]);
    assert_near(&run(&at_one().with_typical_p(0.5), &flat), &[(1, third), (2, third), (3, third)]);
    // Nearly certain: the entropy is near the best one's information.
    let peaked = logits_of(&[0.97, 0.01, 0.01, 0.01]);
    assert_near(&run(&at_one().with_typical_p(0.5), &peaked), &[(0, 1.0)]);
    // Equal logits have equal distance: lower ids first.
    assert_near(&run(&at_one().with_typical_p(0.5), &[0.0; 5]), &[(0, third), (1, third), (2, third)]);
}

#[test]
fn xtc_drops_top_choices_but_the_last() {
    let logits = logits_of(&[0.1, 0.4, 0.2, 0.3]);
    let xtc = |threshold| at_one().with_xtc_probability(1.0).with_xtc_threshold(threshold);
    let all = run(&at_one(), &logits);
    // Of 0.4 and 0.3 the former goes: 1, 2, 3 of 6 remain.
    assert_near(&run(&xtc(0.25), &logits), &[(0, 1.0 / 6.0), (2, 2.0 / 6.0), (3, 3.0 / 6.0)]);
    assert_near(&run(&xtc(0.15), &logits), &[(0, 1.0 / 3.0), (2, 2.0 / 3.0)]);
    assert_near(&run(&xtc(0.0), &logits), &[(0, 1.0)]);
    // One or no top choice: nothing to exclude.
    assert_eq!(run(&xtc(0.35), &logits), all);
    assert_eq!(run(&xtc(0.45), &logits), all);
    assert_eq!(run(&at_one().with_xtc_probability(0.0), &logits), all);
    // Of equal ones the highest id stays. The default threshold is 0.1.
    assert_near(&run(&xtc(0.3), &logits_of(&[0.4, 0.4, 0.2])), &[(1, 2.0 / 3.0), (2, 1.0 / 3.0)]);
    let default = at_one().with_xtc_probability(1.0);
    assert_near(&run(&default, &logits_of(&[0.5, 0.42, 0.08])), &[(1, 0.84), (2, 0.16)]);
}

#[test]
fn xtc_acts_as_often_as_it_says_and_by_the_key_alone() {
    let params = at_one().with_xtc_probability(0.3).with_xtc_threshold(0.25);
    let mut session = Chain::new().open(&params).unwrap();
    let logits = logits_of(&[0.4, 0.3, 0.2, 0.1]);
    let mut out = Distribution::new();
    let mut acts = |noise: NoiseKey| {
        session.distribution(&SampleContext { noise, ..context(&[], &[]) }, &mut logits.clone(), &mut out).unwrap();
        out.probability(0) == 0.0
    };
    for along in 0..3 {
        let key = |i: u32| match along {
            0 => NoiseKey { seed: 4, choice: 0, position: i.into() },
            1 => NoiseKey { seed: i.into(), choice: 0, position: 9 },
            _ => NoiseKey { seed: 4, choice: i, position: 9 },
        };
        let count = (0..100_000).filter(|&i| acts(key(i))).count() as f64;
        // One degree of freedom: 10.83 has a tail of 0.1 %.
        let chi = (count - 30_000.0).powi(2) / 30_000.0 + (count - 30_000.0).powi(2) / 70_000.0;
        assert!(chi < 10.83, "{along}: {chi}");
        assert_eq!(acts(key(17)), acts(key(17)));
    }
}

#[test]
fn top_n_sigma_counts_deviations_of_the_logits() {
    // Mean 3, variance (9 + 1 + 1 + 9) / 4 = 5, deviation 2.236: borders at 3.76 and 1.53.
    let logits = [0.0, 2.0, 4.0, 6.0];
    let kept = |params: &SamplingParams, logits: &[f32]| {
        run(params, logits).into_iter().map(|candidate| candidate.0).collect::<Vec<_>>()
    };
    assert_eq!(kept(&at_one().with_top_n_sigma(1.0), &logits), [2, 3]);
    assert_eq!(kept(&at_one().with_top_n_sigma(2.0), &logits), [1, 2, 3]);
    assert_eq!(kept(&at_one().with_top_n_sigma(1e-6), &logits), [3]);
    assert_eq!(kept(&at_one().with_top_n_sigma(1e6), &logits), [0, 1, 2, 3]);
    // e^4 and e^6: 1 of 1 + e², and e² of it.
    let low = 1.0 / (1.0 + 2f32.exp());
    assert_near(&run(&at_one().with_top_n_sigma(1.0), &logits), &[(2, low), (3, 1.0 - low)]);
    // A temperature before it does not change who stays.
    for temperature in [0.01, 0.3, 5.0] {
        let params = SamplingParams::new().with_temperature(temperature).with_top_n_sigma(1.0);
        assert_eq!(
            kept(&params, &[3.99, 2.0, 4.0, 4.0]),
            kept(&at_one().with_top_n_sigma(1.0), &[3.99, 2.0, 4.0, 4.0])
        );
    }
    // Forbidden tokens do not count: mean 3, deviation 1, and the border itself is kept.
    let masked = [f32::NEG_INFINITY, 2.0, 4.0, f32::NEG_INFINITY];
    assert_eq!(kept(&at_one().with_top_n_sigma(1.0), &masked), [2]);
    assert_eq!(kept(&at_one().with_top_n_sigma(2.0), &masked), [1, 2]);
    assert_eq!(kept(&at_one().with_top_n_sigma(0.5), &[7.0, 7.0]), [0, 1]);
}

#[test]
fn the_dynamic_temperature_follows_the_entropy() {
    let logits = logits_of(&DYADIC);
    let powers = |exponent: f64| {
        let raised: Vec<f64> = DYADIC.iter().map(|p| f64::from(*p).powf(exponent)).collect();
        let sum: f64 = raised.iter().sum();
        raised.iter().enumerate().map(|(id, p)| (id as u32, (p / sum) as f32)).collect::<Vec<_>>()
    };
    // 1.75 of at most 2 bits are 7/8: temperature 0 + 2 · 7/8 = 7/4.
    let params = at_one().with_dynamic_temperature_range(1.0);
    assert_near(&run(&params, &logits), &powers(4.0 / 7.0));
    // From 0.5 to 1.5: 0.5 + 7/8 = 11/8.
    assert_near(&run(&at_one().with_dynamic_temperature_range(0.5), &logits), &powers(8.0 / 11.0));
    // Squared, 49/64: 0 + 2 · 49/64 = 49/32.
    assert_near(&run(&params.clone().with_dynamic_temperature_exponent(2.0), &logits), &powers(32.0 / 49.0));
    // Forbidden tokens do not count: 1 of at most 1 bit, temperature 2; of one token there is no entropy.
    let masked = [0.0, f32::NEG_INFINITY, 0.0];
    assert_near(&run(&params, &masked), &[(0, 0.5), (2, 0.5)]);
    assert_near(&run(&params, &[f32::NEG_INFINITY, 5.0]), &[(1, 1.0)]);
    // No entropy at all: temperature 0.
    assert_near(&run(&params, &[0.0, 500.0, 0.0]), &[(1, 1.0)]);
    assert_eq!(run(&at_one().with_dynamic_temperature_range(0.0), &logits), run(&at_one(), &logits));
}

#[test]
fn filters_behind_each_other_see_the_renormalized_rest() {
    // Top-k 3 of 4, 3, 2, 1: 4/9, 3/9, 2/9. XTC at 0.3 takes the first: 3/5, 2/5; of all ten only 4/10 would count.
    let logits = logits_of(&[0.4, 0.3, 0.2, 0.1]);
    let params = at_one().with_top_k(3).with_xtc_probability(1.0).with_xtc_threshold(0.32);
    assert_near(&run(&params, &logits), &[(1, 3.0 / 5.0), (2, 2.0 / 5.0)]);
    // Typical takes 1 and 0 (see above), of which min-p 0.6 keeps the larger: 1/2 is below it.
    let params = at_one().with_typical_p(0.5).with_min_p(0.6);
    assert_near(&run(&params, &logits_of(&DYADIC)), &[(0, 1.0)]);
    // When typical drops the best, min-p is relative to the best that is left.
    let params = at_one().with_typical_p(0.5).with_min_p(1.0);
    assert_eq!(run(&params, &logits_of(&[0.4, 0.2, 0.2, 0.2])).len(), 3);
    // Top-n-sigma before top-k: 4 and 6 remain, then 6.
    assert_near(&run(&at_one().with_top_n_sigma(1.0).with_top_k(1), &[0.0, 2.0, 4.0, 6.0]), &[(3, 1.0)]);
}

/// Surprises in f64, by definition.
fn surprises(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    logits.iter().map(|&logit| sum.ln() - f64::from(logit)).collect()
}

proptest! {
    #[test]
    fn typical_equals_a_full_sort(logits in prop::collection::vec(-12f32..12.0, 2..700), p in 0.01f32..0.99) {
        let of = surprises(&logits);
        let entropy: f64 = of.iter().map(|s| s * (-s).exp()).sum();
        let mut ids: Vec<usize> = (0..logits.len()).collect();
        ids.sort_by(|&a, &b| (of[a] - entropy).abs().total_cmp(&(of[b] - entropy).abs()));
        let (mut mass, mut kept) = (0.0, 0);
        while mass < f64::from(p) && kept < ids.len() {
            mass += (-of[ids[kept]]).exp();
            kept += 1;
        }
        let found = run(&at_one().with_typical_p(p), &logits);
        // f32 may fall on the other side of one border.
        prop_assert!(found.len().abs_diff(kept) <= 1, "{} {}", found.len(), kept);
        let missing = ids[..kept].iter().filter(|&&id| found.iter().all(|f| f.0 as usize != id)).count();
        prop_assert!(missing <= 1);
    }

    #[test]
    fn a_row_that_is_narrowed_first_gives_the_same(
        logits in Just((0..900).map(|i| i as f32 / 64.0 - 7.0).collect::<Vec<_>>()).prop_shuffle(),
        k in 1u32..900, p in 0.01f32..0.99, min_p in 0.01f32..1.0,
    ) {
        // Top-k of all tokens but one leaves the paths for whole rows.
        for params in [at_one().with_top_p(p), at_one().with_min_p(min_p), at_one().with_top_n_sigma(p)] {
            let whole = run(&params, &logits);
            let narrowed = run(&params.clone().with_top_k(899), &logits);
            prop_assert!(whole.len().abs_diff(narrowed.len()) <= 1);
            let top = run(&params.with_top_k(k), &logits);
            prop_assert!(top.len() <= k as usize);
        }
    }
}
