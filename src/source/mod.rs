//! Where weights and metadata come from: one trait, one implementation per file format.
//!
//! First room of the flow. Knows bytes, names, shapes and types; must not know what a model does with them.

mod dtype;
mod file;
mod gguf;
#[cfg(feature = "hub")]
mod hub;
mod listing;
mod memory;
mod metadata;
mod safetensors;

pub use dtype::{Dtype, TypeName};
pub use gguf::Gguf;
#[cfg(feature = "hub")]
pub use hub::Hub;
pub use memory::Memory;
pub use metadata::{Array, Metadata, Value};
pub use safetensors::Safetensors;

use std::fmt::Debug;

use crate::{Result, SourceError};

/// What is known of a tensor before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in GGUF's convention (`blk.0.attn_q.weight`); the file's own name where GGUF has none.
    pub name: String,
    /// Storage type.
    pub dtype: Dtype,
    /// Shape, outermost dimension first: a linear layer is `[out, in]`, rows contiguous.
    pub shape: Vec<usize>,
    /// Bytes of the whole tensor; 0 if the type is unknown, what the file says if it is foreign.
    pub size_in_bytes: usize,
}

impl TensorInfo {
    /// An error for a tensor whose type cannot be run.
    pub fn unsupported(&self, source_name: &str) -> SourceError {
        SourceError::UnsupportedType {
            source_name: source_name.to_string(),
            tensor: shown(&self.name),
            dtype: self.dtype.to_string(),
        }
    }

    /// Checks that `length` bytes at `offset` lie within the tensor; answers `offset` as an index.
    fn check_range(&self, source_name: &str, offset: u64, length: usize) -> Result<usize> {
        let size = self.size_in_bytes;
        match usize::try_from(offset) {
            Ok(start) if start <= size && length <= size - start => Ok(start),
            _ => Err(SourceError::ReadOutOfRange {
                source_name: source_name.to_string(),
                tensor: shown(&self.name),
                offset,
                length,
                size,
            }
            .into()),
        }
    }
}

/// Weights with their metadata, readable piece by piece.
///
/// # Contract
///
/// Names are unique, and [`tensor`](WeightSource::tensor) finds exactly the tensors of
/// [`tensors`](WeightSource::tensors). A tensor's size is what its type and shape imply. A read of a part equals that
/// part of a read of the whole, from any thread, also when several read at once. A source does not change while it is
/// open; one that finds that its file did (it became shorter) answers with an error. Nothing panics, whatever is asked.
///
/// The model computes with GGUF's conventions. Where a source holds something else it says so with the metadata keys
/// that [`Safetensors`] lists.
///
/// # When it is called
///
/// By `EngineBuilder::build` only: first the metadata, then tensor by tensor, each byte usually once, in ranges that begin
/// and end with a row. Several threads read ranges of one tensor at the same time, and one may still read the metadata. The
/// source is dropped when the build ends.
///
/// # Provided implementations
///
/// [`Gguf`] for GGUF files, [`Safetensors`] for Hugging Face directories, [`Memory`] for tests and converters.
///
/// # Implementing your own
///
/// ```
/// # #[cfg(feature = "testing")] {
/// use candlewick::source::{Memory, Metadata, TensorInfo, WeightSource};
/// use candlewick::testing::{check_weight_source, TinyModel};
///
/// /// Another source under a name of the host's.
/// #[derive(Debug)]
/// struct Renamed(Memory);
///
/// impl WeightSource for Renamed {
///     fn name(&self) -> &str {
///         "the assistant's model"
///     }
///     fn metadata(&self) -> &Metadata {
///         self.0.metadata()
///     }
///     fn tensors(&self) -> &[TensorInfo] {
///         self.0.tensors()
///     }
///     fn tensor(&self, name: &str) -> Option<&TensorInfo> {
///         self.0.tensor(name)
///     }
///     fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> candlewick::Result<()> {
///         self.0.read(name, offset, buffer)
///     }
/// }
///
/// let source = Renamed(TinyModel::llama().build().unwrap());
/// check_weight_source(&source).unwrap();
/// # }
/// ```
///
/// # Errors
///
/// [`SourceError`], which names the source and the tensor: [`MissingTensor`](SourceError::MissingTensor),
/// [`ReadOutOfRange`](SourceError::ReadOutOfRange), and what the system or the format says of a failed read.
pub trait WeightSource: Debug + Send + Sync + 'static {
    /// Name for error messages, such as the file's path.
    fn name(&self) -> &str;

    /// Metadata in GGUF's key convention (`general.architecture`, `llama.block_count`, `tokenizer.ggml.tokens`, ...).
    fn metadata(&self) -> &Metadata;

    /// All tensors, in file order.
    fn tensors(&self) -> &[TensorInfo];

    /// The tensor of this name.
    fn tensor(&self, name: &str) -> Option<&TensorInfo>;

    /// Fills `buffer` from byte `offset` of the tensor.
    ///
    /// # Errors
    /// An absent tensor, a range outside it, or a failed read; each names the tensor.
    fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

