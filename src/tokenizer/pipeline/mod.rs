//! Tokenizers from a `tokenizer.json`: added tokens, normalizer, pre-tokenizer and model in the order of the file.
//!
//! Stands where `special`, `pre` and the algorithms stand for vocabularies of GGUF, and uses them where the file's parts
//! have a known shape (`linear`); the rest runs in the `tokenizers` crate (`foreign`), which defines what all of them
//! mean. Ids equal the crate's, with two differences: control tokens arise from text only where they are asked for, and
//! text that no token expresses is an error instead of being lost.

mod added;
mod foreign;
mod json;
mod linear;
mod window;

use serde_json::Value;

pub(crate) use foreign::ForeignDecoder;
pub(crate) use json::File;
pub(crate) use window::Window;

use self::added::AddedTokens;
use self::foreign::{Cutting, Foreign, ForeignModel};
use self::json::{field, unsupported, AddedToken};
use self::linear::{kind, steps, Linear, Prepend};
use super::bpe::{split_merge, Bpe, Scratch, Unknown};
use super::pre::{Splitter, Writing};
use super::special::Scope;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::{Result, TokenId, TokenizerError};

const MERGES: &str = "model.merges";

/// Text in `tokenizers` crate's form takes some thirty times its size.
const MAX_FOREIGN_TEXT: usize = 1 << 26;

/// The steps of a `tokenizer.json`.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Found in the text as it is.
    raw: AddedTokens,
    /// Found in normalized text.
    normalized: AddedTokens,
    stages: Stages,
    model: Model,
}

#[derive(Debug)]
enum Stages {
    Linear(Linear),
    Foreign(Box<Foreign>),
}

#[derive(Debug)]
enum Model {
    Bpe(Bpe),
    Foreign(Box<ForeignModel>),
}

/// How tokens are turned back into text.
#[derive(Debug)]
pub(crate) enum Decoding {
    /// Each by itself, bytes joined.
    Writing(Writing),
    /// By the crate, some at a time.
    Foreign(ForeignDecoder),
}

impl Pipeline {
    /// Builds the steps over the file's vocabulary, whose kinds say what is a control token.
    pub(crate) fn new(file: &File, vocabulary: &Vocabulary, unknown: Option<TokenId>) -> Result<Pipeline> {
        let (normalizer, pre_tokenizer) = (file.part("normalizer"), file.part("pre_tokenizer"));
        let is_bpe = file.model_type()? == "BPE";
        let known = if is_bpe { linear::recognize(normalizer, pre_tokenizer) } else { None };
        let (stages, splitter, writing) = match known {
            Some((linear, splitter)) => {
                let writing = linear.writing;
                (Stages::Linear(linear), splitter, writing)
            }
            None => {
                (Stages::Foreign(Box::new(Foreign::new(normalizer, pre_tokenizer)?)), Splitter::whole(), Writing::Plain)
            }
        };
        let model = match file.model_type()? {
            "BPE" => Model::Bpe(bpe(file, vocabulary, splitter, writing, unknown)?),
            kind @ ("Unigram" | "WordPiece" | "WordLevel") => {
                Model::Foreign(Box::new(ForeignModel::new(kind, file.part("model"), vocabulary)?))
            }
            other => return Err(unsupported("model", Some(other))),
        };
        let (normalized, raw): (Vec<_>, Vec<_>) = file.added.iter().cloned().partition(|token| token.normalized);
        let raw = raw.into_iter().map(|token| (token.content.clone(), token)).collect();
        let normalized = normalized
            .into_iter()
            .map(|token| Ok((stages.normalize(&token.content)?, token)))
            .collect::<Result<Vec<_>>>()?;
        let is_control = |token: &AddedToken| {
            matches!(vocabulary.kind(token.id), Some(TokenKind::Control | TokenKind::Unknown) | None)
        };
        Ok(Pipeline {
            raw: AddedTokens::new(raw, is_control)?,
            normalized: AddedTokens::new(normalized, is_control)?,
            stages,
            model,
        })
    }

