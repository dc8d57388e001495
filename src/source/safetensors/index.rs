//! The weights of a directory: one file, or several that an index names.
//!
//! Names of files are hostile: only files within the directory are opened. Must not know names or use of tensors.

use std::collections::HashMap;
use std::path::{Component, Path};

use super::header::{self, Header};
use super::json::Json;
use crate::source::file::PositionedFile;
use crate::source::listing::Listing;
use crate::source::shown;
use crate::{Result, SourceError};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The largest models have some ten MB of names.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Each costs a file handle.
const MAX_FILES: usize = 1000;

/// Opens the files of the directory `name`. Tensors have their own names; they are sorted, each once.
pub(super) fn open(directory: &Path, name: &str) -> Result<Listing> {
    let mut listing = Listing::new(name.to_string());
    let single = directory.join(SINGLE);
    if single.exists() {
        add(&mut listing, &single)?;
        listing.index()?;
        return Ok(listing);
    }
    let path = directory.join(INDEX);
    if !path.exists() {
        let file = format!("{SINGLE}` or `{INDEX}");
        return Err(SourceError::MissingFile { source_name: name.to_string(), file }.into());
    }
    let file = PositionedFile::open(&path)?;
    let text = file.read_whole(MAX_INDEX_BYTES)?;
    let map = read(file.name(), &text)?;
    for file in &map.files {
        let path = directory.join(file);
        if !path.exists() {
            return Err(SourceError::MissingFile { source_name: name.to_string(), file: shown(file) }.into());
        }
        add(&mut listing, &path)?;
    }
    listing.index()?;
    for (tensor, number) in &map.tensors {
        if listing.file_of(tensor) != Some(*number) {
            return Err(SourceError::InconsistentIndex {
                source_name: file.name().to_string(),
                tensor: shown(tensor),
                file: shown(&map.files[*number]),
            }
            .into());
        }
    }
    Ok(listing)
}

fn add(listing: &mut Listing, path: &Path) -> Result<()> {
    let file = PositionedFile::open(path)?;
    let Header { tensors, starts, .. } = header::read(&file)?;
    listing.add(file, tensors, starts);
    Ok(())
}

/// What an index says.
struct Map {
    /// In the order of their first mention.
    files: Vec<String>,
    /// Each tensor with the place of its file.
    tensors: Vec<(String, usize)>,
}

fn read(source_name: &str, text: &[u8]) -> Result<Map> {
    let mut map = Map { files: Vec::new(), tensors: Vec::new() };
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut seen = false;
    let mut json = Json::new(source_name, "the index", text);
    json.object(|json, key| {
        if key != "weight_map" {
            return json.skip();
        }
        if std::mem::replace(&mut seen, true) {
            return Err(SourceError::DuplicateKey { source_name: source_name.to_string(), key }.into());
        }
        json.object(|json, tensor| {
            let file = json.string()?;
            let number = match numbers.get(&file) {
                Some(&number) => number,
                None => {
                    let number = map.files.len();
                    check_name(source_name, &file)?;
                    if number == MAX_FILES {
                        return Err(SourceError::LimitExceeded {
                            source_name: source_name.to_string(),
                            what: "number of files".to_string(),
                            found: number as u64 + 1,
                            limit: MAX_FILES as u64,
                        }
                        .into());
                    }
                    map.files.push(file.clone());
                    numbers.insert(file, number);
                    number
                }
            };
            map.tensors.push((tensor, number));
            Ok(())
        })
    })?;
    json.end()?;
    if !seen {
        return Err(SourceError::MissingKey { source_name: source_name.to_string(), key: "weight_map".into() }.into());
    }
    Ok(map)
}

/// Refuses a name that leads out of the directory.
fn check_name(source_name: &str, file: &str) -> Result<()> {
    // The other system's separator too: a name must mean the same everywhere.
    let inside = !file.is_empty()
        && !file.contains(['\\', ':', '\0'])
        && Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if inside {
        return Ok(());
    }
    Err(SourceError::OutsideDirectory { source_name: source_name.to_string(), path: shown(file) }.into())
}