impl<S: WeightSource + ?Sized> WeightSource for Box<S> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn metadata(&self) -> &Metadata {
        (**self).metadata()
    }

    fn tensors(&self) -> &[TensorInfo] {
        (**self).tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        (**self).tensor(name)
    }

    fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        (**self).read(name, offset, buffer)
    }
}

/// A name from a file as messages show it: no control characters, no endless text.
fn shown(name: &str) -> String {
    const MOST: usize = 120;
    let mut out: String = name.chars().take(MOST).flat_map(char::escape_debug).collect();
    if name.chars().nth(MOST).is_some() {
        out.push_str("...");
    }
    out
}

/// Bytes of a tensor (0 if the type is unknown), or what its shape should be and what it is.
fn shape_problem(dtype: Dtype, shape: &[usize]) -> std::result::Result<usize, (String, String)> {
    let found = || format!("shape {shape:?}");
    if shape.is_empty() || shape.len() > 4 {
        return Err(("1 to 4 dimensions".into(), shape.len().to_string()));
    }
    if shape.contains(&0) {
        return Err(("dimensions above zero".into(), found()));
    }
    let too_large = || (format!("a size in memory that a machine can address ({dtype})"), found());
    let len = shape.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim)).ok_or_else(too_large)?;
    if !dtype.is_sized() {
        return Ok(0);
    }
    let row = shape[shape.len() - 1];
    if !row.is_multiple_of(dtype.block_len()) {
        return Err((format!("rows of a multiple of {} values, the block of {dtype}", dtype.block_len()), found()));
    }
    let size = dtype.size_in_bytes(len).filter(|&size| isize::try_from(size).is_ok());
    size.ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_show_hostile_names_safely() {
        assert_eq!(shown("blk.0.attn_q.weight"), "blk.0.attn_q.weight");
        assert_eq!(shown("a\u{1b}[31m\n"), "a\\u{1b}[31m\\n");
        assert_eq!(shown(&"x".repeat(1000)).len(), 123);
    }

    #[test]
    fn ids_and_types_agree() {
        for &dtype in Dtype::ALL {
            assert_eq!(Dtype::from_ggml(dtype.ggml_id()), Some(dtype));
            assert_eq!(dtype.size_in_bytes(dtype.block_len() * 3), Some(dtype.block_bytes() * 3));
        }
        assert_eq!(Dtype::from_ggml(4), None);
        assert_eq!(Dtype::Unknown(77).size_in_bytes(32), None);
        assert!(!Dtype::Unknown(77).is_supported());
        assert_eq!(Dtype::Unknown(77).to_string(), "unknown (ggml type id 77)");
        let foreign = Dtype::Foreign(TypeName::new("F8_E4M3"));
        assert_eq!((foreign.to_string().as_str(), foreign.size_in_bytes(32)), ("F8_E4M3", None));
        assert_eq!(TypeName::new("\u{1b}ä and much more").as_str(), "???and?much?mor");
    }
}
