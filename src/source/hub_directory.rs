//! Fetching all that a model in the directory layout needs: configuration, tokenizer, and safetensors weights.
//!
//! Above [`Hub::fetch`], which brings one file. All files come from one commit, so that a repository that changes
//! meanwhile is never mixed. Must not know what the files say, except which shards an index names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{check_file, is_plain_name, Hub};
use crate::error::HubErrorKind;
use crate::Result;

const CONFIG: &str = "config.json";
const TOKENIZERS: [&str; 2] = ["tokenizer.json", "tokenizer.model"];
const OPTIONAL: [&str; 6] = [
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Real ones have some hundred kilobytes.
const MAX_INDEX_BYTES: u64 = 32 << 20;
const MAX_SHARDS: usize = 4096;

impl Hub {
    /// The directory of a model that comes as `config.json`, `tokenizer.json` or `tokenizer.model`, and safetensors
    /// weights (`model.safetensors`, or all shards that `model.safetensors.index.json` names), with the further files
    /// of its tokenizer and chat template where the repository has them.
    ///
    /// If the cache has configuration, tokenizer and all weights of the revision, nothing is asked of the network: what
    /// is there then counts as the whole model. Else what is missing is fetched, weights last; all from the commit that
    /// the revision means now. `progress` gets the file's name, its bytes that are there and all its bytes.
    ///
    /// # Errors
    /// [`HubError`](crate::HubError): as for [`Hub::fetch`], and [`HubErrorKind::NoModel`] for a repository that lacks
    /// one of these parts or whose index is damaged.
    pub fn fetch_directory(&self, repo: &str, mut progress: impl FnMut(&str, u64, u64)) -> Result<PathBuf> {
        let at = |file: &str, kind| self.error(repo, file, kind);
        self.check(repo).map_err(|kind| at("", kind))?;
        let entry = self.cache().map_err(|kind| at("", kind))?.repo(self.repo(repo));
        // The file at the root of a snapshot that every revision in the cache has.
        if let Some(known) = entry.get(CONFIG).and_then(|path| path.parent().map(Path::to_path_buf)) {
            if self.is_whole(&known) {
                return Ok(known);
            }
        }
        let (commit, files) = self.contents(repo).map_err(|kind| at("", kind))?;
        if !is_plain_name(&commit) {
            return Err(at("", HubErrorKind::Protocol { reason: format!("its commit is {commit:?}") }));
        }
        let has = |name: &str| files.iter().any(|file| file == name);
        let tokenizers: Vec<&str> = TOKENIZERS.into_iter().filter(|name| has(name)).collect();
        let weights = [WEIGHTS, INDEX].into_iter().find(|name| has(name));
        let (Some(weights), false, true) = (weights, tokenizers.is_empty(), has(CONFIG)) else {
            let reason = format!(
                "it lacks one of {CONFIG}, {} and {WEIGHTS} or {INDEX}; name a GGUF file if it has one",
                TOKENIZERS.join(" or ")
            );
            return Err(at("", HubErrorKind::NoModel { reason }));
        };
        let directory = entry.pointer_path(&commit);
        let pinned = self.clone().revision(commit.as_str());
        let mut fetch = |file: &str| {
            let path = directory.join(file);
            // Another revision may have brought it.
            if path.exists() {
                return Ok(path);
            }
            let path = pinned.fetch(repo, file, |done, total| progress(file, done, total))?;
            match path == directory.join(file) {
                true => Ok(path),
                false => Err(at(file, HubErrorKind::Protocol { reason: "it belongs to another commit".to_string() })),
            }
        };
        for file in OPTIONAL.into_iter().filter(|name| has(name)).chain([CONFIG]).chain(tokenizers) {
            fetch(file)?;
        }
        let weights = fetch(weights)?;
        if weights.ends_with(INDEX) {
            for shard in shards(&weights).map_err(|kind| at(INDEX, kind))? {
                fetch(&shard)?;
            }
        }
        // Only now does the revision lead here: a fetch that was broken off is taken up again.
        entry.create_ref(&commit).map_err(|error| at("", self.io(error)))?;
        Ok(directory)
    }

    /// Whether a snapshot has all that a model needs.
    fn is_whole(&self, directory: &Path) -> bool {
        let has = |name: &str| directory.join(name).exists();
        if !has(CONFIG) || !TOKENIZERS.iter().any(|name| has(name)) {
            return false;
        }
        has(WEIGHTS) || shards(&directory.join(INDEX)).is_ok_and(|shards| shards.iter().all(|shard| has(shard)))
    }
}

/// The shards that an index names, each once. Names are parts of paths here, and an index is a file like any other.
fn shards(index: &Path) -> Result<BTreeSet<String>, HubErrorKind> {
    let no_model = |reason: String| HubErrorKind::NoModel { reason };
    let damaged = |error: &dyn std::fmt::Display| no_model(format!("its {INDEX} cannot be read: {error}"));
    let size = fs::metadata(index).map_err(|error| damaged(&error))?.len();
    if size > MAX_INDEX_BYTES {
        return Err(no_model(format!("its {INDEX} has {size} bytes, more than {MAX_INDEX_BYTES}")));
    }
    let bytes = fs::read(index).map_err(|error| damaged(&error))?;
    let index: serde_json::Value = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
    let map = index.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| no_model(format!("its {INDEX} has no `weight_map`")))?;
    let mut shards = BTreeSet::new();
    for (tensor, shard) in map {
        let shard = shard.as_str().filter(|shard| check_file(shard).is_ok() && shard.ends_with(".safetensors"));
        let Some(shard) = shard else {
            let tensor: String = tensor.chars().take(80).collect();
            return Err(no_model(format!("its {INDEX} names no safetensors file of the repository for {tensor:?}")));
        };
        shards.insert(shard.to_string());
        if shards.len() > MAX_SHARDS {
            return Err(no_model(format!("its {INDEX} names more than {MAX_SHARDS} files")));
        }
    }
    match shards.is_empty() {
        true => Err(no_model(format!("its {INDEX} names no file"))),
        false => Ok(shards),
    }
}

#[cfg(test)]
#[path = "hub_directory_tests.rs"]
mod tests;
