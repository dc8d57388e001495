//! Text to tokens and back, from a source's metadata alone.
//!
//! Stands beside `source` at the start of the flow. A text goes through three steps: special tokens are cut out
//! (`special`), byte-pair vocabularies split the rest into pieces (`pre`), and merging finds the tokens (`bpe`,
//! `spm`). Knows nothing of weights, requests or chat roles.

mod alphabet;
mod bpe;
pub mod chat;
mod detokenizer;
mod pipeline;
mod pre;
mod roles;
mod special;
mod spm;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::borrow::Cow;
use std::sync::Arc;

pub use chat::{ChatRequest, ChatTemplate, ControlTokens, Message, RenderedPrompt};
pub use detokenizer::Detokenizer;

use self::bpe::Bpe;
use self::pipeline::{Decoding, ForeignDecoder, Pipeline};
use self::pre::Writing;
use self::roles::Roles;
use self::special::{Fragment, Scope, SpecialTokens};
use self::spm::Sentencepiece;
use self::vocabulary::{parse_byte, TokenKind, Vocabulary};
use crate::source::Metadata;
use crate::{Result, TokenId, TokenizerError};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const HUGGINGFACE: &str = "tokenizer.huggingface.json";

/// Positions inside a text are kept in 32 bits, and marking spaces may triple its size.
const MAX_TEXT: usize = 1 << 30;

/// What [`Tokenizer::encode`] does beside the text itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EncodeOptions {
    /// Adds BOS before and EOS after the text where the model asks for them; one that is there is not doubled.
    pub add_special: bool,
    /// Texts of control tokens become those tokens. Leave it off for text of users: they could end their turn and
    /// speak for the model.
    pub parse_special: bool,
}

impl EncodeOptions {
    /// The text alone; control tokens in it stay text.
    pub const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
    /// A whole document: BOS and EOS as the model asks; control tokens in the text stay text.
    pub const DOCUMENT: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };
    /// Text that a template or the host wrote: control tokens in it count, none are added.
    pub const MARKUP: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
}

/// A model's tokenizer. Immutable and shared between threads through an `Arc`.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    decoding: Decoding,
    roles: Roles,
    /// Put before and after a document.
    prefix: Vec<TokenId>,
    suffix: Vec<TokenId>,
    adds_space_prefix: bool,
}

#[derive(Debug)]
enum Algorithm {
    Bpe(Bpe, SpecialTokens),
    Sentencepiece(Sentencepiece, SpecialTokens),
    Pipeline(Box<Pipeline>),
}

impl Tokenizer {
    /// Reads the tokenizer from the `tokenizer.ggml.*` keys, or where they are absent from the text of a
    /// `tokenizer.json` under `tokenizer.huggingface.json`.
    ///
    /// Tolerated: ids of special tokens outside the vocabulary (ignored), several tokens with one text (the lowest
    /// id encodes), empty token texts (never encoded), merges over texts that are no tokens, a missing `pre`
    /// (means `default`). A merge that would give a control token is left out.
    ///
    /// # Errors
    /// An unsupported model or unknown `pre`, a missing or empty vocabulary, arrays that do not fit the vocabulary,
    /// types, scores or merges that cannot be read; parts of a `tokenizer.json` that are malformed or not supported.
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer> {
        // Where a file has both, the keys that go with its weights win.
        if let (None, Some(json)) = (metadata.value(MODEL), metadata.string(HUGGINGFACE)?) {
            return Tokenizer::from_json(metadata, json);
        }
        let model = metadata.string(MODEL)?.ok_or_else(|| metadata.missing(MODEL))?;
        match model {
            "gpt2" => Tokenizer::byte_pair(metadata, metadata.string(PRE)?.unwrap_or("default"), false),
            // Such files always want BOS and have one splitting rule, whatever `pre` says.
            "gemma4" => Tokenizer::byte_pair(metadata, "gemma4", true),
            "llama" => Tokenizer::sentencepiece(metadata),
            other => Err(TokenizerError::UnsupportedModel { model: other.to_string() }.into()),
        }
    }

    fn byte_pair(metadata: &Metadata, pre: &str, adds_bos: bool) -> Result<Tokenizer> {
        let family = pre::family(pre).ok_or_else(|| TokenizerError::UnsupportedPre { pre: pre.to_string() })?;
        let mut vocabulary = Vocabulary::from_metadata(metadata)?;
        // Old Falcon files leave out their ids; in other vocabularies 11 is an ordinary token.
        let falcon = Some(11).filter(|&id| vocabulary.text(id) == Some("<|endoftext|>"));
        let roles = Roles::from_metadata(metadata, &mut vocabulary, [falcon, falcon, None])?;
        let unknown = unknown_for_text(&vocabulary, &roles);
        let bpe = Bpe::new(metadata, &vocabulary, &family, unknown)?;
        let adds_bos = adds_bos || metadata.bool(ADD_BOS)?.unwrap_or(family.adds_bos);
        let adds_eos = metadata.bool(ADD_EOS)?.unwrap_or(false);
        Ok(Tokenizer {
            algorithm: Algorithm::Bpe(bpe, SpecialTokens::new(&vocabulary, |_| false)?),
            decoding: Decoding::Writing(family.writing),
            prefix: roles.bos.filter(|_| adds_bos).into_iter().collect(),
            suffix: roles.eos.filter(|_| adds_eos).into_iter().collect(),
            adds_space_prefix: false,
            vocabulary,
            roles,
        })
    }

