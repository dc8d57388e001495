//! Small working vocabularies: `tokenizer.ggml.*` keys for byte-level BPE and for SentencePiece.
//!
//! Every byte has a token, so any text can be encoded; a few merges make common English words shorter. Key names and
//! token types: GGUF's conventions. Must not know how text is encoded (that is the library's tokenizer, which these keys
//! test).

use crate::source::{Memory, WeightSource};
use crate::Result;

/// Which kind of vocabulary a tiny model gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerKind {
    /// `gpt2` with the splitting rule `gpt-2`: no BOS is added, `<|im_end|>` ends.
    Gpt2,
    /// `gpt2` with the splitting rule `qwen2`.
    Qwen2,
    /// `llama`: SentencePiece with scores and byte fallback; `<s>` is added, `</s>` ends, `<|im_end|>` ends a turn.
    Llama,
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Byte-level merges, best first; `Ġ` is a space and `Ċ` a line feed.
const MERGES: &[&str] = &[
    "Ġ t", "h e", "Ġ a", "i n", "Ġt he", "e r", "o n", "r e", "n d", "Ġa nd", "Ġ s", "Ġ w", "a t", "o u", "e n", "Ġ o",
    "o r", "i t", "Ġ b", "i s", "l l", "Ġ Ġ", "in g", "e s", "Ġ f", "Ġo f", "Ġt o", "Ġ c", "a n", "Ċ Ċ", "u s", "e d",
];

/// SentencePiece pieces, best first: each is the joint of two earlier or single ones.
const PIECES: &[&str] = &[
    "▁t", "he", "▁a", "in", "▁the", "er", "on", "▁s", "re", "nd", "▁and", "an", "ing", "▁w", "or", "▁o", "▁of", "▁to",
];
/// Characters that are pieces; all others fall back to bytes.
const CHARACTERS: &str = "▁etaoinshrdlucmwfgypbvk.,!?'é";

/// A conversation in ChatML.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] \
                      + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Text, type and score of the tokens so far.
#[derive(Default)]
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
    scores: Vec<f32>,
}

impl Tokens {
    fn push(&mut self, text: impl Into<String>, kind: i32, score: f32) -> u32 {
        self.texts.push(text.into());
        self.types.push(kind);
        self.scores.push(score);
        (self.texts.len() - 1) as u32
    }
}

/// Sets the tokenizer's keys for a vocabulary of exactly `vocab` tokens; those beyond the needed are unused ones.
///
/// # Errors
/// `vocab` is too small for this kind.
pub(super) fn set(
    source: &mut Memory,
    kind: TokenizerKind,
    vocab: usize,
    space_prefix: bool,
    template: bool,
) -> Result<()> {
    let mut tokens = Tokens::default();
    match kind {
        TokenizerKind::Gpt2 | TokenizerKind::Qwen2 => byte_level(source, &mut tokens, kind),
        TokenizerKind::Llama => sentence_piece(source, &mut tokens, space_prefix),
    }
    let needed = tokens.texts.len();
    if vocab < needed {
        const KEY: &str = "tokenizer.ggml.tokens";
        source.set(KEY, vocab as u64);
        return Err(source.metadata().invalid(KEY, format!("a vocabulary of at least {needed} tokens")).into());
    }
    for i in needed..vocab {
        tokens.push(format!("[PAD{i}]"), UNUSED, -1e6);
    }
    source.set("tokenizer.ggml.tokens", tokens.texts);
    source.set("tokenizer.ggml.token_type", tokens.types);
    if kind == TokenizerKind::Llama {
        source.set("tokenizer.ggml.scores", tokens.scores);
    }
    if template {
        source.set("tokenizer.chat_template", CHATML);
    }
    Ok(())
}

fn byte_level(source: &mut Memory, tokens: &mut Tokens, kind: TokenizerKind) {
    for byte in 0..=255 {
        tokens.push(byte_character(byte), NORMAL, 0.0);
    }
    for merge in MERGES {
        tokens.push(merge.replace(' ', ""), NORMAL, 0.0);
    }
    let end_of_text = tokens.push("<|endoftext|>", CONTROL, 0.0);
    tokens.push("<|im_start|>", CONTROL, 0.0);
    let im_end = tokens.push("<|im_end|>", CONTROL, 0.0);
    source.set("tokenizer.ggml.model", "gpt2");
    source.set("tokenizer.ggml.pre", if kind == TokenizerKind::Qwen2 { "qwen2" } else { "gpt-2" });
    source.set("tokenizer.ggml.merges", MERGES.iter().map(|m| m.to_string()).collect::<Vec<_>>());
    source.set("tokenizer.ggml.bos_token_id", end_of_text);
    source.set("tokenizer.ggml.eos_token_id", im_end);
    source.set("tokenizer.ggml.padding_token_id", end_of_text);
    source.set("tokenizer.ggml.add_bos_token", false);
}

