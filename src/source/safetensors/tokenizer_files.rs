//! The tokenizer's files of a Hugging Face directory, as metadata in GGUF's key convention.
//!
//! Called when such a directory is opened. Knows files and keys; what tokens mean to text is the tokenizer's business.
//!
//! | key | from |
//! |---|---|
//! | `tokenizer.huggingface.json` | the text of `tokenizer.json` |
//! | `tokenizer.ggml.*` | `tokenizer.model`, where there is no `tokenizer.json` |
//! | `tokenizer.chat_template`, `tokenizer.chat_template.NAME` | `chat_template.jinja`, else `chat_template.json`, else `tokenizer_config.json` |
//! | `tokenizer.ggml.add_bos_token`, `..add_eos_token` | `tokenizer_config.json` |
//! | `candlewick.tokenizer.{bos,eos,unk,pad}_token` (texts) | `tokenizer_config.json`, else `special_tokens_map.json` |
//! | `candlewick.eos_token_ids` (all ids that end generation) | `generation_config.json`, else `config.json` |
//! | `tokenizer.ggml.{bos,eos,padding}_token_id`, where nothing above set them | the same two |

mod sentencepiece;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use self::sentencepiece::AddedToken;
use crate::source::metadata::{Array, Metadata, Value};
use crate::{Result, SourceError, TokenizerError};

/// Bytes of a `tokenizer.json`; the largest published one has 35 MB.
const MAX_TOKENIZER: u64 = 64 << 20;
const MAX_SENTENCEPIECE: u64 = 64 << 20;
const MAX_CONFIG: u64 = 16 << 20;
const MAX_TEMPLATE: u64 = 4 << 20;

/// Named templates of one model.
const MAX_TEMPLATES: usize = 256;

/// Sets the tokenizer's keys from the files of `directory`. A directory without a tokenizer sets none.
///
/// # Errors
/// A file that cannot be read, is too large or malformed, and values of a wrong type; each names the file, and the key
/// in it.
pub(super) fn read(directory: &Path, metadata: &mut Metadata) -> Result<()> {
    let config = Config::read(directory, "tokenizer_config.json")?;
    match text(directory.join("tokenizer.json"), MAX_TOKENIZER)? {
        Some(json) => {
            metadata.insert("tokenizer.huggingface.json", json.into());
        }
        None => {
            let path = directory.join("tokenizer.model");
            if let Some(bytes) = bytes(&path, MAX_SENTENCEPIECE)? {
                let added = added_tokens(&config, &Config::read(directory, "added_tokens.json")?)?;
                sentencepiece::read(&path.display().to_string(), &bytes, &added, metadata)?;
            }
        }
    }
    for (key, name) in
        [("tokenizer.ggml.add_bos_token", "add_bos_token"), ("tokenizer.ggml.add_eos_token", "add_eos_token")]
    {
        if let Some(flag) = config.bool(name)? {
            metadata.insert(key, flag.into());
        }
    }
    let map = Config::read(directory, "special_tokens_map.json")?;
    for name in ["bos_token", "eos_token", "unk_token", "pad_token"] {
        let token = match config.token(name)? {
            Some(token) => Some(token),
            None => map.token(name)?,
        };
        if let Some(token) = token {
            metadata.insert(format!("candlewick.tokenizer.{name}"), token.into());
        }
    }
    templates(directory, &config, metadata)?;
    ids(directory, metadata)
}

fn ids(directory: &Path, metadata: &mut Metadata) -> Result<()> {
    let generation = Config::read(directory, "generation_config.json")?;
    let model = Config::read(directory, "config.json")?;
    let find = |name: &str| -> Result<Vec<u32>> {
        let found = generation.ids(name)?;
        if found.is_empty() {
            model.ids(name)
        } else {
            Ok(found)
        }
    };
    let eos = find("eos_token_id")?;
    let first = [("eos", eos.first().copied()), ("bos", find("bos_token_id")?.first().copied())];
    for (name, id) in first.into_iter().chain([("padding", find("pad_token_id")?.first().copied())]) {
        let key = format!("tokenizer.ggml.{name}_token_id");
        if let (Some(id), None) = (id, metadata.value(&key)) {
            metadata.insert(key, id.into());
        }
    }
    if !eos.is_empty() {
        metadata.insert("candlewick.eos_token_ids", Value::Array(Array::U32(eos)));
    }
    Ok(())
}

fn templates(directory: &Path, config: &Config, metadata: &mut Metadata) -> Result<()> {
    const KEY: &str = "tokenizer.chat_template";
    if let Some(template) = text(directory.join("chat_template.jinja"), MAX_TEMPLATE)? {
        metadata.insert(KEY, template.into());
        return Ok(());
    }
    let alone = Config::read(directory, "chat_template.json")?;
    for config in [&alone, config] {
        match config.value("chat_template") {
            None => continue,
            Some(Json::String(template)) => {
                metadata.insert(KEY, template.as_str().into());
            }
            Some(Json::Array(named)) if named.len() <= MAX_TEMPLATES => {
                for entry in named {
                    let part = |part: &str| entry.get(part).and_then(Json::as_str);
                    let (Some(name), Some(template)) = (part("name"), part("template")) else {
                        return Err(config.wrong("chat_template", "objects with a name and a template", entry));
                    };
                    let key = if name == "default" { KEY.to_string() } else { format!("{KEY}.{name}") };
                    metadata.insert(key, template.into());
                }
            }
            Some(other) => return Err(config.wrong("chat_template", "a text, or at most 256 named ones", other)),
        }
        break;
    }
    Ok(())
}

