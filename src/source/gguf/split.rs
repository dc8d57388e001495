//! Models cut into several GGUF files: which files belong together, and whether they do.
//!
//! The convention: `NAME-00001-of-0000N.gguf`; every part has `split.no` (from 0) and `split.count`, and
//! `split.tensors.count` is the number of tensors of all parts. The metadata of the model is in the first part.

use std::path::{Path, PathBuf};

use super::header::{self, Header};
use crate::source::file::PositionedFile;
use crate::source::Metadata;
use crate::{Result, SourceError};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The parts after the first one.
pub(super) struct LaterParts {
    source_name: String,
    pub(super) paths: Vec<Part>,
    count: u64,
    tensors: Option<u64>,
}

pub(super) struct Part {
    path: PathBuf,
    /// From 1.
    number: u64,
}

/// The parts that belong to the file at `path`; `None` if it is the whole model.
pub(super) fn later_parts(path: &Path, metadata: &Metadata) -> Result<Option<LaterParts>> {
    let count = metadata.unsigned(COUNT)?.unwrap_or(1);
    if count <= 1 {
        return Ok(None);
    }
    let source_name = metadata.source_name().to_string();
    // The format stores it as a u16.
    if count > u16::MAX.into() {
        return Err(metadata.invalid(COUNT, "a part count of at most 65535").into());
    }
    let number = metadata.unsigned(NUMBER)?.ok_or_else(|| metadata.missing(NUMBER))?;
    if number != 0 {
        let number = number.saturating_add(1);
        return Err(SourceError::NotFirstPart { source_name, number, count }.into());
    }
    let tensors = metadata.unsigned(TENSORS)?;
    let suffix = format!("-00001-of-{count:05}.gguf");
    let file_name = path.file_name().and_then(|n| n.to_str());
    let Some(stem) = file_name.and_then(|n| n.strip_suffix(&suffix)) else {
        return Err(SourceError::InconsistentSplit {
            source_name,
            expected: format!("a file name that ends with `{suffix}`, as {COUNT} is {count}"),
            found: format!("`{}`", path.file_name().unwrap_or_default().to_string_lossy()),
        }
        .into());
    };
    let paths = (2..=count)
        .map(|number| Part { path: path.with_file_name(format!("{stem}-{number:05}-of-{count:05}.gguf")), number })
        .collect();
    Ok(Some(LaterParts { source_name, paths, count, tensors }))
}

impl LaterParts {
    /// Opens one part and checks that it is the one that its name says.
    pub(super) fn open(&self, part: &Part) -> Result<(PositionedFile, Header)> {
        if !part.path.exists() {
            return Err(SourceError::MissingPart {
                source_name: self.source_name.clone(),
                part: part.path.clone(),
                number: part.number,
                count: self.count,
            }
            .into());
        }
        let file = PositionedFile::open(&part.path)?;
        let header = header::read(&file)?;
        for (key, expected) in [(NUMBER, part.number - 1), (COUNT, self.count)] {
            let found = header.metadata.unsigned(key)?;
            if found != Some(expected) {
                return Err(SourceError::InconsistentSplit {
                    source_name: file.name().to_string(),
                    expected: format!("{key} {expected}"),
                    found: found.map_or("no such key".to_string(), |v| v.to_string()),
                }
                .into());
            }
        }
        Ok((file, header))
    }

    /// Checks the number of tensors of all parts together.
    pub(super) fn check_tensor_count(&self, found: usize) -> Result<()> {
        match self.tensors {
            Some(expected) if expected != found as u64 => Err(SourceError::InconsistentSplit {
                source_name: self.source_name.clone(),
                expected: format!("{expected} tensors in all parts"),
                found: found.to_string(),
            }
            .into()),
            _ => Ok(()),
        }
    }
}
