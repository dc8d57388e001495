//! Normalizers, pre-tokenizers, models and decoders that the `tokenizers` crate runs.
//!
//! For what `linear` does not know. The crate trusts its files: some shapes panic (a zero length, a table that points
//! outside of itself), so every call is caught, and what could exhaust the stack or the memory is refused first.

use std::panic::{catch_unwind, AssertUnwindSafe};

use serde_json::Value;
use tokenizers::normalizer::Range;
use tokenizers::{
    Decoder, DecoderWrapper, Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential,
    OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Token,
};

use super::added::AddedTokens;
use super::json::{field, unsupported};
use super::linear::{kind, steps};
use crate::tokenizer::special::Scope;
use crate::tokenizer::vocabulary::{TokenKind, Vocabulary};
use crate::{Result, TokenId, TokenizerError};

/// Steps of one part of the file: each may hold a compiled pattern of some 10 MB.
pub(super) const MAX_STEPS: usize = 16;

/// How much longer text may become by replacing in it.
const MAX_GROWTH: usize = 64;

/// Bytes of an entry of a unigram vocabulary: the crate drops its trie recursively.
const MAX_PIECE: usize = 1024;

/// The crate's normalizer and pre-tokenizer.
#[derive(Debug)]
pub(crate) struct Foreign {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
}

/// What the crate is asked to cut text at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cutting<'a> {
    pub(crate) raw: &'a AddedTokens,
    pub(crate) normalized: &'a AddedTokens,
    pub(crate) scope: Scope,
    /// Taken out of text once control tokens are found; what is found after that is of users.
    pub(crate) guard: Option<char>,
}

impl Foreign {
    pub(crate) fn new(normalizer: &Value, pre_tokenizer: &Value) -> Result<Foreign> {
        check_normalizer(normalizer)?;
        if steps(pre_tokenizer, "pretokenizers").is_none_or(|steps| steps.len() > MAX_STEPS) {
            return Err(field("pre_tokenizer", "a step or a sequence of few", pre_tokenizer));
        }
        Ok(Foreign {
            normalizer: part("normalizer", normalizer)?,
            pre_tokenizer: part("pre_tokenizer", pre_tokenizer)?,
        })
    }

    /// The text as the normalizer writes it.
    pub(crate) fn normalize(&self, text: &str) -> Result<String> {
        let Some(normalizer) = &self.normalizer else { return Ok(text.to_string()) };
        caught("normalizer", || {
            let mut string = NormalizedString::from(text);
            normalizer.normalize(&mut string)?;
            Ok(string.get().to_string())
        })
    }

    /// Hands the parts of `text` to `emit`: tokens that were cut out, and pieces for the model.
    pub(crate) fn split(
        &self,
        text: &str,
        cutting: Cutting<'_>,
        emit: &mut dyn FnMut(Option<TokenId>, &str) -> Result<()>,
    ) -> Result<()> {
        let mut string = PreTokenizedString::from(text);
        caught("pre_tokenizer", || self.run(&mut string, cutting))?;
        for (piece, _, tokens) in string.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            match tokens {
                Some(tokens) => tokens.iter().try_for_each(|token| emit(Some(token.id), ""))?,
                None => emit(None, piece)?,
            }
        }
        Ok(())
    }

    fn run(&self, string: &mut PreTokenizedString, cutting: Cutting<'_>) -> tokenizers::Result<()> {
        let Cutting { raw, normalized, scope, guard } = cutting;
        // Where control tokens are found in normalized text only, the guards have to stay until then.
        let guard_stays = normalized.has_control();
        string.split(|_, string| cut(string, raw, scope))?;
        if let (Some(guard), false) = (guard, guard_stays) {
            string.split(|_, string| cut(without(string, guard), raw, Scope::UserDefined))?;
        }
        if let Some(normalizer) = &self.normalizer {
            string.normalize(|string| normalizer.normalize(string))?;
        }
        string.split(|_, string| cut(string, normalized, scope))?;
        if let (Some(guard), true) = (guard, guard_stays) {
            string.split(|_, string| cut(without(string, guard), normalized, Scope::UserDefined))?;
        }
        match &self.pre_tokenizer {
            Some(pre_tokenizer) => pre_tokenizer.pre_tokenize(string),
            None => Ok(()),
        }
    }
}

type Split = (NormalizedString, Option<Vec<Token>>);

fn cut(string: NormalizedString, tokens: &AddedTokens, scope: Scope) -> tokenizers::Result<Vec<Split>> {
    if tokens.is_empty() {
        return Ok(vec![(string, None)]);
    }
    let mut splits = Vec::new();
    tokens.cut(string.get(), scope, &mut |id, range| {
        // Ranges lie on boundaries of characters: there is a slice.
        if let Some(slice) = string.slice(Range::Normalized(range)) {
            splits.push((slice, id.map(|id| vec![Token::new(id, String::new(), (0, 0))])));
        }
        Ok(())
    })?;
    Ok(splits)
}

fn without(mut string: NormalizedString, guard: char) -> NormalizedString {
    if string.get().contains(guard) {
        string.filter(|c| c != guard);
    }
    string
}

/// A model that is not byte-pair encoding.
#[derive(Debug)]
pub(crate) struct ForeignModel(ModelWrapper);

enum Work<'t> {
    Text(&'t str),
    Token(TokenId),
}

