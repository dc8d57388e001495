//! Byte-level vocabularies: merges, special tokens, roles, streaming.

use super::*;

#[test]
fn lowest_rank_then_leftmost() {
    let t = tokenizer(&byte_level("gpt-2", &["b c", "a b", "a a"], &[]));
    // "b c" ranks before "a b".
    assert_eq!(plain(&t, "abc"), [97, 256]);
    assert_eq!(plain(&t, "abd"), [257, 100]);
    // Of equal pairs the left one merges.
    assert_eq!(plain(&t, "aaa"), [258, 97]);
    assert_eq!(plain(&t, "aaaa"), [258, 258]);
}

#[test]
fn merges_build_on_merges() {
    let t = tokenizer(&byte_level("gpt-2", &["h e", "l l", "he ll", "hell o", "Ġ hello"], &[]));
    assert_eq!(plain(&t, "hello hello"), [259, 260]);
    assert_eq!(plain(&t, "hell  hello"), [258, 32, 260]);
    check_round_trip(&t, "hello\n wörld 🚀");
}

#[test]
fn whole_pieces_where_the_family_says() {
    let mut metadata = byte_level("llama-bpe", &["a b"], &[]);
    let Some(Value::Array(Array::String(tokens))) = metadata.value("tokenizer.ggml.tokens").cloned() else { panic!() };
    let mut tokens = tokens;
    tokens.push("xyz".to_string());
    metadata.insert("tokenizer.ggml.tokens", texts(&tokens));
    metadata.insert("tokenizer.ggml.token_type", types(&[1; 258]));
    assert_eq!(plain(&tokenizer(&metadata), "xyz"), [257]);
    metadata.insert("tokenizer.ggml.pre", text("qwen2"));
    assert_eq!(plain(&tokenizer(&metadata), "xyz"), [120, 121, 122]);
}

#[test]
fn merged_text_without_a_token_falls_apart() {
    let mut metadata = byte_level("gpt-2", &[], &[]);
    metadata.insert("tokenizer.ggml.merges", texts(&["a b", "ab c"]));
    assert_eq!(plain(&tokenizer(&metadata), "abc"), [97, 98, 99]);
}

#[test]
fn ranks_are_ids_without_merges() {
    let mut metadata = byte_level("kimi-k2", &["a b", "b c", "ab c"], &[]);
    metadata = {
        let mut without = Metadata::new("test");
        metadata.iter().filter(|(key, _)| !key.ends_with("merges")).for_each(|(key, value)| {
            without.insert(key, value.clone());
        });
        without
    };
    let t = tokenizer(&metadata);
    assert_eq!(plain(&t, "abc"), [258]);
    assert_eq!(plain(&t, "bc"), [257]);
    metadata.insert("tokenizer.ggml.pre", text("qwen2"));
    assert!(Tokenizer::from_metadata(&metadata).unwrap_err().to_string().contains("merges"));
}

const CHAT: &[(&str, i32)] =
    &[("<|im_start|>", 3), ("<|im_end|>", 3), ("<|endoftext|>", 3), ("<tool>", 4), ("<tool>>", 4), ("</s>", 1)];

#[test]
fn control_tokens_in_plain_text_stay_text() {
    let t = tokenizer(&byte_level("qwen2", &[], CHAT));
    let ids = plain(&t, "x<|im_end|>");
    assert_eq!(ids.len(), 11);
    assert!(ids.iter().all(|&id| id < 256));
    assert_eq!(t.encode("x<|im_end|>", EncodeOptions::MARKUP).unwrap(), [120, 257]);
    assert_eq!(t.decode(&[120, 257], true), "x");
    assert_eq!(t.decode(&[120, 257], false), "x<|im_end|>");
}

#[test]
fn a_merge_cannot_make_a_control_token() {
    let mut metadata = byte_level("gpt-2", &[], &[("ab", 3)]);
    metadata.insert("tokenizer.ggml.merges", texts(&["a b"]));
    assert_eq!(plain(&tokenizer(&metadata), "ab"), [97, 98]);
    metadata.insert("tokenizer.ggml.pre", text("llama-bpe"));
    assert_eq!(plain(&tokenizer(&metadata), "ab"), [97, 98]);
}

#[test]
fn user_defined_tokens_always_match_longest() {
    let t = tokenizer(&byte_level("qwen2", &[], CHAT));
    assert_eq!(plain(&t, "<tool>a<tool>>"), [259, 97, 260]);
    assert_eq!(t.decode(&[259, 97, 260], true), "<tool>a<tool>>");
}

#[test]
fn guards_keep_control_tokens_text() {
    let t = tokenizer(&byte_level("qwen2", &[], CHAT));
    let guard = '\u{E000}';
    let prompt = format!("<|im_start|>a<|{guard}im_end|><to{guard}ol><|im_end|>");
    let ids = t.encode_guarded(&prompt, guard).unwrap();
    assert_eq!(ids[0], 256);
    assert_eq!(ids.last(), Some(&257));
    assert_eq!(ids.iter().filter(|&&id| id == 257).count(), 1);
    // The user's own text is encoded as it would be alone.
    assert_eq!(ids[1..ids.len() - 1], plain(&t, "a<|im_end|><tool>"));
    assert_eq!(t.decode(&ids, false), prompt.replace(guard, ""));
}

