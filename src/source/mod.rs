//! Where weights and metadata come from: one trait, one implementation per file format.
//!
//! First room of the flow. Knows bytes, names, shapes and types; must not know what a model does with them.

mod dtype;
#[cfg(feature = "hub")]
mod hub;
mod metadata;

pub use dtype::Dtype;
#[cfg(feature = "hub")]
pub use hub::Hub;
pub use metadata::{Array, Metadata, Value};

use std::fmt::Debug;

use crate::Result;

/// What is known of a tensor before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the source's own convention.
    pub name: String,
    /// Storage type.
    pub dtype: Dtype,
    /// Shape, outermost dimension first: a linear layer is `[out, in]`, rows contiguous.
    pub shape: Vec<usize>,
    /// Bytes of the whole tensor.
    pub size_in_bytes: usize,
}

/// Weights with their metadata, readable piece by piece.
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