/// Tokens beside the pieces of `tokenizer.model`, by ascending id.
fn added_tokens(config: &Config, older: &Config) -> Result<Vec<AddedToken>> {
    const DECODER: &str = "added_tokens_decoder";
    let mut tokens = Vec::new();
    match config.value(DECODER) {
        None => {}
        Some(Json::Object(entries)) => {
            for (id, entry) in entries {
                let found = (id.parse().ok(), entry.get("content").and_then(Json::as_str), entry.get("special"));
                let (Some(id), Some(text), special) = found else {
                    return Err(config.wrong(DECODER, "ids with objects that have a `content`", entry));
                };
                let is_control = special.and_then(Json::as_bool).unwrap_or(false) || looks_like_control(text);
                tokens.push(AddedToken { id, text: text.to_string(), is_control });
            }
        }
        Some(other) => return Err(config.wrong(DECODER, "an object", other)),
    }
    for (text, id) in &older.values {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| older.wrong(text, "a token id", older.value(text).unwrap_or(&Json::Null)))?;
        if tokens.iter().all(|token| token.id != id) {
            tokens.push(AddedToken { id, text: text.clone(), is_control: looks_like_control(text) });
        }
    }
    tokens.sort_by_key(|token| token.id);
    Ok(tokens)
}

/// Texts that steer models although some files do not call them special.
fn looks_like_control(text: &str) -> bool {
    text.starts_with("<|") && text.ends_with("|>")
}

/// A small JSON file; one that is absent has no values.
struct Config {
    path: PathBuf,
    values: Map<String, Json>,
}

impl Config {
    fn read(directory: &Path, name: &str) -> Result<Config> {
        let path = directory.join(name);
        let Some(text) = text(path.clone(), MAX_CONFIG)? else { return Ok(Config { path, values: Map::new() }) };
        // The parser itself refuses more than 128 levels.
        let damaged = |reason: String| TokenizerError::ConfigFile { file: path.display().to_string(), reason };
        match serde_json::from_str(&text) {
            Ok(Json::Object(values)) => Ok(Config { values, path }),
            Ok(_) => Err(damaged("expected an object".to_string()).into()),
            Err(error) => Err(damaged(error.to_string()).into()),
        }
    }

    /// The value of a key; null counts as absent.
    fn value(&self, key: &str) -> Option<&Json> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    fn bool(&self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Json::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, "a bool", other)),
        }
    }

    /// A token's text: a string, or an object with its `content`.
    fn token(&self, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let text = value.as_str().or_else(|| value.get("content").and_then(Json::as_str));
        text.map(Some).ok_or_else(|| self.wrong(key, "a text, or an object with a `content`", value))
    }

    /// Token ids: one or a list; −1 stands for none. In files of models for several kinds of input, those of its
    /// language part.
    fn ids(&self, key: &str) -> Result<Vec<u32>> {
        let nested = || self.value("text_config").and_then(|part| part.get(key)).filter(|value| !value.is_null());
        let Some(value) = self.value(key).or_else(nested) else { return Ok(Vec::new()) };
        let items = match value {
            Json::Array(items) => &items[..],
            one => std::slice::from_ref(one),
        };
        let mut ids = Vec::with_capacity(items.len());
        for item in items {
            match (item.as_i64(), item.as_u64().map(u32::try_from)) {
                (_, Some(Ok(id))) => ids.push(id),
                (Some(-1), _) => {}
                _ => return Err(self.wrong(key, "a token id or a list of them", item)),
            }
        }
        Ok(ids)
    }

    fn wrong(&self, key: &str, expected: &str, found: &Json) -> crate::Error {
        let found = match found {
            Json::Array(_) => "an array".to_string(),
            Json::Object(_) => "an object".to_string(),
            other => other.to_string().chars().take(60).collect(),
        };
        SourceError::InvalidKey {
            source_name: self.path.display().to_string(),
            key: key.chars().take(60).collect(),
            expected: expected.to_string(),
            found,
        }
        .into()
    }
}

fn text(path: PathBuf, limit: u64) -> Result<Option<String>> {
    let Some(bytes) = bytes(&path, limit)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|error| {
        let index = error.utf8_error().valid_up_to();
        let byte = error.as_bytes().get(index).copied().unwrap_or(0);
        let source_name = path.display().to_string();
        SourceError::InvalidUtf8 { source_name, what: "the file".to_string(), index, byte }.into()
    })
}

/// The content of a file; `None` if there is none.
fn bytes(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let failed = |error: std::io::Error| SourceError::Io { path: path.to_path_buf(), error };
    let kind = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error).into()),
    };
    // Opening a pipe would wait for a writer.
    if !kind.is_file() {
        return Err(failed(std::io::Error::other("it is not a regular file")).into());
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > limit {
        let (source_name, what) = (path.display().to_string(), "the file, in bytes".to_string());
        return Err(SourceError::LimitExceeded { source_name, what, found: kind.len(), limit }.into());
    }
    Ok(Some(bytes))
}
