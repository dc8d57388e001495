//! Tests of the way from breaker texts to token ids.

use super::*;
use crate::error::RequestError;
use crate::Error;

const VOCABULARY: [&str; 10] = ["a", "b", "\n", ":\n", "ab", "x:", "c", "bc", "é", "x a"];

/// One token per character that is in the vocabulary.
fn encode(text: &str) -> Result<Vec<TokenId>> {
    let id = |c: char| VOCABULARY.iter().position(|token| *token == c.to_string()).map(|at| at as TokenId);
    text.chars().map(id).collect::<Option<_>>().ok_or_else(|| RequestError::EmptyPrompt.into())
}

fn resolve(params: SamplingParams) -> Result<SamplingParams> {
    let mut params = params;
    let bytes_of = |token| VOCABULARY.get(token as usize).map(|text| Cow::Borrowed(text.as_bytes()));
    params.resolve_dry_breakers(VOCABULARY.len(), bytes_of, encode)?;
    Ok(params)
}

fn ids(texts: &[&str]) -> Vec<Vec<TokenId>> {
    let texts = texts.iter().map(|text| text.to_string()).collect();
    let params = resolve(SamplingParams::new().with_dry_multiplier(0.8).with_dry_breakers(texts)).unwrap();
    assert_eq!(params.dry_breakers, None);
    params.validate().unwrap();
    params.dry_breaker_ids.unwrap()
}

#[test]
fn a_text_becomes_every_token_that_has_it_and_every_way_to_spell_it() {
    assert_eq!(ids(&["\n"]), [[2], [3]]);
    assert_eq!(ids(&["a"]), [[0], [4], [9]]);
    // "ab" is a token; "a" and "x a" may be followed by "b".
    assert_eq!(ids(&["ab"]), [vec![0, 1], vec![4], vec![9, 1]]);
    // Overlaps of one and of two characters: "b" + "c" is no beginning of "abc", "ab" + "c" is.
    assert_eq!(ids(&["abc"]), [vec![0, 1, 6], vec![4, 6], vec![9, 1, 6]]);
    // A beginning is made of whole characters: "é" is two bytes.
    assert_eq!(ids(&["éa"]), [vec![8, 0]]);
    assert_eq!(ids(&[]), Vec::<Vec<TokenId>>::new());
    assert_eq!(ids(&["\n", "\n"]), [[2], [3]]);
}

#[test]
fn not_set_means_the_usual_ones_and_only_with_dry() {
    let with = resolve(SamplingParams::new().with_dry_multiplier(0.8)).unwrap();
    // Newline and colon; the vocabulary has neither quote nor asterisk.
    assert_eq!(with.dry_breaker_ids, Some(vec![vec![2], vec![3], vec![5]]));
    for params in [SamplingParams::new(), SamplingParams::new().with_dry_multiplier(0.0)] {
        assert_eq!(resolve(params.clone()).unwrap(), params);
    }
    let given = SamplingParams::new().with_dry_multiplier(0.8).with_dry_breaker_ids(vec![vec![7]]);
    assert_eq!(resolve(given.clone()).unwrap(), given);
}

#[test]
fn errors_come_through() {
    let breakers = |texts: Vec<String>| SamplingParams::new().with_dry_multiplier(0.8).with_dry_breakers(texts);
    let error = resolve(breakers(vec!["a?".to_string()])).unwrap_err();
    assert!(matches!(error, Error::Request(RequestError::EmptyPrompt)));
    assert!(resolve(breakers(vec!["z".repeat(65)])).is_err());
    assert!(resolve(breakers(vec!["z".to_string(); 33])).is_err());
}
