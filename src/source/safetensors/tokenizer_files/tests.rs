//! The files of a directory, well-formed and malformed.

use super::*;

/// A directory of one test's own that goes away with the value.
struct Directory(PathBuf);

impl Directory {
    fn new(files: &[(&str, &[u8])]) -> Directory {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("candlewick-files-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        for (name, bytes) in files {
            std::fs::write(path.join(name), bytes).unwrap();
        }
        Directory(path)
    }

    fn read(&self) -> Result<Metadata> {
        let mut metadata = Metadata::new("test");
        read(&self.0, &mut metadata).map(|()| metadata)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn of(files: &[(&str, &str)]) -> Result<Metadata> {
    let files: Vec<(&str, &[u8])> = files.iter().map(|&(name, text)| (name, text.as_bytes())).collect();
    Directory::new(&files).read()
}

#[track_caller]
fn check_error(files: &[(&str, &str)], parts: &[&str]) {
    let message = of(files).expect_err("an error").to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn nested(field: u64, bytes: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn piece(text: &str, score: f32, kind: u64) -> Vec<u8> {
    let score = [varint(2 << 3 | 5), score.to_le_bytes().to_vec()].concat();
    nested(1, &[nested(1, text.as_bytes()), score, number(3, kind)].concat())
}

fn model(kind: u64, normalizer: &[u8]) -> Vec<u8> {
    let pieces = [piece("<unk>", 0.0, 2), piece("<s>", 0.0, 3), piece("</s>", 0.0, 3), piece("▁a", -1.0, 1)].concat();
    let trainer = [number(3, kind), number(40, 0), number(41, 1), number(42, 2), number(43, u64::MAX)].concat();
    [pieces, nested(2, &trainer), nested(3, normalizer)].concat()
}

#[test]
fn sentencepiece_becomes_the_keys_of_gguf() {
    let config = br#"{"add_bos_token": true, "add_eos_token": false, "bos_token": {"content": "<s>"}, "pad_token": null,
        "added_tokens_decoder": {"1": {"content": "<s>", "special": true}, "6": {"content": "<|im_end|>", "special": true}}}"#;
    let added = br#"{"<tool>": 4}"#;
    let files: [(&str, &[u8]); 3] = [
        ("tokenizer.model", &model(2, &number(3, 0))),
        ("tokenizer_config.json", config),
        ("added_tokens.json", added),
    ];
    let metadata = Directory::new(&files).read().unwrap();
    assert_eq!(metadata.string("tokenizer.ggml.model").unwrap(), Some("llama"));
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(tokens, ["<unk>", "<s>", "</s>", "▁a", "<tool>", "", "<|im_end|>"]);
    assert_eq!(metadata.integers("tokenizer.ggml.token_type").unwrap().unwrap(), [2, 3, 3, 1, 4, 5, 3]);
    let scores = metadata.floats("tokenizer.ggml.scores").unwrap().unwrap();
    assert_eq!(scores, [0.0, 0.0, 0.0, -1.0, -1000.0, -1000.0, -1000.0]);
    assert_eq!(metadata.bool("tokenizer.ggml.add_space_prefix").unwrap(), Some(false));
    assert_eq!(metadata.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
    assert_eq!(metadata.unsigned("tokenizer.ggml.bos_token_id").unwrap(), Some(1));
    assert_eq!(metadata.unsigned("tokenizer.ggml.padding_token_id").unwrap(), None);
    assert_eq!(metadata.string("candlewick.tokenizer.bos_token").unwrap(), Some("<s>"));
}

#[test]
fn stories260k_has_the_vocabulary_of_its_gguf() {
    use crate::source::{Gguf, WeightSource};
    let tokenizer = include_bytes!("../../../../tests/data/tokenizer/stories260k.model");
    let metadata = Directory::new(&[("tokenizer.model", tokenizer)]).read().unwrap();
    let gguf = Gguf::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer/stories260k-vocabulary.gguf"));
    let gguf = gguf.unwrap();
    for key in ["tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"] {
        assert_eq!(metadata.value(key), gguf.metadata().value(key), "{key}");
    }
}

#[test]
fn other_kinds_of_sentencepiece_are_refused_by_name() {
    for (kind, name) in [(1, "`unigram`"), (3, "`word`"), (4, "`char`"), (9, "type 9")] {
        let error = Directory::new(&[("tokenizer.model", &model(kind, &[]))]).read().unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("tokenizer.model"), "{error}");
    }
    let error = Directory::new(&[("tokenizer.model", &model(2, &nested(2, b"table")))]).read().unwrap_err();
    assert!(error.to_string().contains("precompiled_charsmap"), "{error}");
}

#[test]
fn damaged_sentencepiece_is_an_error_at_every_length() {
    let whole = model(2, &number(3, 1));
    let mut errors = 0;
    for len in 0..whole.len() {
        errors += usize::from(Directory::new(&[("tokenizer.model", &whole[..len])]).read().is_err());
    }
    // Cuts between fields that are not needed leave a smaller message.
    assert!(errors > whole.len() / 2, "{errors} of {}", whole.len());
    let mut bytes = whole.clone();
    for index in 0..whole.len() {
        for value in [0, 0x7f, 0x80, 0xff] {
            bytes[index] = value;
            let _ = Directory::new(&[("tokenizer.model", &bytes)]).read();
        }
        bytes[index] = whole[index];
    }
    for (bytes, reason) in [
        (vec![0xff; 11], "ten bytes"),
        (vec![0x0b], "wire type"),
        (nested(1, &nested(1, &[0xff])), "UTF-8"),
        (nested(1, &number(3, 7)), "1 to 6"),
        (Vec::new(), "no piece"),
        ([varint(1 << 3 | 2), varint(u64::MAX)].concat(), "beyond the end"),
    ] {
        let error = Directory::new(&[("tokenizer.model", &bytes)]).read().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn ids_that_end_generation_come_from_the_first_file_that_names_them() {
    let eos = |files: &[(&str, &str)]| of(files).unwrap().integers("candlewick.eos_token_ids").unwrap();
    let config = ("config.json", r#"{"eos_token_id": 2, "bos_token_id": 1}"#);
    assert_eq!(eos(&[]), None);
    assert_eq!(eos(&[config]), Some(vec![2]));
    let both = [config, ("generation_config.json", r#"{"eos_token_id": [7, 8], "pad_token_id": -1}"#)];
    assert_eq!(eos(&both), Some(vec![7, 8]));
    let metadata = of(&both).unwrap();
    assert_eq!(metadata.unsigned("tokenizer.ggml.eos_token_id").unwrap(), Some(7));
    assert_eq!(metadata.unsigned("tokenizer.ggml.bos_token_id").unwrap(), Some(1));
    assert_eq!(metadata.unsigned("tokenizer.ggml.padding_token_id").unwrap(), None);
    assert_eq!(eos(&[("config.json", r#"{"text_config": {"eos_token_id": 5}}"#)]), Some(vec![5]));
}

#[test]
fn chat_templates_are_found_in_all_places() {
    let template =
        |files: &[(&str, &str)]| of(files).unwrap().string("tokenizer.chat_template").unwrap().map(str::to_string);
    let config = ("tokenizer_config.json", r#"{"chat_template": "config"}"#);
    let json = ("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(template(&[]), None);
    assert_eq!(template(&[config]).as_deref(), Some("config"));
    assert_eq!(template(&[config, json]).as_deref(), Some("json"));
    assert_eq!(template(&[config, json, ("chat_template.jinja", "jinja")]).as_deref(), Some("jinja"));
    let named = r#"{"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}"#;
    let metadata = of(&[("tokenizer_config.json", named)]).unwrap();
    assert_eq!(metadata.string("tokenizer.chat_template").unwrap(), Some("a"));
    assert_eq!(metadata.string("tokenizer.chat_template.tool_use").unwrap(), Some("b"));
}

#[test]
fn wrong_values_name_file_and_key() {
    check_error(&[("tokenizer_config.json", r#"{"add_bos_token": 1}"#)], &["tokenizer_config.json", "add_bos_token"]);
    check_error(&[("tokenizer_config.json", r#"{"eos_token": 3}"#)], &["tokenizer_config.json", "eos_token"]);
    check_error(&[("special_tokens_map.json", r#"{"eos_token": {}}"#)], &["special_tokens_map.json", "eos_token"]);
    check_error(&[("tokenizer_config.json", r#"{"chat_template": [1]}"#)], &["chat_template", "found 1"]);
    check_error(&[("generation_config.json", r#"{"eos_token_id": "x"}"#)], &["generation_config.json", "eos_token_id"]);
    check_error(&[("config.json", r#"{"eos_token_id": [4294967296]}"#)], &["config.json", "4294967296"]);
    check_error(&[("config.json", r#"{"eos_token_id": [-2]}"#)], &["config.json", "-2"]);
    check_error(&[("config.json", "[]")], &["config.json", "expected an object"]);
    check_error(&[("config.json", "{")], &["config.json", "line 1"]);
    check_error(&[("config.json", &"[".repeat(100_000))], &["config.json", "recursion limit"]);
    let error = Directory::new(&[("chat_template.jinja", b"a\xff")]).read().unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja") && error.contains("0xFF"), "{error}");
    let error = Directory::new(&[("chat_template.jinja", &vec![b'a'; (4 << 20) + 1])]).read().unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja") && error.contains("4194304"), "{error}");
    let directory = Directory::new(&[]);
    std::fs::create_dir(directory.0.join("tokenizer.json")).unwrap();
    assert!(directory.read().unwrap_err().to_string().contains("not a regular file"));
}