    /// Appends the tokens of `text`; with a `guard` as `Tokenizer::encode_guarded`.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        scope: Scope,
        guard: Option<char>,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        match &self.stages {
            Stages::Foreign(foreign) => {
                if text.len() > MAX_FOREIGN_TEXT {
                    return Err(TokenizerError::TextTooLong { bytes: text.len(), limit: MAX_FOREIGN_TEXT }.into());
                }
                let mut scratch = Scratch::default();
                let cutting = Cutting { raw: &self.raw, normalized: &self.normalized, scope, guard };
                foreign.split(text, cutting, &mut |id, piece| match id {
                    Some(id) => {
                        out.push(id);
                        Ok(())
                    }
                    None => self.encode_piece(vocabulary, piece, &mut scratch, out),
                })
            }
            Stages::Linear(linear) => {
                let run = &mut LinearRun {
                    pipeline: self,
                    linear,
                    vocabulary,
                    scope,
                    guard,
                    scratch: Scratch::default(),
                    out,
                };
                run.text(text)
            }
        }
    }

    fn encode_piece(
        &self,
        vocabulary: &Vocabulary,
        piece: &str,
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        match &self.model {
            Model::Bpe(bpe) => bpe.encode_with(vocabulary, piece, scratch, out),
            Model::Foreign(model) => model.encode(vocabulary, piece, out),
        }
    }
}

/// One text on its way through the linear stages.
struct LinearRun<'a> {
    pipeline: &'a Pipeline,
    linear: &'a Linear,
    vocabulary: &'a Vocabulary,
    scope: Scope,
    guard: Option<char>,
    scratch: Scratch,
    out: &'a mut Vec<TokenId>,
}

impl LinearRun<'_> {
    fn text(&mut self, text: &str) -> Result<()> {
        let pipeline = self.pipeline;
        // Where control tokens are found in normalized text only, the guards have to stay until then.
        let guard = self.guard.filter(|_| !pipeline.normalized.has_control());
        pipeline.raw.cut(text, self.scope, &mut |id, range| {
            let at_start = range.start == 0;
            match (id, guard) {
                (Some(id), _) => self.token(id),
                (None, Some(guard)) if text[range.clone()].contains(guard) => {
                    let plain = text[range].replace(guard, "");
                    // Tokens that text of users may hold appear once the guards are gone.
                    pipeline.raw.cut(&plain, Scope::UserDefined, &mut |id, range| match id {
                        Some(id) => self.token(id),
                        None => self.normalize(&plain[range.clone()], at_start && range.start == 0),
                    })
                }
                (None, _) => self.normalize(&text[range], at_start),
            }
        })
    }

    fn token(&mut self, id: TokenId) -> Result<()> {
        self.out.push(id);
        Ok(())
    }

    fn normalize(&mut self, text: &str, at_start: bool) -> Result<()> {
        let pipeline = self.pipeline;
        let text = self.linear.normalize(text);
        pipeline.normalized.cut(&text, self.scope, &mut |id, range| {
            let at_start = at_start && range.start == 0;
            match (id, self.guard) {
                (Some(id), _) => self.token(id),
                (None, Some(guard)) if text[range.clone()].contains(guard) => {
                    let plain = text[range].replace(guard, "");
                    pipeline.normalized.cut(&plain, Scope::UserDefined, &mut |id, range| match id {
                        Some(id) => self.token(id),
                        None => self.pieces(&plain[range.clone()], at_start && range.start == 0),
                    })
                }
                (None, _) => self.pieces(&text[range], at_start),
            }
        })
    }

    fn pieces(&mut self, text: &str, at_start: bool) -> Result<()> {
        let marked = self.linear.metaspace.map(|marking| marking.apply(text, at_start));
        let text = marked.as_deref().unwrap_or(text);
        self.pipeline.encode_piece(self.vocabulary, text, &mut self.scratch, self.out)
    }
}

impl Stages {
    fn normalize(&self, text: &str) -> Result<String> {
        match self {
            Stages::Linear(linear) => Ok(linear.normalize(text).into_owned()),
            Stages::Foreign(foreign) => foreign.normalize(text),
        }
    }
}

