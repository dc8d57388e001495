//! A file that is read at given positions: no cursor, no mapping, any number of threads.
//!
//! Knows the operating system's calls; must not know what the bytes mean.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Result, SourceError};

/// An open regular file.
pub(in crate::source) struct PositionedFile {
    file: File,
    path: PathBuf,
    name: String,
    size: u64,
}

impl PositionedFile {
    /// Opens a regular file for reading.
    pub(in crate::source) fn open(path: &Path) -> Result<PositionedFile> {
        let io_error = |error| SourceError::Io { path: path.to_path_buf(), error };
        // Asked of the path first: opening a pipe would wait for its writer.
        let kind = std::fs::metadata(path).map_err(io_error)?;
        let name = path.display().to_string();
        if kind.is_dir() {
            return Err(SourceError::NotAFile { source_name: name, found: "a directory" }.into());
        }
        if !kind.is_file() {
            return Err(SourceError::NotAFile { source_name: name, found: "a device or pipe" }.into());
        }
        let file = File::open(path).map_err(io_error)?;
        let size = file.metadata().map_err(io_error)?.len();
        Ok(PositionedFile { file, path: path.to_path_buf(), name, size })
    }

    /// The path, for messages.
    pub(in crate::source) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes when it was opened.
    pub(in crate::source) fn size(&self) -> u64 {
        self.size
    }

    /// All bytes of a small file.
    ///
    /// # Errors
    /// More than `limit` bytes; a failed read.
    pub(in crate::source) fn read_whole(&self, limit: u64) -> Result<Vec<u8>> {
        if self.size > limit {
            let what = "length of the file, in bytes".to_string();
            let source_name = self.name.clone();
            return Err(SourceError::LimitExceeded { source_name, what, found: self.size, limit }.into());
        }
        let mut bytes = vec![0; self.size as usize];
        self.read_exact_at(&mut bytes, 0, || "the file".to_string())?;
        Ok(bytes)
    }

    /// Fills `buffer` from byte `offset`; `what` names the part in the error if the file has become shorter.
    pub(in crate::source) fn read_exact_at(
        &self,
        buffer: &mut [u8],
        offset: u64,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        read_exact_at(&self.file, buffer, offset).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                return SourceError::Truncated {
                    source_name: self.name.clone(),
                    what: what(),
                    needed: offset.saturating_add(buffer.len() as u64),
                    file_size: self.file.metadata().map_or(self.size, |m| m.len()),
                }
                .into();
            }
            SourceError::Io { path: self.path.clone(), error }.into()
        })
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(not(any(unix, windows)))]
fn read_exact_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
