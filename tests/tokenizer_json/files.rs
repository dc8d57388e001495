//! Small `tokenizer.json` files of every shape that language models use, and of some that they do not.

use std::str::FromStr;
use std::sync::Arc;

use candlewick::source::{Metadata, Value as Meta};
use candlewick::Tokenizer;
use serde_json::{json, Value};

/// One file, read by us and by the crate.
pub(crate) struct Both {
    pub(crate) name: String,
    pub(crate) ours: Arc<Tokenizer>,
    pub(crate) theirs: tokenizers::Tokenizer,
    /// The crate's, told to leave special tokens in text alone.
    pub(crate) plain: tokenizers::Tokenizer,
    /// Whether decoded texts are compared: not where text that was cut off by the model's own rules differs.
    pub(crate) decodes_alike: bool,
    /// Whether the model itself loses text (unknown words).
    pub(crate) loses_text: bool,
    /// Whether the crate's own algorithm is slow on one endless word.
    pub(crate) is_slow: bool,
}

pub(crate) fn metadata(json: &str) -> Metadata {
    let mut metadata = Metadata::new("test");
    metadata.insert("tokenizer.huggingface.json", Meta::from(json));
    metadata
}

impl Both {
    fn new(name: &str, json: &Value) -> Both {
        let text = json.to_string();
        let theirs = tokenizers::Tokenizer::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut plain = theirs.clone();
        plain.set_encode_special_tokens(true);
        let ours = Tokenizer::from_metadata(&metadata(&text)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (decodes_alike, loses_text, is_slow) = (true, false, false);
        Both { name: name.to_string(), ours: Arc::new(ours), theirs, plain, decodes_alike, loses_text, is_slow }
    }
}

pub(crate) fn all() -> Vec<Both> {
    let mut all: Vec<Both> = ["gpt2", "smollm", "llama3", "qwen2", "whole", "contiguous"]
        .into_iter()
        .flat_map(|pre| [false, true].map(|normalized| (pre, normalized)))
        .map(|(pre, normalized)| {
            Both::new(&format!("{pre}, normalized {normalized}"), &byte_level(pre, specials(normalized)))
        })
        .collect();
    for shape in ["llama2", "first", "always", "never", "gemma"] {
        all.push(Both::new(shape, &sentencepiece(shape, specials(false))));
    }
    all.push(Both::new("no byte tokens", &without_bytes()));
    let mut prefixed = byte_level("gpt2", specials(false));
    prefixed["pre_tokenizer"]["add_prefix_space"] = json!(true);
    all.push(Both { decodes_alike: false, ..Both::new("prefix space", &prefixed) });
    let mut lower = byte_level("qwen2", specials(true));
    lower["normalizer"] = json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]});
    all.push(Both::new("lower case", &lower));
    let mut early = byte_level("gpt2", specials(false));
    early["normalizer"] = json!({"type": "ByteLevel"});
    early["pre_tokenizer"] = Value::Null;
    all.push(Both::new("bytes in the normalizer", &early));
    all.push(Both { decodes_alike: false, is_slow: true, ..Both::new("unigram", &unigram()) });
    all.push(Both { decodes_alike: false, loses_text: true, is_slow: true, ..Both::new("words", &words()) });
    all
}

/// Added tokens, ids from 300: with all flags that there are.
pub(crate) fn specials(normalized: bool) -> Vec<Value> {
    let token = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": normalized && !special, "special": special})
    };
    let mut all = vec![
        token(300, "<s>", true),
        token(301, "</s>", true),
        token(302, "<|im_start|>", true),
        token(303, "<|im_end|>", true),
        token(304, "<tool>", false),
        token(305, "word", false),
        token(306, "<strip>", true),
        token(307, "<to", false),
    ];
    all[5]["single_word"] = json!(true);
    all[6]["lstrip"] = json!(true);
    all[6]["rstrip"] = json!(true);
    all
}

const MERGES: [&str; 16] = [
    "t h",
    "th e",
    "Ġ the",
    "h a",
    "ha t",
    "Ġ hat",
    "i n",
    "Ġ in",
    "e r",
    "Ġ Ġ",
    "ĠĠ ĠĠ",
    "Ċ Ċ",
    "' s",
    "1 2",
    "Ã ©",
    "a a",
];

/// The byte-level alphabet.
fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let before = (0..byte).filter(|&byte| !printable(byte)).count() as u32;
    char::from_u32(if printable(byte) { byte.into() } else { 256 + before }).unwrap()
}

