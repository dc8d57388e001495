//! Tests of the room over small vocabularies made in code.

mod bpe;
mod hostile;
mod spm;

use super::*;
use crate::source::{Array, Metadata, Value};

fn text(value: &str) -> Value {
    Value::String(value.to_string())
}

fn texts<S: AsRef<str>>(values: &[S]) -> Value {
    Value::Array(Array::String(values.iter().map(|value| value.as_ref().to_string()).collect()))
}

fn types(values: &[i32]) -> Value {
    Value::Array(Array::I32(values.to_vec()))
}

/// Byte-level: ids 0–255 are the bytes, then the results of the merges, then specials with their types.
fn byte_level(pre: &str, merges: &[&str], specials: &[(&str, i32)]) -> Metadata {
    let mut tokens: Vec<String> = (0..=255).map(|byte| alphabet::character(byte).to_string()).collect();
    tokens.extend(merges.iter().map(|merge| merge.replacen(' ', "", 1)));
    let mut kinds = vec![1; tokens.len()];
    for &(special, kind) in specials {
        tokens.push(special.to_string());
        kinds.push(kind);
    }
    let mut metadata = Metadata::new("test");
    metadata.insert("tokenizer.ggml.model", text("gpt2"));
    metadata.insert("tokenizer.ggml.pre", text(pre));
    metadata.insert("tokenizer.ggml.tokens", texts(&tokens));
    metadata.insert("tokenizer.ggml.token_type", types(&kinds));
    metadata.insert("tokenizer.ggml.merges", texts(merges));
    metadata
}

/// SentencePiece: `<unk>`, `<s>`, `</s>`, 256 byte tokens (ids 3–258), then the given (text, score, type).
fn sentencepiece(tokens: &[(&str, f32, i32)]) -> Metadata {
    let mut names = vec!["<unk>".to_string(), "<s>".to_string(), "</s>".to_string()];
    let mut scores = vec![0.0; 259];
    let mut kinds = vec![2, 3, 3];
    names.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    kinds.extend([6; 256]);
    for &(name, score, kind) in tokens {
        names.push(name.to_string());
        scores.push(score);
        kinds.push(kind);
    }
    let mut metadata = Metadata::new("test");
    metadata.insert("tokenizer.ggml.model", text("llama"));
    metadata.insert("tokenizer.ggml.tokens", texts(&names));
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(scores)));
    metadata.insert("tokenizer.ggml.token_type", types(&kinds));
    metadata
}

fn tokenizer(metadata: &Metadata) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_metadata(metadata).expect("tokenizer"))
}

fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<TokenId> {
    tokenizer.encode(text, EncodeOptions::PLAIN).expect("encode")
}

fn check_round_trip(tokenizer: &Arc<Tokenizer>, text: &str) {
    let ids = plain(tokenizer, text);
    assert_eq!(tokenizer.decode_document(&ids), text);
    let whole = tokenizer.decode(&ids, true);
    let mut stream = tokenizer.stream();
    let mut joined: String = ids.iter().map(|&id| stream.push(id)).collect();
    joined += &stream.finish();
    assert_eq!(joined, whole);
}

/// 200 kB of one character and a megabyte of prose: minutes if anything were quadratic.
fn check_long_texts(tokenizer: &Arc<Tokenizer>) {
    let start = std::time::Instant::now();
    for unit in ["a", " ", "\n", "1", "é", "🚀"] {
        check_round_trip(tokenizer, &unit.repeat(200_000 / unit.len()));
    }
    check_round_trip(tokenizer, &"The abab cat's 12 naïve\n\n  lines — 大模型. ".repeat(20_000));
    assert!(start.elapsed().as_secs() < 120, "{:?}", start.elapsed());
}
