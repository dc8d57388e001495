//! The tables of a `tokenizer.json`: its entries, their kinds, merges, and the tokens around a document.
//!
//! First step of the pipeline's construction: turns JSON, which is hostile, into checked tables. Knows no text.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::linear::{kind, steps};
use crate::tokenizer::vocabulary::{parse_byte, TokenKind, Vocabulary};
use crate::{Result, TokenId, TokenizerError};

/// The text of the file that is accepted, in bytes; the largest published one has 35 MB.
const MAX_FILE: usize = 64 << 20;

/// Bytes of an added token's text.
const MAX_ADDED: usize = 4096;

/// Levels of a normalizer, pre-tokenizer, decoder or post-processor.
const MAX_DEPTH: usize = 16;

/// Ids may have holes, but not so many that the table is mostly empty.
const HOLES: usize = 1024;

/// A token that is cut out of text before the algorithm runs.
#[derive(Clone, Debug)]
pub(crate) struct AddedToken {
    pub(crate) id: TokenId,
    pub(crate) content: String,
    /// Matches only where no word character is beside it.
    pub(crate) single_word: bool,
    /// Swallows the white space to its left.
    pub(crate) lstrip: bool,
    /// Swallows the white space to its right.
    pub(crate) rstrip: bool,
    /// Found in normalized text, by its normalized text.
    pub(crate) normalized: bool,
    pub(crate) special: bool,
}

/// A file whose outer shape was checked.
#[derive(Debug)]
pub(crate) struct File {
    root: Map<String, Value>,
    pub(crate) added: Vec<AddedToken>,
}

