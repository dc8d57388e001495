//! Tokenizers from `tokenizer.json`, against the `tokenizers` crate, on files made in code.

mod files;
mod malformed;

use std::sync::Arc;

use candlewick::{EncodeOptions, Tokenizer};
use files::{specials, Both};
use proptest::prelude::*;

pub(crate) const TEXTS: [&str; 26] = [
    "",
    " ",
    "a",
    "Hello world",
    "  Hello   world  ",
    "The cat's hat isn't in the tin.\n\n  Ends here\t\t\n",
    "a\u{a0}b\u{3000}c",
    "naïve café e\u{301}cole",
    "大模型 東京 한국어 ไทย",
    "🚀🚀 👩‍👩‍👧",
    "1234567 12 3",
    "\r\n\r\n x",
    "<s>",
    "</s>",
    "<s>the end</s>",
    "the<s> the </s>  the",
    "<|im_start|>user\nthe hat<|im_end|>\n",
    "<tool>the</tool>",
    "xx <tool> <tool>",
    "word wordword aword word",
    "<strip>  the  <strip>  <strip>",
    "▁the▁▁hat",
    "<0x41><unk>",
    "\u{0}\u{1}\u{7f}",
    "'S 'll 'VE don't",
    "     indented\n        more",
];

fn options(add_special: bool, parse_special: bool) -> EncodeOptions {
    let mut options = EncodeOptions::PLAIN;
    options.add_special = add_special;
    options.parse_special = parse_special;
    options
}

impl Both {
    /// Ids equal the crate's, with and without the tokens around a document, and with specials kept as text.
    #[track_caller]
    pub(crate) fn check(&self, text: &str) {
        let Both { ours, theirs, plain, .. } = self;
        let name = &self.name;
        let ids = ours.encode(text, options(false, true)).unwrap();
        assert_eq!(ids, theirs.encode(text, false).unwrap().get_ids(), "{name}: {text:?}");
        let document = ours.encode(text, options(true, true)).unwrap();
        let expected = theirs.encode(text, true).unwrap().get_ids().to_vec();
        // A BOS that is there is not doubled; the crate doubles it.
        let doubled = document.len() + 1 == expected.len() && expected[0] == expected[1];
        assert_eq!(document, expected[usize::from(doubled)..], "{name}: {text:?}");
        if doubled {
            assert_eq!(ids.first(), ours.bos().as_ref(), "{name}: {text:?}");
        }
        let kept = ours.encode(text, EncodeOptions::PLAIN).unwrap();
        // The crate lets the unknown token's own text become it.
        let is_known = !self.is_slow || !text.contains("<unk>");
        if is_known {
            assert_eq!(kept, plain.encode(text, false).unwrap().get_ids(), "{name}, specials as text: {text:?}");
        }
        assert!(kept.iter().all(|&id| !ours.is_control(id) || Some(id) == ours.unknown()), "{name}: {text:?} {kept:?}");
        for ids in [&ids, &document, &kept] {
            self.check_decoding(ids);
        }
    }

    /// Streams equal decoding as a whole, which equals the crate's where the bytes are text.
    #[track_caller]
    pub(crate) fn check_decoding(&self, ids: &[u32]) {
        let Both { ours, theirs, .. } = self;
        let name = &self.name;
        for skip in [false, true] {
            let whole = ours.decode(ids, skip);
            let mut stream = candlewick::tokenizer::Detokenizer::new(Arc::clone(ours), skip);
            let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
            text += &stream.finish();
            assert_eq!(text, whole, "{name}: {ids:?}");
        }
        let expected = theirs.decode(ids, true).unwrap();
        let found = ours.decode_document(ids);
        // The crate replaces each byte of a run that is no text, and keeps unknown tokens that are not special.
        let same_rules = !expected.contains('\u{fffd}') && ids.iter().all(|&id| Some(id) != ours.unknown());
        if same_rules && self.decodes_alike {
            assert_eq!(found, expected, "{name}: {ids:?}");
        }
    }
}

#[test]
fn every_shape_encodes_and_decodes_as_the_crate_does() {
    for both in files::all() {
        for text in TEXTS {
            both.check(text);
        }
        let long: String = TEXTS.concat().repeat(3);
        both.check(&long);
    }
}

#[test]
fn random_texts_encode_and_decode_as_the_crate_does() {
    let all = files::all();
    let parts = prop::sample::select(vec![
        "the",
        " ",
        "  ",
        "h",
        "e",
        "é",
        "e\u{301}",
        "\n",
        "\t",
        "1",
        "23",
        "<s>",
        "</s>",
        "<|im_end|>",
        "<tool>",
        "<",
        "|",
        ">",
        "word",
        "hat",
        ".",
        "'s",
        "東",
        "🚀",
        "▁",
        "\u{a0}",
        "<strip>",
        "<unk>",
        "S",
        "in",
        "\r",
    ]);
    let texts = prop::collection::vec(prop_oneof![4 => parts.prop_map(str::to_string), 1 => ".{0,3}"], 0..24);
    let config = ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new_with_rng(config, rng())
        .run(&texts, |parts| {
            let text = parts.concat();
            all.iter().for_each(|both| both.check(&text));
            Ok(())
        })
        .unwrap();
}

