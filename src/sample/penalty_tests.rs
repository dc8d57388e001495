//! Tests of penalties and biases against logits worked out by hand.

use super::*;
use crate::error::RequestError;
use crate::sample::fixtures::context;
use crate::Error;

fn apply(params: &SamplingParams, prompt: &[TokenId], generated: &[TokenId], logits: &[f32]) -> Vec<f32> {
    let mut penalties = Penalties::new(params).unwrap();
    let mut found = logits.to_vec();
    penalties.apply(&context(prompt, generated), &mut found);
    // Nothing is left behind for the next position.
    let mut again = logits.to_vec();
    penalties.apply(&context(prompt, generated), &mut again);
    assert!(found.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()), "{found:?} {again:?}");
    found
}

const LOGITS: [f32; 4] = [2.0, -1.0, 0.0, 4.0];

#[test]
fn frequency_and_presence_count_the_answer_only() {
    let frequency = SamplingParams::new().with_frequency_penalty(0.5);
    assert_eq!(apply(&frequency, &[3, 0], &[0, 0, 2], &LOGITS), [1.0, -1.0, -0.5, 4.0]);
    let presence = SamplingParams::new().with_presence_penalty(0.25);
    assert_eq!(apply(&presence, &[3, 0], &[0, 0, 2], &LOGITS), [1.75, -1.0, -0.25, 4.0]);
    // Negative ones encourage.
    let negative = SamplingParams::new().with_presence_penalty(-2.0).with_frequency_penalty(-0.5);
    assert_eq!(apply(&negative, &[3], &[1, 1], &LOGITS), [2.0, 2.0, 0.0, 4.0]);
}

#[test]
fn repetition_comes_first_and_counts_the_prompt_too() {
    let all =
        SamplingParams::new().with_repetition_penalty(2.0).with_frequency_penalty(0.5).with_presence_penalty(0.25);
    // Token 0: 2/2 - 2 · 0.5 - 0.25. Token 2: 0 - 0.5 - 0.25. Token 3, of the prompt only: 4/2.
    assert_eq!(apply(&all, &[3, 0], &[0, 0, 2], &LOGITS), [-0.25, -1.0, -0.75, 2.0]);
    // The last two tokens: one 0 and one 2.
    let windowed = all.clone().with_penalty_window(2);
    assert_eq!(apply(&windowed, &[3, 0], &[0, 0, 2], &LOGITS), [0.25, -1.0, -0.75, 4.0]);
    // The last four: of the prompt its last token, which is a 0 too.
    let windowed = all.with_penalty_window(4);
    assert_eq!(apply(&windowed, &[3, 0], &[0, 0, 2], &LOGITS), [-0.25, -1.0, -0.75, 4.0]);
}

#[test]
fn neutral_ones_do_nothing() {
    let neutral = SamplingParams::new()
        .with_repetition_penalty(1.0)
        .with_frequency_penalty(0.0)
        .with_presence_penalty(0.0)
        .with_penalty_window(3);
    assert!(Penalties::new(&neutral).is_none());
    assert!(Penalties::new(&SamplingParams::new()).is_none());
}

#[test]
fn what_is_forbidden_stays_so_and_nothing_else_becomes_it() {
    let params = SamplingParams::new().with_repetition_penalty(1e30).with_frequency_penalty(2.0);
    let logits = [f32::NEG_INFINITY, -1e30, f32::MIN, 1.0];
    let found = apply(&params, &[], &[0, 1, 2, 2, 99], &logits);
    assert_eq!(found, [f32::NEG_INFINITY, f32::MIN, f32::MIN, 1.0]);
    // What cannot be ranked is not hidden either.
    assert!(apply(&params, &[0], &[], &[f32::NAN])[0].is_nan());
    assert_eq!(apply(&params, &[0], &[], &[f32::INFINITY]), [f32::INFINITY]);
}

#[test]
fn biases_are_added() {
    let mut logits = [1.0, f32::NEG_INFINITY, -3.0];
    add_bias(&BTreeMap::from([(0, 2.5), (1, 100.0), (2, -100.0)]), &mut logits).unwrap();
    assert_eq!(logits, [3.5, f32::NEG_INFINITY, -103.0]);
    let error = add_bias(&BTreeMap::from([(3, 1.0)]), &mut logits).unwrap_err();
    assert!(matches!(error, Error::Request(RequestError::TokenOutOfRange { token: 3, vocab_size: 3 })));
}