    fn sentencepiece(metadata: &Metadata) -> Result<Tokenizer> {
        let mut vocabulary = Vocabulary::from_metadata(metadata)?;
        let roles = Roles::from_metadata(metadata, &mut vocabulary, [Some(1), Some(2), Some(0)])?;
        if !vocabulary.is_typed() {
            let bytes: Vec<TokenId> =
                vocabulary.iter().filter(|(_, text, _)| parse_byte(text).is_some()).map(|(id, ..)| id).collect();
            bytes.into_iter().for_each(|id| vocabulary.set_kind(id, TokenKind::Byte));
            if let Some(id) = roles.unknown {
                vocabulary.set_kind(id, TokenKind::Unknown);
            }
        }
        let unknown = unknown_for_text(&vocabulary, &roles);
        // Phi-3's own tokenizer declares its turn tokens so; the metadata has no key for it.
        let phi3 = metadata.string("general.architecture")? == Some("phi3");
        let strips = |text: &str| phi3 && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>");
        let adds_bos = metadata.bool(ADD_BOS)?.unwrap_or(true);
        let adds_eos = metadata.bool(ADD_EOS)?.unwrap_or(false);
        let special = SpecialTokens::new(&vocabulary, strips)?;
        Ok(Tokenizer {
            algorithm: Algorithm::Sentencepiece(Sentencepiece::new(metadata, &vocabulary, unknown)?, special),
            decoding: Decoding::Writing(Writing::Marked),
            prefix: roles.bos.filter(|_| adds_bos).into_iter().collect(),
            suffix: roles.eos.filter(|_| adds_eos).into_iter().collect(),
            adds_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
            vocabulary,
            roles,
        })
    }

    fn from_json(metadata: &Metadata, json: &str) -> Result<Tokenizer> {
        let file = pipeline::File::parse(json)?;
        let (mut vocabulary, unknown) = file.vocabulary()?;
        let (mut prefix, mut suffix) = file.affixes(&vocabulary)?;
        let bos = Some(&prefix[..]).filter(|prefix| prefix.len() == 1).map(|prefix| prefix[0]);
        let roles = Roles::from_metadata(metadata, &mut vocabulary, [bos, None, unknown])?;
        // The file's own template decides; only where it has none, what other files say.
        if prefix.is_empty() && suffix.is_empty() {
            let adds_bos = metadata.bool(ADD_BOS)?.unwrap_or(false);
            let adds_eos = metadata.bool(ADD_EOS)?.unwrap_or(false);
            prefix.extend(roles.bos.filter(|_| adds_bos));
            suffix.extend(roles.eos.filter(|_| adds_eos));
        }
        let (decoding, adds_space_prefix) = pipeline::decoding(&file)?;
        Ok(Tokenizer {
            algorithm: Algorithm::Pipeline(Box::new(Pipeline::new(&file, &vocabulary, unknown)?)),
            decoding,
            prefix,
            suffix,
            adds_space_prefix,
            vocabulary,
            roles,
        })
    }