impl File {
    pub(crate) fn parse(json: &str) -> Result<File> {
        if json.len() > MAX_FILE {
            let reason = format!("it has {} bytes, more than the limit of {MAX_FILE}", json.len());
            return Err(TokenizerError::Json { reason }.into());
        }
        // The parser itself refuses more than 128 levels.
        let root = match serde_json::from_str(json) {
            Ok(Value::Object(root)) => root,
            Ok(other) => return Err(field("the file", "an object", &other)),
            Err(error) => return Err(TokenizerError::Json { reason: error.to_string() }.into()),
        };
        let mut file = File { root, added: Vec::new() };
        for part in ["normalizer", "pre_tokenizer", "decoder", "post_processor"] {
            if depth_exceeds(file.part(part), MAX_DEPTH) {
                let reason = format!("`{part}` is nested deeper than {MAX_DEPTH} levels");
                return Err(TokenizerError::Json { reason }.into());
            }
        }
        file.added = match file.root.get("added_tokens") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(tokens)) => tokens.iter().map(added_token).collect::<Result<_>>()?,
            Some(other) => return Err(field("added_tokens", "an array", other)),
        };
        file.added.retain(|token| !token.content.is_empty());
        Ok(file)
    }

    /// A part of the file; null where it is absent.
    pub(crate) fn part(&self, name: &str) -> &Value {
        self.root.get(name).unwrap_or(&Value::Null)
    }

    pub(crate) fn model(&self) -> Result<&Map<String, Value>> {
        match self.part("model") {
            Value::Object(model) => Ok(model),
            other => Err(field("model", "an object", other)),
        }
    }

    /// The model's type; files of the first years do not name it.
    pub(crate) fn model_type(&self) -> Result<&str> {
        let model = self.model()?;
        match model.get("type") {
            Some(Value::String(kind)) => Ok(kind),
            Some(other) => Err(field("model.type", "a string", other)),
            None if model.contains_key("merges") => Ok("BPE"),
            None if model.contains_key("unk_id") => Ok("Unigram"),
            None if model.contains_key("continuing_subword_prefix") => Ok("WordPiece"),
            None => Ok("WordLevel"),
        }
    }

    /// A flag of the model; absent and null mean no.
    pub(crate) fn model_flag(&self, name: &'static str) -> Result<bool> {
        match self.model()?.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(field(&format!("model.{name}"), "a bool", other)),
        }
    }

    /// All entries with their kinds. The unknown token's id, where the model has one.
    pub(crate) fn vocabulary(&self) -> Result<(Vocabulary, Option<TokenId>)> {
        let model = self.model()?;
        let mut entries: Vec<(&str, u64)> = Vec::new();
        match model.get("vocab") {
            Some(Value::Object(vocab)) => {
                for (text, id) in vocab {
                    let id = id.as_u64().ok_or_else(|| field(&format!("model.vocab[{}]", shown(text)), "an id", id))?;
                    entries.push((text, id));
                }
            }
            // Unigram models list pairs of text and score.
            Some(Value::Array(vocab)) => {
                for (index, entry) in (0u64..).zip(vocab) {
                    let text = entry.get(0).and_then(Value::as_str);
                    entries.push((
                        text.ok_or_else(|| field(&format!("model.vocab[{index}]"), "a pair of text and score", entry))?,
                        index,
                    ));
                }
            }
            other => return Err(field("model.vocab", "an object of ids", other.unwrap_or(&Value::Null))),
        }
        let in_model: HashMap<&str, u64> = entries.iter().copied().collect();
        for token in &self.added {
            match in_model.get(token.content.as_str()) {
                Some(&id) if id == u64::from(token.id) => {}
                Some(&id) => {
                    let found = format!("{}, but the model's vocabulary says {id}", token.id);
                    let field = format!("added_tokens: id of {}", shown(&token.content));
                    return Err(TokenizerError::JsonField { field, expected: "one id per token", found }.into());
                }
                None => entries.push((&token.content, u64::from(token.id))),
            }
        }
        if entries.is_empty() {
            return Err(TokenizerError::EmptyVocabulary.into());
        }
        let largest = entries.iter().map(|&(_, id)| id).max().unwrap_or(0);
        let limit = entries.len() as u64 * 2 + HOLES as u64;
        if largest >= limit || largest >= u64::from(u32::MAX / 2) {
            return Err(TokenizerError::SparseIds { largest, tokens: entries.len() }.into());
        }
        let mut texts = vec![String::new(); largest as usize + 1];
        let mut kinds = vec![TokenKind::Unused; texts.len()];
        // Decoders turn such entries into bytes whether the model makes them or not.
        let decodes_bytes = steps(self.part("decoder"), "decoders").unwrap_or_default();
        let byte_fallback =
            self.model_flag("byte_fallback")? || decodes_bytes.iter().any(|step| kind(step) == "ByteFallback");
        for &(text, id) in &entries {
            let slot = &mut texts[id as usize];
            if !slot.is_empty() && slot != text {
                let found = format!("{id} for {} and {}", shown(slot), shown(text));
                let field = "model.vocab and added_tokens".to_string();
                return Err(TokenizerError::JsonField { field, expected: "one token per id", found }.into());
            }
            *slot = text.to_string();
            kinds[id as usize] =
                if byte_fallback && parse_byte(text).is_some() { TokenKind::Byte } else { TokenKind::Normal };
        }
        for token in &self.added {
            // What is also in the model's vocabulary may arise from text by itself and is written as it writes.
            if token.special || looks_like_control(&token.content) {
                kinds[token.id as usize] = TokenKind::Control;
            } else if !in_model.contains_key(token.content.as_str()) {
                kinds[token.id as usize] = TokenKind::UserDefined;
            }
        }
        let unknown = self.unknown(&entries)?;
        // Where text that has no token would become the end of the text, it has to be an error instead.
        if let Some(id) = unknown.filter(|&id| !looks_like_control(&texts[id as usize])) {
            kinds[id as usize] = TokenKind::Unknown;
        }
        Ok((Vocabulary::new(&texts, kinds, true), unknown))
    }

    fn unknown(&self, entries: &[(&str, u64)]) -> Result<Option<TokenId>> {
        let model = self.model()?;
        let named = |id: u64| entries.iter().any(|entry| entry.1 == id).then_some(id as TokenId);
        match (model.get("unk_token"), model.get("unk_id")) {
            (Some(Value::String(text)), _) => {
                Ok(entries.iter().find(|entry| entry.0 == text).map(|entry| entry.1 as TokenId))
            }
            (None | Some(Value::Null), None | Some(Value::Null)) => Ok(None),
            (None | Some(Value::Null), Some(id)) => match id.as_u64().and_then(named) {
                Some(id) => Ok(Some(id)),
                None => Err(field("model.unk_id", "an id of the vocabulary", id)),
            },
            (Some(other), _) => Err(field("model.unk_token", "a string", other)),
        }
    }

    /// The merges, lowest rank first, as pairs or as texts with a space between.
    pub(crate) fn merges(&self) -> Result<&[Value]> {
        match self.model()?.get("merges") {
            Some(Value::Array(merges)) => Ok(merges),
            other => Err(field("model.merges", "an array", other.unwrap_or(&Value::Null))),
        }
    }

    /// The tokens before and after a document.
    pub(crate) fn affixes(&self, vocabulary: &Vocabulary) -> Result<(Vec<TokenId>, Vec<TokenId>)> {
        affixes(self.part("post_processor"), vocabulary)
    }
}

