//! Hostile `tokenizer.json` files: typed errors that name what is wrong, no panic, no endless work.

use candlewick::{EncodeOptions, Error, Tokenizer, TokenizerError};
use serde_json::{json, Value};

use super::files::{byte_level, metadata, sentencepiece, specials};

fn read(json: &str) -> Result<Tokenizer, Error> {
    Tokenizer::from_metadata(&metadata(json))
}

fn changed(path: &str, value: Value) -> Value {
    let mut json = byte_level("qwen2", specials(false));
    let (parent, key) = path.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[key] = value;
    json
}

#[track_caller]
fn check(path: &str, value: Value, words: &[&str]) {
    let error = read(&changed(path, value).to_string()).expect_err(path);
    let message = error.to_string();
    assert!(matches!(error, Error::Tokenizer(_)), "{message}");
    assert!(message.len() < 600, "{message}");
    for word in words {
        assert!(message.contains(word), "{path}: {message:?} lacks {word:?}");
    }
}

#[test]
fn what_is_no_tokenizer_is_an_error() {
    for (text, word) in [("", "line 1"), ("[]", "an object"), ("{", "line 1"), ("{}", "model"), ("nul", "line 1")] {
        let message = read(text).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
    let deep = format!("{{\"model\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(read(&deep).unwrap_err().to_string().contains("recursion limit"));
}

#[test]
fn wrong_fields_are_named() {
    check("/model", json!(3), &["`model`", "3"]);
    check("/model/vocab", json!(null), &["model.vocab"]);
    check("/model/vocab/the", json!(-1), &["model.vocab", "the", "-1"]);
    check("/model/vocab/the", json!(1.5), &["model.vocab", "1.5"]);
    check("/model/vocab/the", json!(4_294_967_295u32), &["4294967295"]);
    check("/model/vocab/the", json!(u64::MAX), &["18446744073709551615"]);
    check("/model/vocab/the", json!(5000), &["5000", "largest"]);
    check("/model/vocab/the", json!(3), &["one token per id"]);
    check("/model/merges", json!(7), &["model.merges"]);
    check("/model/merges", json!(["ab"]), &["model.merges", "ab"]);
    check("/model/merges", json!([["a", "b", "c"]]), &["model.merges"]);
    check("/model/type", json!("Quantum"), &["model", "Quantum"]);
    check("/model/dropout", json!(0.1), &["dropout"]);
    check("/model/continuing_subword_prefix", json!("é"), &["continuing_subword_prefix"]);
    check("/model/end_of_word_suffix", json!("</w>"), &["end_of_word_suffix"]);
    check("/model/unk_token", json!(1), &["unk_token"]);
    check("/added_tokens", json!(1), &["added_tokens"]);
    check("/added_tokens", json!([{"id": 300}]), &["added_tokens", "content"]);
    check("/added_tokens", json!([{"content": "x", "id": 4_294_967_296u64}]), &["added_tokens", "x"]);
    check("/added_tokens", json!([{"content": "x", "id": 4_000_000_000u64}]), &["4000000000"]);
    check("/added_tokens", json!([{"content": "the", "id": 300}]), &["the", "300"]);
    check("/added_tokens", json!([{"content": "xx", "id": 3}]), &["one token per id"]);
    check("/added_tokens", json!([{"content": "x", "id": 300, "special": 1}]), &["special"]);
    check("/post_processor", json!({"type": "Other"}), &["post_processor", "Other"]);
    check("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": ""}), &["Precompiled"]);
    check("/normalizer", json!({"type": "Unheard"}), &["normalizer"]);
    check("/pre_tokenizer", json!({"type": "Unheard"}), &["pre_tokenizer"]);
    check("/decoder", json!({"type": "Unheard"}), &["decoder"]);
    check(
        "/pre_tokenizer",
        json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
        &["pre_tokenizer"],
    );
}

#[test]
fn templates_that_point_nowhere_are_errors() {
    let template = |single: Value, ids: Value| {
        json!({"type": "TemplateProcessing", "single": single, "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": ids, "tokens": ["<s>"]}}})
    };
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let special = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    check("/post_processor", template(json!([special("<x>"), text]), json!([300])), &["post_processor"]);
    check("/post_processor", template(json!([special("<s>")]), json!([300])), &["sequence A once"]);
    check("/post_processor", template(json!([text, text]), json!([300])), &["sequence A once"]);
    check("/post_processor", template(json!([special("<s>"), text]), json!([900_000])), &["900000"]);
    check(
        "/post_processor",
        template(json!([{"Sequence": {"id": "B", "type_id": 0}}]), json!([300])),
        &["post_processor"],
    );
}

#[test]
fn text_cannot_be_made_to_explode() {
    let replace = |content: String| json!({"type": "Replace", "pattern": {"String": "a"}, "content": content});
    check("/normalizer", replace("a".repeat(1000)), &["growth"]);
    let many: Vec<Value> = (0..12).map(|_| replace("aa".to_string())).collect();
    check("/normalizer", json!({"type": "Sequence", "normalizers": many}), &["growth"]);
    let mut nested = json!({"type": "Lowercase"});
    for _ in 0..20 {
        nested = json!({"type": "Sequence", "normalizers": [nested]});
    }
    check("/normalizer", nested, &["deeper"]);
}

