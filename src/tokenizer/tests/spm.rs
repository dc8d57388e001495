//! SentencePiece vocabularies: scores, byte fallback, the prefix space.

use super::*;

const TOKENS: &[(&str, f32, i32)] = &[
    ("\u{2581}", -10.0, 1), // 259
    ("a", -11.0, 1),        // 260
    ("b", -12.0, 1),        // 261
    ("c", -13.0, 1),        // 262
    ("ab", -2.0, 1),        // 263
    ("bc", -1.0, 1),        // 264
    ("aa", -3.0, 1),        // 265
    ("\u{2581}a", -4.0, 1), // 266
    ("\n\n", 0.0, 4),       // 267
    ("<", -14.0, 1),        // 268
    ("s", -15.0, 1),        // 269
    (">", -16.0, 1),        // 270
    ("<s", -5.0, 1),        // 271
];

fn without_prefix() -> Metadata {
    let mut metadata = sentencepiece(TOKENS);
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    metadata
}

#[test]
fn highest_score_then_leftmost() {
    let t = tokenizer(&without_prefix());
    assert_eq!(plain(&t, "abc"), [260, 264]);
    assert_eq!(plain(&t, "abb"), [263, 261]);
    assert_eq!(plain(&t, "aaa"), [265, 260]);
    assert_eq!(plain(&t, "c a"), [262, 266]);
}

#[test]
fn space_prefix_at_the_start_and_after_special_tokens() {
    let t = tokenizer(&sentencepiece(TOKENS));
    assert!(t.adds_bos() && t.adds_space_prefix());
    assert_eq!(plain(&t, "a"), [266]);
    assert_eq!(plain(&t, " a"), [259, 266]);
    assert_eq!(plain(&t, ""), [0u32; 0]);
    assert_eq!(t.encode("a", EncodeOptions::DOCUMENT).unwrap(), [1, 266]);
    assert_eq!(t.encode("a</s>a", EncodeOptions::MARKUP).unwrap(), [266, 2, 266]);
    assert_eq!(t.decode(&[1, 266], true), " a");
    assert_eq!(t.decode_document(&[1, 266]), "a");
    check_round_trip(&t, " a  b é\n");
}

#[test]
fn control_and_byte_texts_do_not_arise_from_text() {
    let t = tokenizer(&without_prefix());
    // "<s>" has the best score of all, and "<s" and ">" are there to merge.
    assert_eq!(plain(&t, "<s>"), [271, 270]);
    assert_eq!(t.encode("<s>", EncodeOptions::MARKUP).unwrap(), [1]);
    let ids = plain(&t, "<0x0A>");
    assert!(!ids.contains(&13), "{ids:?}");
    assert_eq!(t.decode(&ids, true), "<0x0A>");
}

#[test]
fn characters_without_a_token_become_bytes() {
    let t = tokenizer(&without_prefix());
    assert_eq!(plain(&t, "é\n"), [3 + 0xC3, 3 + 0xA9, 3 + 0x0A]);
    assert_eq!(t.decode(&[3 + 0xC3, 3 + 0xA9, 3 + 0x0A], true), "é\n");
    assert_eq!(plain(&t, "a\n\na"), [260, 267, 260]);
}

#[test]
fn characters_without_bytes_become_the_unknown_token() {
    let mut metadata = Metadata::new("test");
    metadata.insert("tokenizer.ggml.model", text("llama"));
    metadata.insert("tokenizer.ggml.tokens", texts(&["<unk>", "<s>", "</s>", "a"]));
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0, 0.0, 0.0, -1.0])));
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    // Without types, the roles tell what is no text.
    let t = tokenizer(&metadata);
    assert_eq!(plain(&t, "aé"), [3, 0]);
    assert!(t.is_control(0) && t.is_control(1) && t.is_control(2));
    assert_eq!(t.end_of_generation(), [2]);
    assert_eq!(t.decode(&[1, 3, 2], true), "a");
}

#[test]
fn unused_tokens_only_help_to_merge() {
    let tokens = [("a", -1.0, 1), ("b", -1.0, 1), ("ab", -2.0, 5), ("abb", -3.0, 1)];
    let mut metadata = sentencepiece(&tokens);
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let t = tokenizer(&metadata);
    assert_eq!(plain(&t, "ab"), [259, 260]);
    assert_eq!(plain(&t, "abb"), [262]);
    assert!(t.is_unused(261) && !t.is_unused(262) && t.is_unused(99_999));
}

#[test]
fn phi3_strips_to_the_right_of_its_turn_tokens() {
    let mut metadata = sentencepiece(&[("a", -1.0, 1), ("<|user|>", 0.0, 3)]);
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let prompt = "<|user|>\n a<s> a";
    let length = |metadata: &Metadata| tokenizer(metadata).encode(prompt, EncodeOptions::MARKUP).unwrap().len();
    let kept = length(&metadata);
    metadata.insert("general.architecture", text("phi3"));
    // "\n" is one byte token and " " three.
    assert_eq!(length(&metadata), kept - 4);
}

#[test]
fn long_texts() {
    check_long_texts(&tokenizer(&without_prefix()));
}

#[test]
fn cutting_at_unjoinable_places_changes_nothing() {
    // "c" joins nothing, so "abcab" falls into three chunks; "bc" joins "abc" into one.
    let tokens = [("a", -9.0, 1), ("b", -9.0, 1), ("c", -9.0, 1), ("ab", -2.0, 1)];
    let mut metadata = sentencepiece(&tokens);
    metadata.insert("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    assert_eq!(plain(&tokenizer(&metadata), "abcab"), [262, 261, 262]);
}
