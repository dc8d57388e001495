//! Tokenizers from hostile metadata: they are refused, or encode any text into their own ids and decode any ids.

use std::sync::Arc;

use candlewick::source::{Array, Metadata, Value};
use candlewick::tokenizer::EncodeOptions;
use candlewick::{Error, TokenId, Tokenizer, TokenizerError};

use super::{check_error, Input};

const MODELS: [&str; 4] = ["gpt2", "llama", "gemma4", "bert"];

/// Splitting rules of different shape.
const PRES: [&str; 16] = [
    "default",
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "deepseek-llm",
    "deepseek-v3",
    "gpt-4o",
    "tekken",
    "falcon",
    "starcoder",
    "bloom",
    "kimi-k2",
    "viking",
    "chatglm-bpe",
    "youtu",
    "nonsense",
];

const ROLES: [&str; 6] = ["bos", "eos", "unknown", "padding", "eot", "eom"];

const FLAGS: [&str; 3] = ["add_bos_token", "add_eos_token", "add_space_prefix"];

/// `data` is taken apart into a vocabulary, and what is left is the text. Whether there is a
/// tokenizer.
pub(crate) fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let model = MODELS[input.below(MODELS.len())];
    let pre = PRES[input.below(PRES.len())];
    let is_complete = input.flag();
    let metadata = metadata(&mut input, model, pre, is_complete);
    let text = input.rest();
    let tokenizer = match Tokenizer::from_metadata(&metadata) {
        Ok(tokenizer) => Arc::new(tokenizer),
        Err(error) => {
            check_error(&error);
            return false;
        }
    };
    for options in [EncodeOptions::PLAIN, EncodeOptions::DOCUMENT, EncodeOptions::MARKUP] {
        let ids = match tokenizer.encode(&text, options) {
            Ok(ids) => ids,
            Err(error) => {
                let is_typed = matches!(error, Error::Tokenizer(TokenizerError::Unencodable { .. }));
                assert!(is_typed && !(is_complete && model != "gemma4"), "{error}");
                check_error(&error);
                continue;
            }
        };
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        check_stream(&tokenizer, &ids);
        // Every byte has its own token, so that nothing of a text is lost.
        // (A user-defined token is read as it is written, also where merges lead to it.)
        let is_typed = metadata.value("tokenizer.ggml.token_type").is_some();
        if is_complete && model == "gpt2" && options == EncodeOptions::PLAIN && !is_typed {
            assert_eq!(tokenizer.decode(&ids, false), text);
        }
        if is_complete && model == "llama" && options == EncodeOptions::DOCUMENT && is_ordinary(&metadata, &text) {
            assert_eq!(tokenizer.decode_document(&ids), text);
        }
        if options == EncodeOptions::PLAIN {
            assert!(!ids.iter().any(|&id| tokenizer.is_control(id) && is_complete), "text became a control token");
        }
    }
    match tokenizer.encode_guarded(&text, '\u{FDD0}') {
        Ok(ids) => assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size())),
        Err(error) => check_error(&error),
    }
    // Ids that no text gives, and ids outside the vocabulary.
    let ids: Vec<TokenId> = data.iter().map(|&byte| TokenId::from(byte) * 3).chain([u32::MAX]).collect();
    check_stream(&tokenizer, &ids);
    true
}

/// Whether nothing but the space before a text is added to it: each user-defined token brings one more, other tokens may
/// be said to begin and end a text, and the mark of a space reads as one.
fn is_ordinary(metadata: &Metadata, text: &str) -> bool {
    let is_set = |key: &str| metadata.value(&format!("tokenizer.ggml.{key}_token_id")).is_some();
    // Without a token of its own, the mark of a space is written as bytes, and read as itself.
    let has_mark =
        metadata.strings("tokenizer.ggml.tokens").is_ok_and(|t| t.is_some_and(|t| t.iter().any(|t| t == "\u{2581}")));
    let types = metadata.integers("tokenizer.ggml.token_type").ok().flatten().unwrap_or_default();
    let is_plain = types.len() > 259 && types[259..].iter().all(|&kind| kind == 1);
    is_plain && !is_set("bos") && !is_set("eos") && !is_set("unknown") && !text.contains('\u{2581}') && has_mark
}