fn affixes(processor: &Value, vocabulary: &Vocabulary) -> Result<(Vec<TokenId>, Vec<TokenId>)> {
    const PART: &str = "post_processor";
    let none = (Vec::new(), Vec::new());
    let known = |id: u64| {
        TokenId::try_from(id).ok().filter(|&id| (id as usize) < vocabulary.len()).ok_or_else(|| {
            let found = id.to_string();
            TokenizerError::JsonField { field: PART.to_string(), expected: "ids of the vocabulary", found }
        })
    };
    if processor.is_null() {
        return Ok(none);
    }
    match processor.get("type").and_then(Value::as_str) {
        Some("ByteLevel") => Ok(none),
        Some("BertProcessing" | "RobertaProcessing") => {
            let id = |name: &str| {
                let value = processor.get(name).and_then(|pair| pair.get(1));
                let id = value.and_then(Value::as_u64);
                id.ok_or_else(|| field(&format!("{PART}.{name}"), "a pair of text and id", processor))
            };
            Ok((vec![known(id("cls")?)?], vec![known(id("sep")?)?]))
        }
        Some("Sequence") => {
            let steps = processor.get("processors").and_then(Value::as_array);
            let steps = steps.ok_or_else(|| field("post_processor.processors", "an array", processor))?;
            let mut all = none;
            for step in steps {
                let (prefix, suffix) = affixes(step, vocabulary)?;
                all.0.splice(0..0, prefix);
                all.1.extend(suffix);
            }
            Ok(all)
        }
        Some("TemplateProcessing") => {
            let single = processor.get("single").and_then(Value::as_array);
            let single = single.ok_or_else(|| field("post_processor.single", "an array", processor))?;
            let (mut all, mut texts) = (none, 0);
            for piece in single {
                if piece.pointer("/Sequence/id").and_then(Value::as_str) == Some("A") {
                    texts += 1;
                    continue;
                }
                let name = piece.pointer("/SpecialToken/id").and_then(Value::as_str);
                let special = name.and_then(|name| processor.get("special_tokens")?.get(name));
                let ids = special.and_then(|special| special.get("ids")?.as_array());
                let ids = ids.ok_or_else(|| field("post_processor.single", "sequence A and special tokens", piece))?;
                for id in ids {
                    let id = id.as_u64().ok_or_else(|| field("post_processor.special_tokens", "ids", id))?;
                    if texts == 0 { &mut all.0 } else { &mut all.1 }.push(known(id)?);
                }
            }
            if texts != 1 {
                let found = format!("{texts} of them");
                let field = "post_processor.single".to_string();
                return Err(TokenizerError::JsonField { field, expected: "sequence A once", found }.into());
            }
            Ok(all)
        }
        other => Err(unsupported(PART, other)),
    }
}

fn added_token(value: &Value) -> Result<AddedToken> {
    let name = "added_tokens";
    let flag = |flag: &str| match value.get(flag) {
        None => Ok(false),
        Some(Value::Bool(set)) => Ok(*set),
        Some(other) => Err(field(&format!("{name}: {flag}"), "a bool", other)),
    };
    let content = value.get("content").and_then(Value::as_str);
    let content = content.ok_or_else(|| field(name, "objects with the string `content`", value))?;
    if content.len() > MAX_ADDED {
        return Err(field(&format!("{name}: {}", shown(content)), "a text of at most 4096 bytes", value));
    }
    let id = value.get("id").and_then(Value::as_u64).and_then(|id| TokenId::try_from(id).ok());
    Ok(AddedToken {
        id: id.ok_or_else(|| field(&format!("{name}: id of {}", shown(content)), "an id of 32 bits", value))?,
        content: content.to_string(),
        single_word: flag("single_word")?,
        lstrip: flag("lstrip")?,
        rstrip: flag("rstrip")?,
        normalized: flag("normalized")?,
        special: flag("special")?,
    })
}

/// Texts that steer models although some files do not call them special.
fn looks_like_control(text: &str) -> bool {
    (text.starts_with("<|") && text.ends_with("|>")) || (text.starts_with("<\u{FF5C}") && text.ends_with("\u{FF5C}>"))
}

fn depth_exceeds(value: &Value, limit: usize) -> bool {
    let inside = |value: &Value| limit == 0 || depth_exceeds(value, limit - 1);
    match value {
        Value::Array(items) => items.iter().any(inside),
        Value::Object(items) => items.values().any(inside),
        _ => false,
    }
}

pub(crate) fn field(field: &str, expected: &'static str, found: &Value) -> crate::Error {
    let found = match found {
        Value::Array(_) => "an array".to_string(),
        Value::Object(_) => "an object".to_string(),
        other => shown(&other.to_string()),
    };
    TokenizerError::JsonField { field: field.to_string(), expected, found }.into()
}

pub(crate) fn unsupported(part: &'static str, kind: Option<&str>) -> crate::Error {
    let kind = kind.map_or("without a type".to_string(), shown);
    TokenizerError::UnsupportedPart { part, kind }.into()
}

/// A text from the file as messages show it.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    format!("{short:?}")
}
