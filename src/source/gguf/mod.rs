//! GGUF files as a source: header read once, tensors read piece by piece at their positions.
//!
//! `file` reads at positions, `reader` hands out the header's fields, `header` checks them, `split` joins the parts of a
//! model that was cut into several files. Nothing is mapped: a file that shrinks while it is open gives an error, not a
//! signal. Must not know what tensors are for.

mod file;
mod header;
mod reader;
mod split;

use std::fmt;
use std::path::Path;

use file::PositionedFile;

use super::{shown, Dtype, Metadata, TensorInfo, WeightSource};
use crate::{Result, SourceError};

/// A GGUF file, or all parts of a split one, open for reading.
///
/// Versions 2 and 3, little-endian. Every tensor type is listed; one that this version cannot run fails when it is used.
/// An open `Gguf` holds its metadata and tensor list in memory (at most eight times [`header_bytes`](Gguf::header_bytes)
/// and 1 MiB; usually two to three times) and its file handles; no weights. Reads may come from several threads at once.
///
/// ```no_run
/// use candlewick::source::{Gguf, WeightSource};
///
/// # fn main() -> candlewick::Result<()> {
/// let model = Gguf::open("model.gguf")?;
/// println!("{:?}", model.metadata().string("general.architecture")?);
/// for tensor in model.tensors() {
///     println!("{} {} {:?}", tensor.name, tensor.dtype, tensor.shape);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Gguf {
    name: String,
    version: u32,
    header_bytes: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Where each tensor begins.
    places: Vec<Place>,
    /// Indices of `tensors` in the order of names.
    by_name: Vec<u32>,
    files: Vec<PositionedFile>,
}

#[derive(Clone, Copy)]
struct Place {
    start: u64,
    file: u32,
}

impl Gguf {
    /// Opens a GGUF file and checks its header: counts, lengths, types, shapes, offsets and names.
    ///
    /// The first part of a split model (`name-00001-of-00003.gguf`) opens all parts, which lie beside it.
    ///
    /// # Errors
    /// [`SourceError`]: a file that cannot be read, is not GGUF 2 or 3, is cut short, or contradicts itself; a part that
    /// is missing. The message names the file and the key or tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let path = path.as_ref();
        let file = PositionedFile::open(path)?;
        let header = header::read(&file)?;
        let later_parts = split::later_parts(path, &header.metadata)?;
        let mut gguf = Gguf {
            name: file.name().to_string(),
            version: header.version,
            header_bytes: header.header_bytes,
            metadata: header.metadata,
            tensors: header.tensors,
            places: header.starts.into_iter().map(|start| Place { start, file: 0 }).collect(),
            by_name: Vec::new(),
            files: vec![file],
        };
        if let Some(parts) = &later_parts {
            for part in &parts.paths {
                let (file, header) = parts.open(part)?;
                let index = gguf.files.len() as u32;
                gguf.header_bytes += header.header_bytes;
                gguf.tensors.extend(header.tensors);
                gguf.places.extend(header.starts.into_iter().map(|start| Place { start, file: index }));
                gguf.files.push(file);
            }
            parts.check_tensor_count(gguf.tensors.len())?;
        }
        gguf.index()?;
        Ok(gguf)
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes of metadata and tensor lists, all parts together.
    pub fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// How many files the model is split into; 1 for a usual one.
    pub fn num_parts(&self) -> usize {
        self.files.len()
    }

    fn index(&mut self) -> Result<()> {
        let tensors = &self.tensors;
        let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
        by_name.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
        for pair in by_name.windows(2) {
            if tensors[pair[0] as usize].name == tensors[pair[1] as usize].name {
                let tensor = shown(&tensors[pair[0] as usize].name);
                return Err(SourceError::DuplicateTensor { source_name: self.name.clone(), tensor }.into());
            }
        }
        self.by_name = by_name;
        Ok(())
    }

    fn find(&self, name: &str) -> Option<usize> {
        let tensors = &self.tensors;
        let found = self.by_name.binary_search_by(|&i| tensors[i as usize].name.as_str().cmp(name)).ok()?;
        Some(self.by_name[found] as usize)
    }
}

impl WeightSource for Gguf {
    fn name(&self) -> &str {
        &self.name
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.find(name).map(|i| &self.tensors[i])
    }

    fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let Some(index) = self.find(name) else {
            return Err(SourceError::MissingTensor { source_name: self.name.clone(), tensor: shown(name) }.into());
        };
        let (info, place) = (&self.tensors[index], self.places[index]);
        if let Dtype::Unknown(_) = info.dtype {
            return Err(info.unsupported(&self.name).into());
        }
        info.check_range(&self.name, offset, buffer.len())?;
        let file = &self.files[place.file as usize];
        file.read_exact_at(buffer, place.start + offset, || format!("tensor `{}`", shown(name)))
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("parts", &self.files.len())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}
