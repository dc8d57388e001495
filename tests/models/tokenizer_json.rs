//! Real vocabularies as `tokenizer.json`: our reading of the GGUF file, our reading of the JSON and the `tokenizers`
//! crate give the same ids.

use std::str::FromStr;
use std::time::{Duration, Instant};

use candlewick::source::Metadata;
use candlewick::{EncodeOptions, Tokenizer, WeightSource};
use proptest::prelude::*;
use serde_json::{json, Map, Value};

use crate::files::Model;

const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

struct Three {
    gguf: Tokenizer,
    json: Tokenizer,
    theirs: tokenizers::Tokenizer,
}

/// The vocabulary of a GGUF file in the other format.
fn convert(metadata: &Metadata, mut parts: Value) -> Value {
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let types = metadata.integers("tokenizer.ggml.token_type").unwrap().unwrap();
    let (mut vocab, mut added) = (Map::new(), Vec::new());
    for (id, (text, kind)) in tokens.iter().zip(&types).enumerate() {
        if *kind == 5 {
            continue;
        }
        vocab.insert(text.clone(), json!(id));
        if matches!(kind, 2..=4) {
            added.push(json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind != 4}));
        }
    }
    let merges = match metadata.strings("tokenizer.ggml.merges").unwrap() {
        Some(merges) => json!(merges),
        None => json!(merges_of_scores(metadata, tokens, &types)),
    };
    parts["version"] = json!("1.0");
    parts["added_tokens"] = json!(added);
    parts["model"]["type"] = json!("BPE");
    parts["model"]["vocab"] = Value::Object(vocab);
    parts["model"]["merges"] = merges;
    parts
}

/// Every way to join two pieces to a third, the best piece first.
fn merges_of_scores(metadata: &Metadata, tokens: &[String], types: &[i64]) -> Vec<[String; 2]> {
    let scores = metadata.floats("tokenizer.ggml.scores").unwrap().unwrap();
    let ids: std::collections::HashMap<&str, usize> =
        tokens.iter().enumerate().filter(|&(id, _)| types[id] == 1).map(|(id, text)| (text.as_str(), id)).collect();
    let mut merges = Vec::new();
    for (text, &id) in &ids {
        for (at, _) in text.char_indices().skip(1) {
            if let (Some(left), Some(right)) = (ids.get(&text[..at]), ids.get(&text[at..])) {
                merges.push((-scores[id], *left, *right));
            }
        }
    }
    merges.sort_by(|a, b| a.partial_cmp(b).unwrap());
    merges.into_iter().map(|(_, left, right)| [tokens[left].clone(), tokens[right].clone()]).collect()
}