fn bpe(
    file: &File,
    vocabulary: &Vocabulary,
    splitter: Splitter,
    writing: Writing,
    unknown: Option<TokenId>,
) -> Result<Bpe> {
    let model = file.model()?;
    if model.get("dropout").and_then(Value::as_f64).is_some_and(|dropout| dropout != 0.0) {
        return Err(unsupported("model", Some("BPE with dropout")));
    }
    for affix in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model.get(affix).and_then(Value::as_str).is_some_and(|affix| !affix.is_empty()) {
            return Err(unsupported("model", Some(&format!("BPE with {affix}"))));
        }
    }
    let unknown = match unknown.filter(|&id| vocabulary.kind(id) != Some(TokenKind::Control)) {
        None => Unknown::None,
        Some(id) if file.model_flag("fuse_unk")? => Unknown::PerRun(id),
        Some(id) => Unknown::PerCharacter(id),
    };
    let merges = file.merges()?;
    let ignore_merges = file.model_flag("ignore_merges")?;
    let mut bpe = Bpe::without_merges(vocabulary, splitter, writing, ignore_merges, false, unknown);
    if writing != Writing::ByteLevel && !file.model_flag("byte_fallback")? {
        bpe.forget_bytes();
    }
    let pairs = merges.iter().map(|merge| {
        let pair = match merge {
            Value::String(merge) => split_merge(merge),
            Value::Array(pair) => match &pair[..] {
                [Value::String(left), Value::String(right)] => Some((left.as_str(), right.as_str())),
                _ => None,
            },
            _ => None,
        };
        pair.ok_or_else(|| field(MERGES, "pairs of texts", merge))
    });
    bpe.add_merges(vocabulary, MERGES, merges.len(), pairs)?;
    Ok(bpe)
}

/// How the file's decoder works, and whether text gets a space before it that decoding takes away.
pub(crate) fn decoding(file: &File) -> Result<(Decoding, bool)> {
    let decoder = file.part("decoder");
    let puts_space = |part: &str, list: &str| {
        steps(file.part(part), list).unwrap_or_default().iter().any(|step| match kind(step) {
            "Prepend" => true,
            "Metaspace" => linear::metaspace(step).is_some_and(|marking| marking.0 != Prepend::Never),
            "ByteLevel" => step.get("add_prefix_space").and_then(Value::as_bool) == Some(true),
            _ => false,
        })
    };
    let adds_space = puts_space("normalizer", "normalizers") || puts_space("pre_tokenizer", "pretokenizers");
    let steps = steps(decoder, "decoders").unwrap_or_default();
    let text = |step: &Value, at: &str| step.pointer(at).and_then(Value::as_str).map(str::to_string);
    let known = steps.iter().map(|step| match kind(step) {
        "ByteLevel" => Some("ByteLevel"),
        "ByteFallback" => Some("ByteFallback"),
        "Fuse" => Some("Fuse"),
        "Metaspace" if linear::metaspace(step).is_some() => Some("Metaspace"),
        "Replace"
            if text(step, "/pattern/String").as_deref() == Some("\u{2581}")
                && text(step, "/content").as_deref() == Some(" ") =>
        {
            Some("Unmark")
        }
        "Strip"
            if text(step, "/content").as_deref() == Some(" ")
                && step.get("start").and_then(Value::as_u64) == Some(1)
                && step.get("stop").and_then(Value::as_u64) == Some(0) =>
        {
            Some("Strip")
        }
        _ => None,
    });
    Ok(match known.collect::<Option<Vec<_>>>().as_deref() {
        Some(["ByteLevel"]) => (Decoding::Writing(Writing::ByteLevel), adds_space),
        // What is taken away at the start of a text only is the space that was put there.
        Some(["Metaspace"] | ["Unmark", "ByteFallback", "Fuse", "Strip"]) => {
            (Decoding::Writing(Writing::Marked), adds_space)
        }
        Some(["Unmark", "ByteFallback", "Fuse"] | ["Unmark", "Fuse"] | ["Unmark"]) => {
            (Decoding::Writing(Writing::Marked), adds_space)
        }
        _ => (Decoding::Foreign(ForeignDecoder::new(decoder)?), false),
    })
}