#[test]
fn random_ids_stream_as_they_decode() {
    let all = files::all();
    let config = ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new_with_rng(config, rng())
        .run(&prop::collection::vec(0u32..340, 0..20), |ids| {
            all.iter().for_each(|both| both.check_decoding(&ids));
            Ok(())
        })
        .unwrap();
}

/// The same cases in every run.
fn rng() -> proptest::test_runner::TestRng {
    proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha)
}

#[test]
fn guarded_texts_become_control_tokens_only_outside_of_guards() {
    const GUARD: char = '\u{fdd0}';
    for both in files::all() {
        let ours = &both.ours;
        let Some(end) = ours.token_id("</s>").filter(|&id| ours.is_control(id)) else { continue };
        // `</s>` of the template, `</s>` in a message.
        let guarded = format!("the</s>the <{GUARD}/s> hat");
        let ids = ours.encode_guarded(&guarded, GUARD).unwrap();
        assert_eq!(ids.iter().filter(|&&id| id == end).count(), 1, "{}: {ids:?}", both.name);
        assert!(!ours.decode(&ids, false).contains(GUARD), "{}", both.name);
        assert!(ours.decode(&ids, true).replace(' ', "").contains("</s>") || both.loses_text, "{}: {ids:?}", both.name);
        // Without guards the whole is the crate's encoding.
        for text in ["the hat<tool>the", "</s>the hat</s> ", " the", "the"] {
            let expected = both.theirs.encode(text, false).unwrap().get_ids().to_vec();
            let mut found = ours.encode_guarded(text, GUARD).unwrap();
            let added = found.len() - expected.len();
            assert_eq!(found.split_off(added), expected, "{}: {text:?}", both.name);
        }
    }
}

#[test]
fn roles_and_flags_come_from_the_file_and_its_neighbours() {
    use candlewick::source::{Array, Value};
    let json = files::byte_level("qwen2", specials(false)).to_string();
    let mut metadata = files::metadata(&json);
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.token_text(tokenizer.eot().unwrap()), Some("<|im_end|>"));
    assert!(!tokenizer.adds_bos());
    metadata.insert("candlewick.tokenizer.bos_token", Value::from("<s>"));
    metadata.insert("candlewick.tokenizer.eos_token", Value::from("</s>"));
    metadata.insert("tokenizer.ggml.add_bos_token", Value::from(true));
    metadata.insert("candlewick.eos_token_ids", Value::Array(Array::U32(vec![7, 99_999])));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    let (bos, eos) = (tokenizer.token_id("<s>").unwrap(), tokenizer.token_id("</s>").unwrap());
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(bos), Some(eos)));
    assert!(tokenizer.is_end_of_generation(7) && tokenizer.is_end_of_generation(eos));
    assert!(!tokenizer.is_end_of_generation(99_999));
    let ids = tokenizer.encode("the", EncodeOptions::DOCUMENT).unwrap();
    assert_eq!(ids[0], bos);
    // Files without an unknown token of their own name an end token: it stays one.
    metadata.insert("candlewick.tokenizer.unk_token", Value::from("<|im_end|>"));
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert!(tokenizer.is_end_of_generation(tokenizer.token_id("<|im_end|>").unwrap()));
    // Of a GGUF file that has both, the keys that go with the weights count.
    metadata.insert("tokenizer.ggml.model", Value::from("no such model"));
    assert!(Tokenizer::from_metadata(&metadata).unwrap_err().to_string().contains("no such model"));
}

#[test]
fn long_texts_take_no_quadratic_time() {
    for both in files::all().iter().filter(|both| !both.name.ends_with("normalized true")) {
        for unit in ["a", " ", "\n", "1", "é", "🚀", "▁", "the hat is in.\n"] {
            if both.is_slow && unit.len() < 4 {
                continue;
            }
            let text = unit.repeat(100_000 / unit.len());
            let start = std::time::Instant::now();
            both.ours.encode(&text, EncodeOptions::PLAIN).unwrap();
            let time = start.elapsed();
            println!("{}: 100 kB of {unit:?} in {time:.2?}", both.name);
            // Quadratic work would be 5 billion steps; the machine may be busy.
            assert!(time.as_secs() < 8, "{} {unit:?}: {time:?}", both.name);
        }
    }
}