impl ForeignModel {
    pub(crate) fn new(kind: &str, model: &Value, vocabulary: &Vocabulary) -> Result<ForeignModel> {
        if kind == "Unigram" && vocabulary.longest() > MAX_PIECE {
            let found = format!("one of {} bytes", vocabulary.longest());
            let field = "model.vocab".to_string();
            return Err(TokenizerError::JsonField { field, expected: "entries of at most 1024 bytes", found }.into());
        }
        match part("model", model)? {
            Some(model) => Ok(ForeignModel(model)),
            None => Err(unsupported("model", Some(kind))),
        }
    }

    /// Appends the tokens of a piece. Control tokens do not arise from text: where the model finds one, its text is
    /// taken apart.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, piece: &str, out: &mut Vec<TokenId>) -> Result<()> {
        let mut work = vec![Work::Text(piece)];
        while let Some(next) = work.pop() {
            let text = match next {
                Work::Token(id) => {
                    out.push(id);
                    continue;
                }
                Work::Text(text) => text,
            };
            let tokens = caught("model", || self.0.tokenize(text))?;
            for token in tokens.iter().rev() {
                let kind = vocabulary.kind(token.id);
                let covered = text.get(token.offsets.0..token.offsets.1).unwrap_or_default();
                let is_its_text = vocabulary.text(token.id) == Some(covered);
                let is_plain = match kind {
                    None | Some(TokenKind::Control | TokenKind::Unused) => false,
                    Some(TokenKind::Unknown) => !is_its_text,
                    Some(TokenKind::Byte) => !is_its_text,
                    Some(TokenKind::Normal | TokenKind::UserDefined) => true,
                };
                let second = covered.char_indices().nth(1).map(|(at, _)| at);
                match second {
                    _ if is_plain => work.push(Work::Token(token.id)),
                    Some(at) if is_its_text => {
                        work.push(Work::Text(&covered[at..]));
                        work.push(Work::Text(&covered[..at]));
                    }
                    _ => {
                        let byte = covered.bytes().next().unwrap_or(0);
                        let context = text.chars().take(40).collect();
                        return Err(TokenizerError::Unencodable { byte, context }.into());
                    }
                }
            }
        }
        Ok(())
    }
}

/// A decoder of a shape of its own.
#[derive(Debug)]
pub(crate) struct ForeignDecoder(Option<DecoderWrapper>);

impl ForeignDecoder {
    pub(crate) fn new(decoder: &Value) -> Result<ForeignDecoder> {
        if steps(decoder, "decoders").is_none_or(|steps| steps.len() > MAX_STEPS) {
            return Err(field("decoder", "a step or a sequence of few", decoder));
        }
        Ok(ForeignDecoder(part("decoder", decoder)?))
    }

    /// The text of tokens; where the decoder fails, their entries as they are.
    pub(crate) fn decode(&self, tokens: &[String]) -> String {
        if tokens.is_empty() {
            return String::new();
        }
        match &self.0 {
            None => tokens.join(" "),
            Some(decoder) => caught("decoder", || decoder.decode(tokens.to_vec())).unwrap_or_else(|_| tokens.concat()),
        }
    }
}

fn check_normalizer(normalizer: &Value) -> Result<()> {
    let steps = steps(normalizer, "normalizers").filter(|steps| steps.len() <= MAX_STEPS);
    let mut growth = 1usize;
    for step in steps.ok_or_else(|| field("normalizer", "a step or a sequence of few", normalizer))? {
        match kind(step) {
            // Its table is trusted by the code that reads it.
            "Precompiled" => return Err(unsupported("normalizer", Some("Precompiled"))),
            "Replace" => {
                let content = step.get("content").and_then(Value::as_str).map_or(0, str::len);
                let shortest =
                    step.pointer("/pattern/String").and_then(Value::as_str).map_or(1, |text| text.len().max(1));
                growth = growth.saturating_mul(content.div_ceil(shortest).max(1));
            }
            "Prepend" => {
                growth = growth.saturating_mul(
                    1 + step.get("prepend").and_then(Value::as_str).map_or(0, str::len).div_ceil(MAX_GROWTH),
                );
            }
            _ => {}
        }
    }
    if growth > MAX_GROWTH {
        let found = format!("steps that make it up to {growth} times as long");
        let field = "normalizer".to_string();
        return Err(TokenizerError::JsonField { field, expected: "little growth of text", found }.into());
    }
    Ok(())
}

/// A part of the file as the crate reads it; `None` for null.
fn part<T: serde_json_part::Part>(name: &'static str, value: &Value) -> Result<Option<T>> {
    if value.is_null() {
        return Ok(None);
    }
    caught(name, || Ok(T::read(value.clone())?)).map(Some)
}

/// The parts that the crate can read from a value.
mod serde_json_part {
    use serde_json::{Error, Value};

    pub(super) trait Part: Sized {
        fn read(value: Value) -> Result<Self, Error>;
    }

    macro_rules! parts {
        ($($part:ty),*) => {
            $(impl Part for $part {
                fn read(value: Value) -> Result<Self, Error> {
                    serde_json::from_value(value)
                }
            })*
        };
    }

    parts!(
        tokenizers::NormalizerWrapper,
        tokenizers::PreTokenizerWrapper,
        tokenizers::ModelWrapper,
        tokenizers::DecoderWrapper
    );
}

/// Runs the crate's code; its errors and panics become errors that name the part of the file.
fn caught<T>(part: &'static str, run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    // What a panic leaves behind is a string of this call, or a table that is only read.
    let reason = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => {
            let message = panic.downcast_ref::<&str>().map(|text| text.to_string());
            message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_string())
        }
    };
    Err(TokenizerError::Component { part, reason: reason.chars().take(200).collect() }.into())
}