/// Streamed text joined is the decoded text.
fn check_stream(tokenizer: &Arc<Tokenizer>, ids: &[TokenId]) {
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    for &id in ids {
        text += &stream.push(id);
        assert!(stream.pending_bytes() < 4);
    }
    text += &stream.finish();
    assert_eq!(text, tokenizer.decode(ids, true));
    tokenizer.decode_document(ids);
}

fn metadata(input: &mut Input<'_>, model: &str, pre: &str, is_complete: bool) -> Metadata {
    let mut metadata = Metadata::new("fuzzed");
    let mut set = |key: &str, value: Value| drop(metadata.insert(format!("tokenizer.ggml.{key}"), value));
    set("model", model.into());
    set("pre", pre.into());
    let mut tokens = Vec::new();
    if is_complete {
        if model == "llama" {
            tokens.extend(["<unk>", "<s>", "</s>"].map(str::to_string));
        }
        let byte = |byte: u8| if model == "llama" { format!("<0x{byte:02X}>") } else { letter(byte).to_string() };
        tokens.extend((0..=255).map(byte));
    }
    let base = tokens.len();
    tokens.extend((0..input.below(40)).map(|_| input.text(8)));
    let added = tokens.len() - base;
    // One entry too few or too many in a while.
    let skewed =
        |input: &mut Input<'_>| (added + usize::from(input.byte() == 7)).saturating_sub(usize::from(input.byte() == 9));
    if input.flag() {
        let of_base = |at: usize| match (model, at) {
            ("llama", 0) => 2,
            ("llama", 1 | 2) => 3,
            ("llama", _) => 6,
            _ => 1,
        };
        let count = skewed(input);
        let types = (0..base).map(of_base).chain((0..count).map(|_| input.below(8) as i32));
        set("token_type", Value::from(types.collect::<Vec<i32>>()));
    }
    if model == "llama" || input.flag() {
        let count = skewed(input);
        let mut score = || match input.byte() {
            255 => f32::NAN,
            254 => f32::INFINITY,
            byte => f32::from(byte as i8),
        };
        let scores = std::iter::repeat_n(0.0, base).chain((0..count).map(|_| score()));
        set("scores", Value::from(scores.collect::<Vec<f32>>()));
    }
    let merge = |input: &mut Input<'_>| {
        let pick = |at: usize| tokens.get(at % tokens.len().max(1)).cloned().unwrap_or_default();
        match input.byte() {
            0 => input.text(9),
            _ => {
                let (left, right) = (usize::from(input.byte()) * 2, usize::from(input.byte()) * 2 + 1);
                format!("{} {}", pick(left), pick(right))
            }
        }
    };
    let merges: Vec<String> = (0..input.below(40)).map(|_| merge(input)).collect();
    set("merges", Value::from(merges));
    for role in ROLES {
        match input.byte() {
            0 => {}
            255 => set(&format!("{role}_token_id"), Value::from(-1i32)),
            byte => set(&format!("{role}_token_id"), Value::from(u32::from(byte) + base as u32 - u32::from(base > 0))),
        }
    }
    for flag in FLAGS {
        match input.byte() {
            0 => {}
            byte => set(flag, Value::from(byte & 1 == 1)),
        }
    }
    // A key of a wrong type.
    const KEYS: [&str; 5] = ["tokens", "token_type", "scores", "merges", "pre"];
    set("tokens", Value::from(tokens));
    if let Some(key) = KEYS.get(usize::from(input.byte()).wrapping_sub(250)) {
        set(key, Value::Array(Array::Bool(vec![true])));
    }
    metadata
}

/// The character that stands for a byte in byte-level vocabularies: printable ones for themselves, the others above.
fn letter(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match is_printable(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|&byte| !is_printable(byte)).count() as u32;
            char::from_u32(256 + before).unwrap_or('?')
        }
    }
}