#[test]
fn patterns_that_backtrack_without_end_stop() {
    // The look-ahead keeps it from the linear engine.
    let pattern =
        json!({"type": "Split", "pattern": {"Regex": "(x+x+)+y(?!z)"}, "behavior": "Isolated", "invert": false});
    let tokenizer = read(&changed("/pre_tokenizer", pattern).to_string()).unwrap();
    let start = std::time::Instant::now();
    let ids = tokenizer.encode(&"x".repeat(20_000), EncodeOptions::PLAIN).unwrap();
    assert_eq!(ids.len(), 20_000);
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
}

#[test]
fn panics_of_the_crate_are_errors() {
    let zero = json!({"type": "FixedLength", "length": 0});
    let tokenizer = read(&changed("/pre_tokenizer", zero).to_string()).unwrap();
    let error = tokenizer.encode("the", EncodeOptions::PLAIN).unwrap_err();
    assert!(matches!(error, Error::Tokenizer(TokenizerError::Component { part: "pre_tokenizer", .. })), "{error}");
    // Longer than every entry: the crate's own reader of merges would panic.
    let tokenizer = read(&changed("/model/merges", json!([["padding 299", "padding 298"]])).to_string()).unwrap();
    assert_eq!(tokenizer.encode("a", EncodeOptions::PLAIN).unwrap().len(), 1);
    let mut json = sentencepiece("llama2", specials(false));
    json["decoder"] = json!({"type": "Strip", "content": " ", "start": 0, "stop": 9});
    let tokenizer = read(&json.to_string()).unwrap();
    let ids = tokenizer.encode("the", EncodeOptions::PLAIN).unwrap();
    assert!(tokenizer.decode(&ids, true).contains("the"));
}

#[test]
fn a_unigram_entry_that_would_exhaust_the_stack_is_refused() {
    let vocab = json!([["<unk>", 0.0], ["x".repeat(1_000_000), -1.0]]);
    let json = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null, "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}});
    assert!(read(&json.to_string()).unwrap_err().to_string().contains("1000000 bytes"));
}

#[test]
fn control_tokens_do_not_arise_from_text() {
    // The model itself knows the text of the end token, as unigram vocabularies do.
    let vocab = json!([["<unk>", 0.0], ["</s>", 0.0], ["<", -9.0], ["/", -9.0], ["s", -9.0], [">", -9.0], ["a", -1.0]]);
    let added = json!([{"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}]);
    let json = json!({"version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null, "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}});
    let tokenizer = read(&json.to_string()).unwrap();
    assert_eq!(tokenizer.encode("a</s>a", EncodeOptions::PLAIN).unwrap(), [6, 2, 3, 4, 5, 6]);
    assert_eq!(tokenizer.encode("a</s>a", EncodeOptions::MARKUP).unwrap(), [6, 1, 6]);
    // And a byte-pair model whose merges make it.
    let merges = json!([["<", "/"], ["</", "s"], ["</s", ">"]]);
    let mut json = changed("/model/merges", merges);
    json["model"]["ignore_merges"] = json!(true);
    for (id, text) in [(296, "</"), (297, "</s")] {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        vocab.remove(&format!("padding {id}"));
        vocab.insert(text.to_string(), json!(id));
    }
    json["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
    let tokenizer = read(&json.to_string()).unwrap();
    let ids = tokenizer.encode("</s>", EncodeOptions::PLAIN).unwrap();
    assert_eq!(ids[0], 297);
    assert_eq!(ids.len(), 2);
}

#[test]
fn parts_of_many_steps_and_long_added_tokens_are_refused() {
    let step = json!({"type": "Split", "pattern": {"String": "x"}, "behavior": "Isolated", "invert": false});
    let many = json!({"type": "Sequence", "pretokenizers": vec![step; 50_000]});
    check("/pre_tokenizer", many, &["pre_tokenizer", "few"]);
    let long: String = (0..20_000).map(|i| char::from_u32(0x100 + i % 0x400).unwrap()).collect();
    check("/added_tokens", json!([{"content": long, "id": 3}]), &["added_tokens", "4096"]);
}

#[test]
fn padding_with_an_ordinary_token_leaves_it_ordinary() {
    let json = byte_level("qwen2", specials(false)).to_string();
    let plain = read(&json).unwrap();
    let mut padded = metadata(&json);
    padded.insert("candlewick.tokenizer.pad_token", candlewick::source::Value::String("!".to_string()));
    let padded = Tokenizer::from_metadata(&padded).unwrap();
    let expected = plain.encode("Hi! Hi!", EncodeOptions::PLAIN).unwrap();
    assert_eq!(padded.encode("Hi! Hi!", EncodeOptions::PLAIN).unwrap(), expected);
    assert!(padded.token_id("!").is_some_and(|id| !padded.is_control(id) && expected.contains(&id)));
}