fn three(name: &str) -> Option<Three> {
    let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": regex});
    let split = json!({"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": false});
    let sequence = |first: Value, last: Value| json!({"type": "Sequence", "pretokenizers": [first, last]});
    let byte_level = |pre: Value, normalizer: Value| json!({"normalizer": normalizer, "pre_tokenizer": pre, "decoder": bytes(true), "model": {}});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let mark = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let parts = match name {
        "smollm2-135m" => byte_level(sequence(digits, bytes(true)), Value::Null),
        "qwen2.5-coder-0.5b" => byte_level(sequence(split, bytes(false)), json!({"type": "NFC"})),
        "gemma3-270m" => json!({
            "normalizer": mark(" ", "▁"),
            "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
            "decoder": {"type": "Sequence", "decoders": [mark("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"byte_fallback": true, "fuse_unk": true, "unk_token": "<unk>"}
        }),
        other => panic!("{other}"),
    };
    let model = Model::find(name)?;
    let source = model.source();
    let text = convert(source.metadata(), parts).to_string();
    let mut metadata = Metadata::new(name);
    metadata.insert("tokenizer.huggingface.json", text.as_str().into());
    let start = Instant::now();
    let json = Tokenizer::from_metadata(&metadata).unwrap();
    println!("{name}: {} MB of JSON read in {:.2?}", text.len() / 1_000_000, start.elapsed());
    let gguf = Tokenizer::from_metadata(source.metadata()).unwrap();
    Some(Three { gguf, json, theirs: tokenizers::Tokenizer::from_str(&text).unwrap() })
}

fn data(file: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

impl Three {
    #[track_caller]
    fn check(&self, text: &str) {
        let found = self.json.encode(text, EncodeOptions::MARKUP).unwrap();
        let theirs = self.theirs.encode(text, false).unwrap();
        // Bytes without a token: the crate loses them, GGUF's rules do not apply to it either.
        assert_eq!(found, theirs.get_ids(), "{text:?}");
        let normal = self.theirs.get_normalizer().map_or(text.to_string(), |normalizer| {
            let mut string = tokenizers::NormalizedString::from(text);
            tokenizers::Normalizer::normalize(normalizer, &mut string).unwrap();
            string.get().replace('▁', " ")
        });
        if normal == text {
            assert_eq!(self.gguf.encode(text, EncodeOptions::MARKUP).unwrap(), found, "GGUF: {text:?}");
        }
        assert_eq!(self.json.decode(&found, false), normal, "{text:?}");
        let plain = self.json.encode(text, EncodeOptions::PLAIN).unwrap();
        assert!(plain.iter().all(|&id| !self.json.is_control(id)), "{text:?}");
        assert_eq!(self.json.decode(&plain, true), normal, "{text:?}");
    }

    fn run(&self) {
        for case in data("tokenizer/qwen2.inp").split("\n__ggml_vocab_test__\n") {
            self.check(case);
        }
        let wiki = data("wiki.test.excerpt.txt");
        self.check(&wiki);
        let texts = prop::collection::vec(
            prop_oneof![
                prop::sample::select(vec![
                    " ",
                    "  ",
                    "\n",
                    "\t",
                    "the",
                    "don't",
                    "12",
                    "<|im_end|>",
                    "<|endoftext|>",
                    "</s>",
                    "<",
                    "|>",
                    "é",
                    "東",
                    "🚀",
                    "def f():",
                    "'S",
                    "e\u{301}",
                    "\u{a0}",
                    "\r\n",
                ])
                .prop_map(str::to_string),
                "[a-zA-Zа-я0-9 ]{0,6}",
                "\\PC{0,3}",
            ],
            0..12,
        );
        let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
        let rng = proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha);
        proptest::test_runner::TestRunner::new_with_rng(config, rng)
            .run(&texts, |parts| {
                self.check(&parts.concat());
                Ok(())
            })
            .unwrap();
        self.is_fast(&wiki);
    }

    /// A megabyte below two seconds, and no character whose repetition costs more than its size.
    fn is_fast(&self, wiki: &str) {
        let time_of = |tokenizer: &Tokenizer, text: &str| {
            let best = |_| {
                let start = Instant::now();
                tokenizer.encode(text, EncodeOptions::PLAIN).unwrap();
                start.elapsed()
            };
            (0..3).map(best).min().unwrap()
        };
        let time = |text: &str| time_of(&self.json, text);
        let text = wiki.repeat(14);
        assert!(text.len() > 1_000_000);
        let megabyte = time(&text);
        println!("{} bytes in {megabyte:.2?}; from GGUF {:.2?}", text.len(), time_of(&self.gguf, &text));
        assert!(megabyte < Duration::from_secs(2), "{megabyte:?}");
        for character in ["a", " ", "\n", "7", "é", "😀", "<", "▁"] {
            let repeat = |bytes: usize| character.repeat(bytes / character.len());
            let (short, long) = (time(&repeat(20_000)), time(&repeat(200_000)));
            println!("200 kB of {character:?} in {long:.2?}, 20 kB in {short:.2?}");
            assert!(long < short * 40 + Duration::from_millis(500), "{character:?}: {short:?}, {long:?}");
            assert!(long < Duration::from_secs(2), "{character:?}: {long:?}");
        }
    }
}

#[test]
fn smollm2_is_the_same_in_both_formats() {
    three("smollm2-135m").iter().for_each(Three::run);
}

#[test]
fn qwen2_is_the_same_in_both_formats() {
    three("qwen2.5-coder-0.5b").iter().for_each(Three::run);
}

#[test]
fn gemma3_is_the_same_in_both_formats() {
    three("gemma3-270m").iter().for_each(Three::run);
}
