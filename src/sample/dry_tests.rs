//! Tests of DRY against cases worked out by hand, and of its linear algorithm against the definition.

use proptest::prelude::*;

use super::*;
use crate::sample::fixtures::context;

/// What is subtracted from each of ten logits, with multiplier 1 and base 2.
fn penalties(params: SamplingParams, prompt: &[TokenId], generated: &[TokenId]) -> [f32; 10] {
    let params = SamplingParams { dry_base: params.dry_base.or(Some(2.0)), ..params.with_dry_multiplier(1.0) };
    params.validate().unwrap();
    let mut logits = [0.0; 10];
    Dry::new(&params).unwrap().unwrap().apply(&context(prompt, generated), &mut logits);
    logits.map(|logit| -logit)
}

fn only(token: usize, penalty: f32) -> [f32; 10] {
    let mut expected = [0.0; 10];
    expected[token] = penalty;
    expected
}

fn breakers(ids: &[&[TokenId]]) -> SamplingParams {
    SamplingParams::new().with_dry_breaker_ids(ids.iter().map(|ids| ids.to_vec()).collect())
}

#[test]
fn what_would_lengthen_a_repetition_is_lowered() {
    let p = SamplingParams::new;
    // "1 2" stood before 3: length 2, 2^0. Where prompt and answer meet makes no difference.
    assert_eq!(penalties(p(), &[1, 2, 3, 1, 2], &[]), only(3, 1.0));
    assert_eq!(penalties(p(), &[1, 2, 3], &[1, 2]), only(3, 1.0));
    assert_eq!(penalties(p(), &[], &[1, 2, 3, 1, 2]), only(3, 1.0));
    // "1 2 3" stood before 4: length 3, 2^1.
    assert_eq!(penalties(p(), &[5, 1, 2, 3, 4, 1, 2, 3], &[]), only(4, 2.0));
    // A single token is not yet a repetition; with an allowed length of 1 it is.
    assert_eq!(penalties(p(), &[1, 3, 1], &[]), [0.0; 10]);
    assert_eq!(penalties(p().with_dry_allowed_length(1), &[1, 3, 1], &[]), only(3, 1.0));
    assert_eq!(penalties(p().with_dry_allowed_length(3), &[1, 2, 3, 1, 2], &[]), [0.0; 10]);
    // 7 7 7 stands before the last 7: length 3, 2^1.
    assert_eq!(penalties(p(), &[7, 7, 7, 7], &[]), only(7, 2.0));
    // "3 1 2" stood before 8 and "1 2" before 9.
    let mut expected = only(8, 2.0);
    expected[9] = 1.0;
    assert_eq!(penalties(p(), &[1, 2, 9, 3, 1, 2, 8, 3, 1, 2], &[]), expected);
    // The longest repetition before a token counts: 9 follows "1 2" and "3 1 2".
    assert_eq!(penalties(p(), &[1, 2, 9, 3, 1, 2, 9, 3, 1, 2], &[]), only(9, 16.0));
    assert_eq!(penalties(p(), &[], &[]), [0.0; 10]);
    // Tokens outside the vocabulary cannot be lowered.
    assert_eq!(penalties(p(), &[1, 2, 77, 1, 2], &[]), [0.0; 10]);
}