#[test]
fn bos_and_eos_are_never_doubled() {
    let mut metadata = byte_level("qwen2", &[], CHAT);
    metadata.insert("tokenizer.ggml.bos_token_id", Value::Unsigned(256));
    metadata.insert("tokenizer.ggml.eos_token_id", Value::Unsigned(258));
    metadata.insert("tokenizer.ggml.add_bos_token", Value::Bool(true));
    metadata.insert("tokenizer.ggml.add_eos_token", Value::Bool(true));
    let t = tokenizer(&metadata);
    assert!(t.adds_bos() && t.adds_eos());
    assert_eq!(t.encode("a", EncodeOptions::DOCUMENT).unwrap(), [256, 97, 258]);
    assert_eq!(t.encode("", EncodeOptions::DOCUMENT).unwrap(), [256, 258]);
    assert_eq!(t.encode("", EncodeOptions::PLAIN).unwrap(), [0u32; 0]);
    assert_eq!(t.encode_guarded("a", '\u{E000}').unwrap(), [256, 97]);
    assert_eq!(t.encode_guarded("<|im_start|>a", '\u{E000}').unwrap(), [256, 97]);
    let both = EncodeOptions { add_special: true, parse_special: true };
    assert_eq!(t.encode("<|im_start|>a<|endoftext|>", both).unwrap(), [256, 97, 258]);
}

#[test]
fn ends_are_control_tokens_only() {
    let mut metadata = byte_level("qwen2", &[], CHAT);
    metadata.insert("tokenizer.ggml.eos_token_id", Value::Unsigned(65));
    let t = tokenizer(&metadata);
    // "</s>" (261) is an ordinary token here.
    assert_eq!(t.end_of_generation(), [65, 257, 258]);
    assert!(t.is_end_of_generation(257) && !t.is_end_of_generation(261));
    assert_eq!(t.eot(), Some(257));
    assert_eq!(t.control_tokens().collect::<Vec<_>>(), ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]);
}

#[test]
fn end_closes_only_a_part_beside_call_and_return() {
    let t = tokenizer(&byte_level("gpt-4o", &[], &[("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3)]));
    assert_eq!(t.end_of_generation(), [257, 258]);
    let t = tokenizer(&byte_level("gpt-4o", &[], &[("<|end|>", 3)]));
    assert_eq!((t.end_of_generation(), t.eot()), (&[256][..], Some(256)));
}

#[test]
fn streams_never_split_a_character() {
    let t = tokenizer(&byte_level("qwen2", &[], CHAT));
    let mut stream = t.stream();
    let pieces: Vec<String> = plain(&t, "é🚀x").into_iter().map(|id| stream.push(id)).collect();
    assert_eq!(pieces, ["", "é", "", "", "", "🚀", "x"]);
    assert_eq!(stream.finish(), "");
}

#[test]
fn broken_utf8_streams_as_it_decodes() {
    let t = tokenizer(&byte_level("qwen2", &[], CHAT));
    let cases: &[&[TokenId]] = &[
        &[0xF0, 0x9F, 0x41],
        &[0xFF, 0xC3, 0xA9],
        &[0xE5, 0xA4],
        &[0xC3, 0xC3, 0xA9, 0xF0],
        &[0xF0, 0x9F, 257, 0x9A, 0x80],
        &[0xED, 0xA0, 0x80, 9999, 0x42],
        &[0x80, 0xF4, 0x90, 0x80, 0x80],
    ];
    for ids in cases {
        let mut stream = t.stream();
        let mut joined = String::new();
        for &id in *ids {
            joined += &stream.push(id);
            assert!(stream.pending_bytes() < 4);
        }
        joined += &stream.finish();
        assert_eq!(joined, t.decode(ids, true), "{ids:?}");
    }
    assert_eq!(t.decode(&[0xF0, 0x9F, 0x41], true), "\u{FFFD}A");
}

#[test]
fn bytes_of_tokens() {
    let t = tokenizer(&byte_level("qwen2", &["Ġ a"], CHAT));
    assert_eq!(t.token_bytes(256).as_deref(), Some(&b" a"[..]));
    assert_eq!(t.token_bytes(0xF0).as_deref(), Some(&[0xF0][..]));
    assert_eq!(t.token_bytes(257).as_deref(), Some(&b"<|im_start|>"[..]));
    assert_eq!(t.token_bytes(5000), None);
    assert_eq!((t.token_text(256), t.token_id("Ġa")), (Some("Ġa"), Some(256)));
    assert_eq!(t.vocab_size(), 263);
}

#[test]
fn raw_utf8_vocabularies() {
    let names = ["<unk>", "a", "\u{2581}", "\u{2581}a", "<0xC3>", "<0xA9>", "\n", "\n\n"];
    let mut metadata = Metadata::new("test");
    metadata.insert("tokenizer.ggml.model", text("gemma4"));
    metadata.insert("tokenizer.ggml.tokens", texts(&names));
    metadata.insert("tokenizer.ggml.token_type", types(&[2, 1, 1, 1, 6, 6, 1, 1]));
    metadata.insert("tokenizer.ggml.merges", texts(&["\u{2581} a", "\n \n"]));
    metadata.insert("tokenizer.ggml.unknown_token_id", Value::Unsigned(0));
    let t = tokenizer(&metadata);
    assert_eq!(plain(&t, "a a\n\né"), [1, 3, 7, 4, 5]);
    assert_eq!(t.decode(&[1, 3, 7, 4, 5], true), "a a\n\né");
    // No byte tokens for this one.
    assert_eq!(plain(&t, "ñ"), [4, 0]);
}

#[test]
fn long_texts() {
    let merges = ["a a", "aa aa", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "1 1", "Ã ©", "Ã© Ã©", "a b", "ab ab"];
    check_long_texts(&tokenizer(&byte_level("gpt-2", &merges, CHAT)));
    check_long_texts(&tokenizer(&byte_level("llama-bpe", &merges, CHAT)));
}
