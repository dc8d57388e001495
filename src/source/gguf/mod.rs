//! GGUF files as a source: header read once, tensors read piece by piece at their positions.
//!
//! `reader` hands out the header's fields, `header` checks them, `split` joins the parts of a model that was cut into
//! several files. Nothing is mapped: a file that shrinks while it is open gives an error, not a
//! signal. Must not know what tensors are for.

mod header;
mod reader;
mod split;

use std::fmt;
use std::path::Path;

use header::Header;

use super::file::PositionedFile;
use super::listing::Listing;
use super::{Metadata, TensorInfo, WeightSource};
use crate::Result;

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
    version: u32,
    header_bytes: u64,
    metadata: Metadata,
    listing: Listing,
}

impl Gguf {
    /// Opens a GGUF file and checks its header: counts, lengths, types, shapes, offsets and names.
    ///
    /// The first part of a split model (`name-00001-of-00003.gguf`) opens all parts, which lie beside it.
    ///
    /// # Errors
    /// [`SourceError`](crate::SourceError): a file that cannot be read, is not GGUF 2 or 3, is cut short, or contradicts
    /// itself; a part that is missing. The message names the file and the key or tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let path = path.as_ref();
        let file = PositionedFile::open(path)?;
        let Header { version, metadata, tensors, starts, mut header_bytes } = header::read(&file)?;
        let later_parts = split::later_parts(path, &metadata)?;
        let mut listing = Listing::new(file.name().to_string());
        listing.add(file, tensors, starts);
        if let Some(parts) = &later_parts {
            for part in &parts.paths {
                let (file, header) = parts.open(part)?;
                header_bytes += header.header_bytes;
                listing.add(file, header.tensors, header.starts);
            }
            parts.check_tensor_count(listing.tensors().len())?;
        }
        listing.index()?;
        Ok(Gguf { version, header_bytes, metadata, listing })
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
        self.listing.num_files()
    }
}

impl WeightSource for Gguf {
    fn name(&self) -> &str {
        self.listing.name()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.listing.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.listing.tensor(name)
    }

    fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.listing.read(name, offset, buffer)
    }
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf").field("version", &self.version).field("listing", &self.listing).finish_non_exhaustive()
    }
}