    /// The tokens of a text. User-defined tokens in it always match.
    ///
    /// A byte that the vocabulary has no token for becomes the unknown token, if that is not a control token.
    ///
    /// # Errors
    /// [`TokenizerError::Unencodable`] for such a byte where there is no unknown token: text is never lost silently.
    /// [`TokenizerError::TextTooLong`] above 1 GiB.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<TokenId>> {
        check_size(text)?;
        let mut ids = Vec::new();
        let scope = if options.parse_special { Scope::All } else { Scope::UserDefined };
        self.append(text, scope, None, &mut ids)?;
        if options.add_special {
            self.prepend(&mut ids);
            if ids.last() != self.suffix.last() {
                ids.extend_from_slice(&self.suffix);
            }
        }
        Ok(ids)
    }

    /// The tokens of a rendered chat prompt in which `guard` characters break up the control tokens that came with
    /// users' text.
    ///
    /// Special tokens are found with the guards in place, then the guards are taken out of what is left. BOS is
    /// added where the model wants it and the prompt does not begin with it; EOS is not.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_guarded(&self, text: &str, guard: char) -> Result<Vec<TokenId>> {
        check_size(text)?;
        let mut ids = Vec::new();
        self.append(text, Scope::All, Some(guard), &mut ids)?;
        self.prepend(&mut ids);
        Ok(ids)
    }

    fn append(&self, text: &str, scope: Scope, guard: Option<char>, ids: &mut Vec<TokenId>) -> Result<()> {
        let special = match &self.algorithm {
            Algorithm::Bpe(_, special) | Algorithm::Sentencepiece(_, special) => special,
            Algorithm::Pipeline(pipeline) => return pipeline.encode(&self.vocabulary, text, scope, guard, ids),
        };
        let mut at_start = true;
        special.split(text, scope, &mut |part| match (part, guard) {
            (Fragment::Text(guarded), Some(guard)) if guarded.contains(guard) => {
                let plain = guarded.replace(guard, "");
                // Without the guards user-defined tokens may appear, as they would in the user's text alone.
                special.split(&plain, Scope::UserDefined, &mut |part| self.append_part(part, &mut at_start, ids))
            }
            _ => self.append_part(part, &mut at_start, ids),
        })
    }

    fn append_part(&self, part: Fragment<'_>, after_special: &mut bool, ids: &mut Vec<TokenId>) -> Result<()> {
        match part {
            Fragment::Token(id) => {
                ids.push(id);
                *after_special = true;
                Ok(())
            }
            Fragment::Text(text) => {
                let prefix = self.adds_space_prefix && *after_special;
                *after_special = false;
                match &self.algorithm {
                    Algorithm::Bpe(bpe, _) => bpe.encode(&self.vocabulary, text, ids),
                    Algorithm::Sentencepiece(spm, _) => spm.encode(&self.vocabulary, text, prefix, ids),
                    Algorithm::Pipeline(pipeline) => {
                        pipeline.encode(&self.vocabulary, text, Scope::UserDefined, None, ids)
                    }
                }
            }
        }
    }

    fn prepend(&self, ids: &mut Vec<TokenId>) {
        if ids.first() != self.prefix.first() {
            ids.splice(0..0, self.prefix.iter().copied());
        }
    }

    /// The text of tokens. Bytes that are no UTF-8 become U+FFFD, judged over the whole; ids outside the vocabulary
    /// give nothing. With `skip_control` the control, unknown and unused tokens give nothing, else their own text.
    ///
    /// A space that [`Tokenizer::encode`] put before the text stays: see [`Tokenizer::decode_document`].
    pub fn decode(&self, ids: &[TokenId], skip_control: bool) -> String {
        if let Decoding::Foreign(decoder) = &self.decoding {
            let mut window = pipeline::Window::default();
            let mut text: String = ids
                .iter()
                .filter_map(|&id| self.shown_text(id, skip_control))
                .map(|token| window.push(decoder, token.to_string()))
                .collect();
            text += &window.finish(decoder);
            return text;
        }
        let mut bytes = Vec::with_capacity(ids.len().saturating_mul(4));
        for &id in ids {
            self.append_bytes(id, skip_control, &mut bytes);
        }
        String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// The text that [`EncodeOptions::DOCUMENT`] encoded to these tokens: as [`Tokenizer::decode`] without control
    /// tokens, less the space that such models put before a text.
    pub fn decode_document(&self, ids: &[TokenId]) -> String {
        let mut text = self.decode(ids, true);
        let starts_with_text = ids
            .iter()
            .find(|&&id| !self.is_control(id))
            .is_some_and(|&id| matches!(self.vocabulary.kind(id), Some(TokenKind::Normal | TokenKind::Byte)));
        if self.adds_space_prefix && starts_with_text && text.starts_with(' ') {
            text.remove(0);
        }
        text
    }

    /// An incremental [`Tokenizer::decode`] that skips control tokens, at the start of a sequence.
    pub fn stream(self: &Arc<Self>) -> Detokenizer {
        Detokenizer::new(Arc::clone(self), true)
    }

    /// The decoder that needs several tokens at once, if the vocabulary has such a one.
    pub(crate) fn foreign_decoder(&self) -> Option<&ForeignDecoder> {
        match &self.decoding {
            Decoding::Foreign(decoder) => Some(decoder),
            Decoding::Writing(_) => None,
        }
    }

    /// A token's entry, unless it is to be skipped.
    pub(crate) fn shown_text(&self, id: TokenId, skip_control: bool) -> Option<&str> {
        match self.vocabulary.kind(id)? {
            TokenKind::Control | TokenKind::Unknown | TokenKind::Unused if skip_control => None,
            _ => self.vocabulary.text(id),
        }
    }

    pub(crate) fn append_bytes(&self, id: TokenId, skip_control: bool, out: &mut Vec<u8>) {
        let (Some(text), Some(kind)) = (self.vocabulary.text(id), self.vocabulary.kind(id)) else { return };
        match kind {
            TokenKind::Control | TokenKind::Unknown | TokenKind::Unused if skip_control => {}
            TokenKind::Control | TokenKind::Unknown | TokenKind::Unused | TokenKind::UserDefined => {
                out.extend_from_slice(text.as_bytes());
            }
            TokenKind::Byte => match parse_byte(text) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(text.as_bytes()),
            },
            TokenKind::Normal => match &self.decoding {
                Decoding::Writing(writing) => append_written(*writing, text, out),
                Decoding::Foreign(decoder) => out.extend_from_slice(decoder.decode(&[text.to_string()]).as_bytes()),
            },
        }
    }

    /// Number of ids, padding included. The model's logits may be longer.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<TokenId> {
        self.roles.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<TokenId> {
        self.roles.eos
    }

    /// The token that ends a turn of a chat: the file's, else the control token of a known text.
    pub fn eot(&self) -> Option<TokenId> {
        self.roles.eot
    }

    /// The token that stands for text without a token, if the model has one.
    pub fn unknown(&self) -> Option<TokenId> {
        self.roles.unknown
    }

    /// Whether documents begin with BOS.
    pub fn adds_bos(&self) -> bool {
        self.roles.bos.is_some_and(|bos| self.prefix.contains(&bos))
    }

    /// Whether documents end with EOS.
    pub fn adds_eos(&self) -> bool {
        self.roles.eos.is_some_and(|eos| self.suffix.contains(&eos))
    }

    /// Whether text at the start and after special tokens gets a space before it.
    pub fn adds_space_prefix(&self) -> bool {
        self.adds_space_prefix
    }

    /// Whether generation stops at this token.
    pub fn is_end_of_generation(&self, id: TokenId) -> bool {
        self.roles.end_of_generation.binary_search(&id).is_ok()
    }

    /// The tokens at which generation stops, ascending: EOS, EOT, EOM and control tokens of known texts.
    pub fn end_of_generation(&self) -> &[TokenId] {
        &self.roles.end_of_generation
    }

    /// A token's entry in the vocabulary, in the vocabulary's own writing.
    pub fn token_text(&self, id: TokenId) -> Option<&str> {
        self.vocabulary.text(id)
    }

    /// The bytes that a token stands for, possibly a part of a character; the text itself for control tokens.
    pub fn token_bytes(&self, id: TokenId) -> Option<Cow<'_, [u8]>> {
        let text = self.vocabulary.text(id)?;
        if matches!(self.vocabulary.kind(id)?, TokenKind::Normal | TokenKind::Byte) {
            let mut bytes = Vec::new();
            self.append_bytes(id, false, &mut bytes);
            return Some(Cow::Owned(bytes));
        }
        Some(Cow::Borrowed(text.as_bytes()))
    }

    /// The id of an entry, in the vocabulary's own writing.
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.vocabulary.id(text)
    }

    /// Texts that become control or unknown tokens where special tokens are parsed; text of users must not hold
    /// them unguarded.
    pub fn control_tokens(&self) -> impl Iterator<Item = &str> {
        self.vocabulary
            .iter()
            .filter(|(_, text, kind)| !text.is_empty() && matches!(kind, TokenKind::Control | TokenKind::Unknown))
            .map(|(_, text, _)| text)
    }

    /// Whether this token carries no text of its own: control and unknown tokens.
    pub fn is_control(&self, id: TokenId) -> bool {
        matches!(self.vocabulary.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// Whether this id only pads the vocabulary and must never be sampled; true for ids outside it.
    pub fn is_unused(&self, id: TokenId) -> bool {
        matches!(self.vocabulary.kind(id), Some(TokenKind::Unused) | None)
    }
}

/// The unknown token, unless it is a control token: a strange byte must not let text steer the model.
fn unknown_for_text(vocabulary: &Vocabulary, roles: &Roles) -> Option<TokenId> {
    roles.unknown.filter(|&id| vocabulary.kind(id) != Some(TokenKind::Control))
}

fn check_size(text: &str) -> Result<()> {
    if text.len() <= MAX_TEXT {
        return Ok(());
    }
    Err(TokenizerError::TextTooLong { bytes: text.len(), limit: MAX_TEXT }.into())
}

fn append_written(writing: Writing, text: &str, out: &mut Vec<u8>) {
    let mut buffer = [0; 4];
    match writing {
        Writing::Plain => out.extend_from_slice(text.as_bytes()),
        Writing::Marked => {
            for character in text.chars() {
                let character = if character == spm::SPACE { ' ' } else { character };
                out.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
            }
        }
        Writing::ByteLevel => {
            for character in text.chars() {
                match alphabet::byte(character) {
                    Some(byte) => out.push(byte),
                    None => out.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes()),
                }
            }
        }
    }
}
