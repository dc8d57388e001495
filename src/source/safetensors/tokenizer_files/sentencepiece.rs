//! Reads `tokenizer.model`, SentencePiece's protobuf message, into the keys that GGUF has for such vocabularies.
//!
//! Knows the wire format as far as it is needed: varints, fixed numbers and length-delimited fields. Field numbers and
//! defaults: SentencePiece's `sentencepiece_model.proto`.

use crate::source::metadata::{Array, Metadata, Value};
use crate::{Result, TokenizerError};

/// Entries of a vocabulary, far above every known one.
const MAX_PIECES: usize = 1 << 21;

/// A token that other files add to the pieces.
#[derive(Clone, Debug)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) text: String,
    pub(super) is_control: bool,
}

const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// The score that converters give added tokens: nothing merges into them.
const ADDED_SCORE: f32 = -1000.0;

/// Ids without a token between those of pieces and added tokens.
const MAX_HOLES: usize = 1024;

/// Sets the keys of the vocabulary in `bytes`, which is the content of `file`.
pub(super) fn read(file: &str, bytes: &[u8], added: &[AddedToken], metadata: &mut Metadata) -> Result<()> {
    let mut model = Model::default();
    let mut message = Message { file, bytes, at: 0, base: 0 };
    while let Some((number, field)) = message.next()? {
        match (number, field) {
            (1, Field::Bytes(piece)) => model.read_piece(piece)?,
            (2, Field::Bytes(trainer)) => model.read_trainer(trainer)?,
            (3, Field::Bytes(normalizer)) => model.read_normalizer(normalizer)?,
            _ => {}
        }
    }
    if model.tokens.is_empty() {
        return Err(message.damaged("there is no piece"));
    }
    model.check(file)?;
    model.add(file, added)?;
    model.write(metadata);
    Ok(())
}

#[derive(Debug)]
struct Model {
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i32>,
    model_type: u64,
    /// Spaces stand at the ends of pieces.
    suffixes: bool,
    unknown: i64,
    bos: i64,
    eos: i64,
    padding: i64,
    has_charsmap: bool,
    add_dummy_prefix: bool,
    remove_extra_whitespaces: bool,
    escape_whitespaces: bool,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            tokens: Vec::new(),
            scores: Vec::new(),
            types: Vec::new(),
            model_type: 1,
            suffixes: false,
            unknown: 0,
            bos: 1,
            eos: 2,
            padding: -1,
            has_charsmap: false,
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        }
    }
}

impl Model {
    fn read_piece(&mut self, mut message: Message<'_>) -> Result<()> {
        let (mut text, mut score, mut kind) = ("", 0.0, 1);
        while let Some((number, field)) = message.next()? {
            match (number, field) {
                (1, Field::Bytes(found)) => {
                    let found = std::str::from_utf8(found.bytes);
                    text = found.map_err(|_| message.damaged("the text of a piece is not UTF-8"))?;
                }
                (2, Field::Fixed32(bits)) => score = f32::from_bits(bits),
                (3, Field::Number(found)) => kind = found,
                _ => {}
            }
        }
        if !(1..=6).contains(&kind) {
            return Err(message.damaged("the type of a piece is not from 1 to 6"));
        }
        if self.tokens.len() >= MAX_PIECES {
            return Err(message.damaged("more pieces than any vocabulary has"));
        }
        self.tokens.push(text.to_string());
        self.scores.push(score);
        self.types.push(kind as i32);
        Ok(())
    }

