//! Tests of keyed noise and the draw.

use proptest::prelude::*;

use super::*;
use crate::Error;

fn distribution(probabilities: &[f32]) -> Distribution {
    let mut distribution = Distribution::new();
    probabilities.iter().enumerate().for_each(|(token, &p)| distribution.push(token as TokenId, p));
    distribution
}

/// The definition, without shortcuts.
fn argmax_of_gumbel(distribution: &Distribution, key: &NoiseKey) -> TokenId {
    let score = |token: TokenId, p: f32| f64::from(p).ln() - (-key.uniform(token).ln()).ln();
    let mut best = (f64::NEG_INFINITY, TokenId::MAX);
    for candidate in distribution.candidates().iter().filter(|candidate| candidate.probability > 0.0) {
        let this = score(candidate.token, candidate.probability);
        if this > best.0 || (this == best.0 && candidate.token < best.1) {
            best = (this, candidate.token);
        }
    }
    best.1
}

/// Chi-square of 100,000 draws; `key_of` says which part of the key runs.
fn chi_square(probabilities: &[f32], key_of: impl Fn(u64) -> NoiseKey) -> f64 {
    const DRAWS: u64 = 100_000;
    let distribution = distribution(probabilities);
    let mut counts = vec![0u64; probabilities.len()];
    for i in 0..DRAWS {
        counts[draw(&distribution, &key_of(i)).unwrap() as usize] += 1;
    }
    let expected = |p: f32| f64::from(p) * DRAWS as f64;
    counts.iter().zip(probabilities).map(|(&n, &p)| (n as f64 - expected(p)).powi(2) / expected(p)).sum()
}

#[test]
fn draws_follow_the_distribution_along_every_part_of_the_key() {
    let probabilities = [0.4, 0.3, 0.15, 0.1, 0.04, 0.01];
    // 5 degrees of freedom: 20.5 has a tail of 0.1 %.
    for seed in [0, 1, 42, u64::MAX] {
        let along_positions = chi_square(&probabilities, |i| NoiseKey { seed, choice: 0, position: i });
        assert!(along_positions < 20.5, "seed {seed}: {along_positions}");
    }
    let along_seeds = chi_square(&probabilities, |i| NoiseKey { seed: i, choice: 0, position: 7 });
    assert!(along_seeds < 20.5, "{along_seeds}");
    let along_choices = chi_square(&probabilities, |i| NoiseKey { seed: 3, choice: i as u32, position: 7 });
    assert!(along_choices < 20.5, "{along_choices}");
}

#[test]
fn draws_follow_flat_peaked_and_long_tailed_distributions() {
    let flat = vec![1.0 / 32.0; 32];
    let geometric: Vec<f32> = (1..=12).map(|i| 0.5f32.powi(i)).chain([0.5f32.powi(12)]).collect();
    // Tails of 0.1 % of 31, 1 and 12 degrees of freedom.
    for (probabilities, bound) in [(flat, 61.1), (vec![0.999, 0.001], 10.83), (geometric, 32.91)] {
        for (seed, choice) in [(5, 0), (5, 1), (u64::MAX - 3, 7)] {
            let along_positions = chi_square(&probabilities, |i| NoiseKey { seed, choice, position: 1000 + i });
            assert!(along_positions < bound, "{probabilities:?}, seed {seed}, choice {choice}: {along_positions}");
        }
        let along_seeds = chi_square(&probabilities, |i| NoiseKey { seed: i << 20, choice: 0, position: 0 });
        assert!(along_seeds < bound, "{along_seeds}");
    }
}

#[test]
fn decisions_are_uniform_and_apart_from_the_draw() {
    // Which eighth the decision falls in, and which that of the draw's noise for the token of the same number.
    let mut counts = [0u32; 64];
    for position in 0..100_000 {
        let key = NoiseKey { seed: 77, choice: 0, position };
        counts[(key.decision(0) * 8.0) as usize * 8 + (key.uniform(0) * 8.0) as usize] += 1;
    }
    let expected = 100_000.0 / 64.0;
    let chi: f64 = counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
    // 63 degrees of freedom: 103.4 has a tail of 0.1 %.
    assert!(chi < 103.4, "{chi}");
    let key = NoiseKey { seed: 77, choice: 0, position: 1 };
    assert!(key.decision(0) != key.decision(1) && key.decision(0) == key.decision(0));
}

#[test]
fn the_noise_is_uniform_over_tokens_and_positions_are_independent() {
    let key = |position| NoiseKey { seed: 9, choice: 0, position };
    let mut counts = [0u32; 64];
    // Pairs of neighbouring positions fall into an 8 x 8 table.
    for token in 0..100_000 {
        let cell = |position| (key(position).uniform(token) * 8.0) as usize;
        counts[cell(5) * 8 + cell(6)] += 1;
    }
    let expected = 100_000.0 / 64.0;
    let chi: f64 = counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
    // 63 degrees of freedom: 103.4 has a tail of 0.1 %.
    assert!(chi < 103.4, "{chi}");
}

#[test]
fn the_noise_of_known_keys_does_not_change_between_versions() {
    let bits =
        |seed, choice, position, token| (NoiseKey { seed, choice, position }.uniform(token) * 2f64.powi(53)) as u64;
    let all = [bits(0, 0, 0, 0), bits(1, 0, 0, 0), bits(0, 1, 0, 0), bits(0, 0, 1, 0), bits(0, 0, 0, 1)];
    // Computed by a second implementation of the documented construction.
    assert_eq!(
        all,
        [
            8_311_188_988_586_693,
            2_545_433_195_836_779,
            3_196_614_386_361_035,
            7_873_917_722_334_003,
            8_132_709_235_511_769
        ]
    );
}

#[test]
fn nothing_to_draw_is_an_error() {
    for probabilities in [&[][..], &[0.0, 0.0], &[f32::NAN], &[-1.0]] {
        let error = draw(&distribution(probabilities), &NoiseKey { seed: 0, choice: 0, position: 0 }).unwrap_err();
        assert!(matches!(error, Error::Request(RequestError::NoAllowedToken)));
    }
}

proptest! {
    #[test]
    fn the_shortcut_equals_the_definition(
        weights in prop::collection::vec(prop_oneof![Just(0.0f32), 1e-30f32..1.0], 1..300),
        seed: u64, choice: u32, position: u64,
    ) {
        let distribution = distribution(&weights);
        let key = NoiseKey { seed, choice, position };
        prop_assume!(weights.iter().any(|&w| w > 0.0));
        prop_assert_eq!(draw(&distribution, &key).unwrap(), argmax_of_gumbel(&distribution, &key));
    }

    #[test]
    fn the_order_of_candidates_does_not_matter(
        weights in prop::collection::vec(1e-6f32..1.0, 1..50), seed: u64,
    ) {
        let forward = distribution(&weights);
        let mut backward = Distribution::new();
        forward.candidates().iter().rev().for_each(|c| backward.push(c.token, c.probability));
        let key = NoiseKey { seed, choice: 0, position: 3 };
        prop_assert_eq!(draw(&forward, &key).unwrap(), draw(&backward, &key).unwrap());
    }
}
