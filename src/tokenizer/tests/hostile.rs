//! Metadata that no honest writer makes: typed errors or documented tolerance, never a panic.

use super::*;
use crate::Error;

fn error(metadata: &Metadata) -> String {
    Tokenizer::from_metadata(metadata).expect_err("must be refused").to_string()
}

#[test]
fn unknown_names_are_errors_that_name_them() {
    let mut metadata = byte_level("no-such-rule", &[], &[]);
    assert!(error(&metadata).contains("no-such-rule"));
    metadata.insert("tokenizer.ggml.model", text("bert"));
    let found = Tokenizer::from_metadata(&metadata).unwrap_err();
    assert!(matches!(found, Error::Tokenizer(TokenizerError::UnsupportedModel { model }) if model == "bert"));
    assert!(error(&Metadata::new("empty")).contains("tokenizer.ggml.model"));
}

#[test]
fn missing_pre_means_default() {
    let mut metadata = Metadata::new("test");
    for (key, value) in byte_level("default", &["1 2"], &[]).iter().filter(|(key, _)| !key.ends_with("pre")) {
        metadata.insert(key, value.clone());
    }
    // Digits in threes: "12" merges in both groups of "123124".
    assert_eq!(plain(&tokenizer(&metadata), "123124"), [256, 51, 256, 52]);
}

#[test]
fn arrays_must_fit() {
    let mut metadata = sentencepiece(&[("a", 0.0, 1)]);
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; 3])));
    assert!(error(&metadata).contains("scores"));
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(vec![f32::NAN; 260])));
    assert!(error(&metadata).contains("finite"));
    metadata.insert("tokenizer.ggml.token_type", types(&[1; 261]));
    assert!(error(&metadata).contains("token_type"));
    metadata.insert("tokenizer.ggml.token_type", types(&[7; 260]));
    assert!(error(&metadata).contains("type 7"));
    metadata.insert("tokenizer.ggml.tokens", texts::<&str>(&[]));
    assert!(error(&metadata).contains("empty"));
    metadata.insert("tokenizer.ggml.tokens", text("a"));
    assert!(error(&metadata).contains("tokenizer.ggml.tokens"));
}

#[test]
fn merges_must_have_two_parts() {
    let mut metadata = byte_level("gpt-2", &[], &[]);
    for merge in ["", "ab", " ", "a ", "ab "] {
        metadata.insert("tokenizer.ggml.merges", texts(&["a b", merge]));
        assert!(error(&metadata).contains("merge 1"), "{merge:?}");
    }
    metadata.insert("tokenizer.ggml.merges", texts(&["x1 x2", "é ü", "a b c", "a b", "a b"]));
    assert_eq!(plain(&tokenizer(&metadata), "ab"), [97, 98]);
}

#[test]
fn ids_outside_the_vocabulary_are_ignored() {
    let mut metadata = sentencepiece(&[("a", 0.0, 1)]);
    metadata.insert("tokenizer.ggml.bos_token_id", Value::Unsigned(u64::MAX));
    metadata.insert("tokenizer.ggml.eos_token_id", Value::Signed(-1));
    metadata.insert("tokenizer.ggml.eot_token_id", Value::Unsigned(260));
    let t = tokenizer(&metadata);
    assert_eq!((t.bos(), t.eos(), t.eot()), (Some(1), Some(2), None));
    metadata.insert("tokenizer.ggml.bos_token_id", text("1"));
    assert!(error(&metadata).contains("bos_token_id"));
}

#[test]
fn doubled_and_empty_tokens() {
    let specials = [("", 3), ("", 4), ("<x>", 4), ("<x>", 3), ("", 1), ("a", 1)];
    let t = tokenizer(&byte_level("gpt-2", &[], &specials));
    assert_eq!(plain(&t, "a<x>"), [97, 258]);
    assert_eq!(t.token_id(""), None);
    assert_eq!(t.decode(&[256, 257, 261], false), "a");
}

#[test]
fn a_byte_without_a_token_is_an_error_and_never_a_control_token() {
    let mut metadata = Metadata::new("test");
    metadata.insert("tokenizer.ggml.model", text("gpt2"));
    metadata.insert("tokenizer.ggml.pre", text("gpt-2"));
    metadata.insert("tokenizer.ggml.tokens", texts(&["a", "<|endoftext|>", "<unk>"]));
    metadata.insert("tokenizer.ggml.token_type", types(&[1, 3, 2]));
    metadata.insert("tokenizer.ggml.merges", texts::<&str>(&[]));
    metadata.insert("tokenizer.ggml.unknown_token_id", Value::Unsigned(1));
    let found = tokenizer(&metadata).encode("ab", EncodeOptions::PLAIN).unwrap_err();
    assert!(matches!(found, Error::Tokenizer(TokenizerError::Unencodable { byte: b'b', .. })));
    metadata.insert("tokenizer.ggml.unknown_token_id", Value::Unsigned(2));
    assert_eq!(plain(&tokenizer(&metadata), "ab"), [0, 2]);
}

#[test]
fn many_special_tokens_over_long_text() {
    let names: Vec<String> = (1..400).map(|length| "ab".repeat(length)).collect();
    let specials: Vec<(&str, i32)> = names.iter().map(|name| (name.as_str(), 4)).collect();
    let t = tokenizer(&byte_level("gpt-2", &[], &specials));
    let start = std::time::Instant::now();
    let ids = plain(&t, &"ab".repeat(399 * 250 + 1));
    assert_eq!(ids.len(), 251);
    assert!(start.elapsed().as_secs() < 60);
}

#[test]
fn shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Tokenizer>();
    check::<Detokenizer>();
}