    fn read_trainer(&mut self, mut message: Message<'_>) -> Result<()> {
        while let Some((number, field)) = message.next()? {
            let Field::Number(value) = field else { continue };
            match number {
                3 => self.model_type = value,
                24 => self.suffixes = value != 0,
                40 => self.unknown = value as i64,
                41 => self.bos = value as i64,
                42 => self.eos = value as i64,
                43 => self.padding = value as i64,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, mut message: Message<'_>) -> Result<()> {
        while let Some((number, field)) = message.next()? {
            match (number, field) {
                (2, Field::Bytes(charsmap)) => self.has_charsmap = !charsmap.bytes.is_empty(),
                (3, Field::Number(value)) => self.add_dummy_prefix = value != 0,
                (4, Field::Number(value)) => self.remove_extra_whitespaces = value != 0,
                (5, Field::Number(value)) => self.escape_whitespaces = value != 0,
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses what would give other tokens than the model was trained on.
    fn check(&self, file: &str) -> Result<()> {
        let what = match self.model_type {
            2 if self.has_charsmap => "a normalization table (precompiled_charsmap)".to_string(),
            2 if !self.escape_whitespaces => "escape_whitespaces = false".to_string(),
            2 if self.suffixes => "treat_whitespace_as_suffix = true".to_string(),
            2 => return Ok(()),
            1 => "the SentencePiece model type `unigram`".to_string(),
            3 => "the SentencePiece model type `word`".to_string(),
            4 => "the SentencePiece model type `char`".to_string(),
            other => format!("the SentencePiece model type {other}"),
        };
        Err(TokenizerError::UnsupportedSentencepiece { file: file.to_string(), what }.into())
    }

    fn add(&mut self, file: &str, added: &[AddedToken]) -> Result<()> {
        let pieces = self.tokens.len();
        for token in added {
            let index = token.id as usize;
            let kind = if token.is_control { CONTROL } else { USER_DEFINED };
            if index < self.tokens.len() && self.types[index] != UNUSED {
                if self.tokens[index] != token.text {
                    let what = format!("an added token with the id of another one ({})", token.id);
                    return Err(TokenizerError::UnsupportedSentencepiece { file: file.to_string(), what }.into());
                }
                if token.is_control && self.types[index] != 2 {
                    self.types[index] = kind;
                }
                continue;
            }
            if index >= pieces + added.len() + MAX_HOLES {
                let what = format!("the added token id {} beside {pieces} pieces", token.id);
                return Err(TokenizerError::UnsupportedSentencepiece { file: file.to_string(), what }.into());
            }
            if index >= self.tokens.len() {
                self.tokens.resize(index + 1, String::new());
                self.scores.resize(index + 1, ADDED_SCORE);
                self.types.resize(index + 1, UNUSED);
            }
            self.tokens[index].clone_from(&token.text);
            self.types[index] = kind;
        }
        Ok(())
    }

    fn write(self, metadata: &mut Metadata) {
        metadata.insert("tokenizer.ggml.model", "llama".into());
        for (name, id) in [("unknown", self.unknown), ("bos", self.bos), ("eos", self.eos), ("padding", self.padding)] {
            if let Some(id) = u32::try_from(id).ok().filter(|&id| (id as usize) < self.tokens.len()) {
                metadata.insert(format!("tokenizer.ggml.{name}_token_id"), id.into());
            }
        }
        metadata.insert("tokenizer.ggml.add_space_prefix", self.add_dummy_prefix.into());
        metadata.insert("tokenizer.ggml.remove_extra_whitespaces", self.remove_extra_whitespaces.into());
        metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::String(self.tokens)));
        metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(self.scores)));
        metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(self.types)));
    }
}

/// A message whose fields are read one after another.
#[derive(Clone, Copy)]
struct Message<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Where `bytes` begins in the file.
    base: usize,
}

enum Field<'a> {
    Number(u64),
    Fixed32(u32),
    Fixed64,
    Bytes(Message<'a>),
}

impl<'a> Message<'a> {
    /// The next field with its number; `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, Field<'a>)>> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Field::Fixed64
            }
            2 => {
                let len = self.varint()?;
                let len = usize::try_from(len).map_err(|_| self.damaged("a field is longer than the file"))?;
                let base = self.base + self.at;
                Field::Bytes(Message { file: self.file, bytes: self.take(len)?, at: 0, base })
            }
            5 => match self.take(4)? {
                &[a, b, c, d] => Field::Fixed32(u32::from_le_bytes([a, b, c, d])),
                _ => return Err(self.damaged("a field is cut off")),
            },
            _ => return Err(self.damaged("a field has a wire type that is not used")),
        };
        Ok(Some((key >> 3, field)))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let &[byte] = self.take(1)? else { break };
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.damaged("a number has more than ten bytes"))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| self.damaged("a field reaches beyond the end"))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn damaged(&self, reason: &'static str) -> crate::Error {
        let offset = self.base + self.at;
        TokenizerError::InvalidSentencepiece { file: self.file.to_string(), offset, reason }.into()
    }
}