/// The character that stands for a byte in byte-level BPE: printable ones for themselves, the others from U+0100 on.
fn byte_character(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(&byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !printable(b)).count() as u32;
    // At most 68 bytes are not printable: U+0100 to U+0143 are all characters.
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn sentence_piece(source: &mut Memory, tokens: &mut Tokens, space_prefix: bool) {
    let unknown = tokens.push("<unk>", UNKNOWN, 0.0);
    let bos = tokens.push("<s>", CONTROL, 0.0);
    let eos = tokens.push("</s>", CONTROL, 0.0);
    for byte in 0..=255u8 {
        tokens.push(format!("<0x{byte:02X}>"), BYTE, 0.0);
    }
    tokens.push("<|im_start|>", CONTROL, 0.0);
    let im_end = tokens.push("<|im_end|>", CONTROL, 0.0);
    // Stored with real spaces, as Gemma stores them.
    tokens.push("\n\n", USER_DEFINED, -1000.0);
    tokens.push("  ", USER_DEFINED, -1000.0);
    for piece in PIECES.iter().map(|p| p.to_string()).chain(CHARACTERS.chars().map(String::from)) {
        let rank = tokens.texts.len() as f32 - 262.0;
        tokens.push(piece, NORMAL, -rank);
    }
    source.set("tokenizer.ggml.model", "llama");
    source.set("tokenizer.ggml.pre", "default");
    source.set("tokenizer.ggml.unknown_token_id", unknown);
    source.set("tokenizer.ggml.bos_token_id", bos);
    source.set("tokenizer.ggml.eos_token_id", eos);
    source.set("tokenizer.ggml.eot_token_id", im_end);
    source.set("tokenizer.ggml.add_bos_token", true);
    source.set("tokenizer.ggml.add_eos_token", false);
    source.set("tokenizer.ggml.add_space_prefix", space_prefix);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn keys(kind: TokenizerKind) -> Memory {
        let mut source = Memory::new("vocabulary");
        set(&mut source, kind, 323, true, true).unwrap();
        source
    }

    #[test]
    fn texts_are_unique_and_merges_lead_to_tokens() {
        for kind in [TokenizerKind::Gpt2, TokenizerKind::Qwen2, TokenizerKind::Llama] {
            let source = keys(kind);
            let metadata = source.metadata();
            let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
            let set: HashSet<&str> = tokens.iter().map(String::as_str).collect();
            assert_eq!((tokens.len(), set.len()), (323, 323), "{kind:?}");
            assert_eq!(metadata.integers("tokenizer.ggml.token_type").unwrap().unwrap().len(), 323);
            for merge in metadata.strings("tokenizer.ggml.merges").unwrap().unwrap_or_default() {
                let (left, right) = merge.split_once(' ').unwrap();
                let joint = format!("{left}{right}");
                assert!(set.contains(left) && set.contains(right) && set.contains(&*joint), "{merge}");
            }
        }
    }

    #[test]
    fn pieces_can_be_reached_by_merging_two() {
        let source = keys(TokenizerKind::Llama);
        let tokens = source.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap();
        let scores = source.metadata().floats("tokenizer.ggml.scores").unwrap().unwrap();
        for piece in PIECES {
            let cuts = piece.char_indices().skip(1).map(|(i, _)| piece.split_at(i));
            let known = |s: &str| tokens.iter().any(|t| t == s);
            assert!(cuts.into_iter().any(|(l, r)| known(l) && known(r)), "{piece}");
        }
        let score = |s: &str| scores[tokens.iter().position(|t| t == s).unwrap()];
        assert!(score("▁t") > score("▁the") && score("▁the") > score("e"));
    }

    #[test]
    fn the_byte_alphabet_has_its_known_points() {
        assert_eq!([b' ', b'\n', b'A', 0, 0xAD, 0xFF].map(byte_character), ['Ġ', 'Ċ', 'A', 'Ā', 'Ń', 'ÿ']);
    }

    #[test]
    fn too_small_is_an_error() {
        let error = set(&mut Memory::new("v"), TokenizerKind::Gpt2, 256, true, false).unwrap_err().to_string();
        assert!(error.contains("at least 291") && error.contains("256"), "{error}");
    }
}