#[test]
fn repetitions_end_at_breakers() {
    let text = [5, 1, 2, 3, 4, 5, 1, 2, 3];
    assert_eq!(penalties(SamplingParams::new(), &text, &[]), only(4, 4.0));
    // Behind the last 1 stand two tokens, behind the last 2 only one.
    assert_eq!(penalties(breakers(&[&[1]]), &text, &[]), only(4, 1.0));
    assert_eq!(penalties(breakers(&[&[2]]), &text, &[]), [0.0; 10]);
    // A breaker of two tokens ends with its second; one that does not occur breaks nothing.
    assert_eq!(penalties(breakers(&[&[5, 1]]), &text, &[]), only(4, 1.0));
    assert_eq!(penalties(breakers(&[&[1, 2]]), &text, &[]), [0.0; 10]);
    assert_eq!(penalties(breakers(&[&[1, 3]]), &text, &[]), only(4, 4.0));
    // The longest of several with one beginning decides.
    assert_eq!(penalties(breakers(&[&[5], &[5, 1]]), &text, &[]), only(4, 1.0));
    // What breaks by itself is never lowered; the beginning of a longer breaker is.
    assert_eq!(penalties(breakers(&[&[4]]), &text, &[]), [0.0; 10]);
    assert_eq!(penalties(breakers(&[&[4, 9]]), &text, &[]), only(4, 4.0));
}

#[test]
fn the_window_hides_what_is_older() {
    let text = [1, 2, 3, 9, 1, 2];
    for (window, expected) in [(6, only(3, 1.0)), (5, [0.0; 10]), (100, only(3, 1.0)), (1, [0.0; 10])] {
        assert_eq!(penalties(SamplingParams::new().with_dry_window(window), &text, &[]), expected, "{window}");
        assert_eq!(penalties(SamplingParams::new().with_dry_window(window), &text[..2], &text[2..]), expected);
    }
}

#[test]
fn no_penalty_forbids_and_none_allows() {
    let params = SamplingParams::new().with_dry_multiplier(f32::MAX).with_dry_base(f32::MAX);
    let mut logits = [0.0, f32::NEG_INFINITY, f32::MIN];
    let text: Vec<TokenId> = [0, 1, 2].repeat(2000);
    for end in [5998, 5999, 6000] {
        Dry::new(&params).unwrap().unwrap().apply(&context(&text[..end], &[]), &mut logits);
    }
    assert_eq!(logits, [f32::MIN, f32::NEG_INFINITY, f32::MIN]);
}

#[test]
fn texts_must_be_resolved_first() {
    let params = SamplingParams::new().with_dry_multiplier(1.0).with_dry_breakers(vec!["x".to_string()]);
    assert!(Dry::new(&params).unwrap_err().to_string().contains("resolve_dry_breakers"));
    assert!(Dry::new(&SamplingParams::new().with_dry_multiplier(0.0)).unwrap().is_none());
    assert!(Dry::new(&SamplingParams::new()).unwrap().is_none());
}

#[test]
fn a_long_repetition_takes_linear_time() {
    // A hundred thousand equal tokens, and a period of two: quadratic work would take minutes.
    for text in [vec![1; 100_000], [1, 2].repeat(50_000)] {
        let found = penalties(SamplingParams::new().with_dry_base(1.0), &text, &[]);
        assert_eq!(found.iter().sum::<f32>(), 1.0);
    }
}

/// The definition: for every place, count back.
fn by_definition(text: &[TokenId], breaker: TokenId) -> [f32; 10] {
    let limit = text.iter().rev().position(|token| *token == breaker).unwrap_or(text.len());
    let mut expected = [0.0f32; 10];
    for next in 1..text.len() {
        let (before, token) = (&text[..next], text[next] as usize);
        let length = before.iter().rev().zip(text.iter().rev()).take_while(|(a, b)| a == b).count().min(limit);
        if length >= 2 && text[next] != breaker {
            expected[token] = expected[token].max(1.5f32.powi(length as i32 - 2));
        }
    }
    expected
}

proptest! {
    #[test]
    fn equals_the_definition(text in prop::collection::vec(0u32..4, 0..60), cut in 0usize..60) {
        let params = breakers(&[&[3]]).with_dry_base(1.5);
        let (prompt, generated) = text.split_at(cut.min(text.len()));
        let found = penalties(params, prompt, generated);
        for (found, expected) in found.iter().zip(by_definition(&text, 3)) {
            prop_assert!((found - expected).abs() <= 1e-5 * expected, "{} {}", found, expected);
        }
    }
}
