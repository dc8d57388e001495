//! The token table: id to text and kind, text to id, and the ids with a role (BOS, EOS, ...).
//!
//! Built once from metadata and then read by every other file of the room. Knows no tokenizing algorithm.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::source::{Metadata, Value};
use crate::{Result, TokenId, TokenizerError};

pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(crate) const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
pub(crate) const SCORES: &str = "tokenizer.ggml.scores";

/// Ids beyond the vocabulary name intermediate symbols, so half of the range is kept free for them.
const MAX_TOKENS: usize = (u32::MAX / 2) as usize;

const EMPTY_SLOT: u32 = u32::MAX;

/// What a token's text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Text in the vocabulary's own writing.
    Normal,
    /// Stands for text that the vocabulary cannot express.
    Unknown,
    /// Steers the model; never arises from text unless asked.
    Control,
    /// Verbatim text that always matches before the algorithm runs.
    UserDefined,
    /// Padding of the table.
    Unused,
    /// One byte, written `<0xXX>`.
    Byte,
}

/// Texts and kinds of all tokens, with the way back from a text to its id.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    texts: String,
    ends: Vec<usize>,
    kinds: Vec<TokenKind>,
    /// Open addressing over ids; the keyed hash keeps a hostile vocabulary from colliding on purpose.
    slots: Vec<u32>,
    hasher: RandomState,
    longest: usize,
    typed: bool,
}

impl Vocabulary {
    /// Reads tokens and their types. Of two tokens with one text the lower id is the one that text encodes to.
    pub(crate) fn from_metadata(metadata: &Metadata) -> Result<Vocabulary> {
        let tokens = metadata.strings(TOKENS)?.ok_or_else(|| metadata.missing(TOKENS))?;
        if tokens.is_empty() {
            return Err(TokenizerError::EmptyVocabulary.into());
        }
        if tokens.len() > MAX_TOKENS {
            return Err(TokenizerError::TooLarge { key: TOKENS, found: tokens.len(), limit: MAX_TOKENS }.into());
        }
        let types = metadata.integers(TOKEN_TYPE)?;
        let typed = types.is_some();
        let kinds = match types {
            None => vec![TokenKind::Normal; tokens.len()],
            Some(types) => {
                check_length(TOKEN_TYPE, tokens.len(), types.len())?;
                types.iter().enumerate().map(|(id, &t)| kind(id, t)).collect::<Result<Vec<_>>>()?
            }
        };
        Ok(Vocabulary::new(tokens, kinds, typed))
    }

    /// From texts and kinds of the same number, at most half of the range of ids.
    pub(crate) fn new(tokens: &[String], kinds: Vec<TokenKind>, typed: bool) -> Vocabulary {
        debug_assert_eq!(tokens.len(), kinds.len());
        let mut texts = String::with_capacity(tokens.iter().map(String::len).sum());
        let mut ends = Vec::with_capacity(tokens.len());
        for token in tokens {
            texts.push_str(token);
            ends.push(texts.len());
        }
        let mut vocabulary = Vocabulary {
            texts,
            ends,
            kinds,
            slots: vec![EMPTY_SLOT; (tokens.len() * 2).next_power_of_two()],
            hasher: RandomState::new(),
            longest: tokens.iter().map(String::len).max().unwrap_or(0),
            typed,
        };
        for (id, token) in (0u32..).zip(tokens) {
            if token.is_empty() {
                continue;
            }
            let (slot, found) = vocabulary.probe(token);
            if found.is_none() {
                vocabulary.slots[slot] = id;
            }
        }
        vocabulary
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the source told the tokens' types.
    pub(crate) fn is_typed(&self) -> bool {
        self.typed
    }

    /// Bytes of the longest token text.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn text(&self, id: TokenId) -> Option<&str> {
        let index = usize::try_from(id).ok()?;
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        self.texts.get(start..end)
    }