fn vocabulary(texts: impl IntoIterator<Item = String>) -> Value {
    let mut vocab = serde_json::Map::new();
    for text in texts {
        let id = vocab.len();
        vocab.entry(text).or_insert(json!(id));
    }
    // Added tokens begin at 300, as the crate counts.
    while vocab.len() < 300 {
        let id = vocab.len();
        vocab.insert(format!("padding {id}"), json!(id));
    }
    Value::Object(vocab)
}

fn template() -> Value {
    json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [300], "tokens": ["<s>"]}}})
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

pub(crate) fn byte_level(pre: &str, added: Vec<Value>) -> Value {
    const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let bytes =
        |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
    let pre_tokenizer = match pre {
        "gpt2" => bytes(true),
        "smollm" => sequence(vec![json!({"type": "Digits", "individual_digits": true}), bytes(true)]),
        "llama3" => sequence(vec![split(LLAMA3), bytes(false)]),
        "qwen2" => sequence(vec![split(&LLAMA3.replace("{1,3}", "")), bytes(false)]),
        "whole" => sequence(vec![split(r"[a-z]+|\s"), bytes(false)]),
        // Looks around in a way of its own: the crate has to run it.
        "contiguous" => sequence(vec![split(r"\p{L}+(?=\s)|\s+"), bytes(false)]),
        other => panic!("{other}"),
    };
    let texts = (0..=255).map(|byte| byte_char(byte).to_string());
    let merged = MERGES.iter().map(|merge| merge.replacen(' ', "", 1));
    let pairs: Vec<Value> = MERGES.iter().map(|merge| json!(merge.split(' ').collect::<Vec<_>>())).collect();
    let merges = if pre == "gpt2" { json!(MERGES) } else { json!(pairs) };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": if pre == "qwen2" { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": pre_tokenizer,
        "post_processor": if pre == "llama3" { json!({"type": "Sequence", "processors": [bytes(false), template()]}) } else { Value::Null },
        "decoder": bytes(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": pre == "llama3",
            "vocab": vocabulary(texts.chain(merged)), "merges": merges}
    })
}

pub(crate) fn sentencepiece(shape: &str, mut added: Vec<Value>) -> Value {
    added.insert(
        0,
        json!({"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true}),
    );
    let mark = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let unmark = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let bytes = json!({"type": "ByteFallback"});
    let fuse = json!({"type": "Fuse"});
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let decoders = if matches!(shape, "gemma" | "never") {
        json!([unmark, bytes, fuse])
    } else {
        json!([unmark, bytes, fuse, strip])
    };
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    let (normalizer, pre_tokenizer) = match shape {
        "llama2" => (json!({"type": "Sequence", "normalizers": [prepend, mark]}), Value::Null),
        "gemma" => (
            mark,
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}),
        ),
        "first" => (Value::Null, metaspace("first", false)),
        "always" => (Value::Null, metaspace("always", true)),
        "never" => (Value::Null, metaspace("never", true)),
        other => panic!("{other}"),
    };
    let merges = ["t h", "th e", "▁ the", "h a", "ha t", "▁ hat", "▁ ▁", "i n", "▁▁ ▁▁", "a a"];
    let characters = "▁thehatinrswod.'<>|/1é東";
    let texts = std::iter::once("<unk>".to_string())
        .chain((0..=255).map(|byte| format!("<0x{byte:02X}>")))
        .chain(characters.chars().map(String::from))
        .chain(merges.iter().map(|merge| merge.replacen(' ', "", 1)));
    json!({
        "version": "1.0", "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": template(), "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "vocab": vocabulary(texts), "merges": merges}
    })
}

/// Characters without a token become the unknown one, a run of them together.
fn without_bytes() -> Value {
    let mut json = sentencepiece("llama2", specials(false));
    json["model"]["byte_fallback"] = json!(false);
    json
}

fn unigram() -> Value {
    let mut vocab = vec![json!(["<unk>", 0.0]), json!(["</s>", 0.0]), json!(["▁the", -1.0]), json!(["▁hat", -1.5])];
    vocab.extend("▁thehatinrswod.'/1é".chars().map(|c| json!([c.to_string(), -5.0])));
    let added = vec![
        json!({"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}),
    ];
    json!({
        "version": "1.0", "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "post_processor": null,
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": vocab}
    })
}

fn words() -> Value {
    let texts = ["[UNK]", "the", "hat", "##s", "##at", "h", "a", ".", "in", "is"];
    let vocab: serde_json::Map<String, Value> =
        texts.iter().enumerate().map(|(id, text)| (text.to_string(), json!(id))).collect();
    json!({
        "version": "1.0", "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab}
    })
}