    pub(crate) fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(usize::try_from(id).ok()?).copied()
    }

    pub(crate) fn set_kind(&mut self, id: TokenId, kind: TokenKind) {
        if let Some(slot) = self.kinds.get_mut(id as usize) {
            *slot = kind;
        }
    }

    /// The id whose text this is; empty text is no token. Texts longer than any token are not hashed, so the cost
    /// is bounded by the longest token.
    pub(crate) fn id(&self, text: &str) -> Option<TokenId> {
        if text.is_empty() || text.len() > self.longest {
            return None;
        }
        self.probe(text).1
    }

    /// [`id`](Self::id) of several texts. What look-ups wait for is memory, so each step is taken for all of them before
    /// the next one.
    pub(crate) fn ids(&self, texts: &[&str]) -> Vec<Option<TokenId>> {
        let mask = self.slots.len() - 1;
        let is_short = |text: &str| !text.is_empty() && text.len() <= self.longest;
        let slot = |text: &&str| is_short(text).then(|| self.hasher.hash_one(*text) as usize & mask);
        let slots: Vec<Option<usize>> = texts.iter().map(slot).collect();
        let ids: Vec<u32> = slots.iter().map(|slot| slot.map_or(EMPTY_SLOT, |slot| self.slots[slot])).collect();
        let found: Vec<Option<&str>> = ids.iter().map(|&id| self.text(id)).collect();
        let answers = texts.iter().zip(ids).zip(found);
        let answer = |((text, id), found): ((&&str, u32), Option<&str>)| match found {
            None => None,
            Some(found) if found == *text => Some(id),
            // Another text has the first slot.
            Some(_) => self.probe(text).1,
        };
        answers.map(answer).collect()
    }

    /// The id that plain text may turn into: no control, unknown or byte token, whose texts must stay text.
    pub(crate) fn plain_id(&self, text: &str) -> Option<TokenId> {
        self.id(text).filter(|&id| self.is_plain(id))
    }

    /// Whether plain text may turn into this token.
    pub(crate) fn is_plain(&self, id: TokenId) -> bool {
        matches!(self.kind(id), Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused))
    }

    /// The token of a byte in the `<0xXX>` writing.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<TokenId> {
        self.id(&format!("<0x{byte:02X}>"))
    }

    /// All ids with their text and kind.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (TokenId, &str, TokenKind)> {
        (0u32..).zip(&self.kinds).map(|(id, &kind)| (id, self.text(id).unwrap_or_default(), kind))
    }

    fn probe(&self, text: &str) -> (usize, Option<TokenId>) {
        // At most half of the slots are taken: the walk ends.
        let mask = self.slots.len() - 1;
        let mut slot = self.hasher.hash_one(text) as usize & mask;
        loop {
            match self.slots[slot] {
                EMPTY_SLOT => return (slot, None),
                id if self.text(id) == Some(text) => return (slot, Some(id)),
                _ => slot = (slot + 1) & mask,
            }
        }
    }
}

fn kind(id: usize, value: i64) -> Result<TokenKind> {
    Ok(match value {
        // 0 is "undefined" in the format; such tokens behave as text.
        0 | 1 => TokenKind::Normal,
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        found => return Err(TokenizerError::InvalidTokenType { token: id as u32, found }.into()),
    })
}

pub(crate) fn check_length(key: &'static str, expected: usize, found: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(TokenizerError::LengthMismatch { key, expected, found }.into())
}

/// The byte that a `<0xXX>` text names.
pub(crate) fn parse_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// A token id under `tokenizer.ggml.<name>_token_id`. An id outside the vocabulary is ignored (writers use −1 and
/// huge values for "none"); a value that is no integer is an error.
pub(crate) fn role(metadata: &Metadata, vocabulary: &Vocabulary, name: &str) -> Result<Option<TokenId>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let value = match metadata.value(&key) {
        None => return Ok(None),
        Some(Value::Unsigned(value)) => *value,
        Some(Value::Signed(value)) => match u64::try_from(*value) {
            Ok(value) => value,
            Err(_) => return Ok(None),
        },
        Some(_) => return Err(metadata.invalid(&key, "a token id").into()),
    };
    Ok(u32::try_from(value).ok().filter(|&id| (id as usize) < vocabulary.len()))
}
