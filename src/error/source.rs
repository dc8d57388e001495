//! Errors of the weight source: unreadable, malformed or incomplete files.

use std::path::PathBuf;

/// What is wrong with the file or directory that holds the weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The operating system refused a read.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A metadata key that the model needs is absent.
    #[error("{source_name}: metadata key `{key}` is missing; the file is incomplete or not a language model")]
    MissingKey {
        /// The source.
        source_name: String,
        /// The key.
        key: String,
    },
    /// A metadata key has another type or an impossible value.
    #[error("{source_name}: metadata key `{key}`: expected {expected}, found {found}")]
    InvalidKey {
        /// The source.
        source_name: String,
        /// The key.
        key: String,
        /// What is accepted.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A tensor that the model needs is absent.
    #[error("{source_name}: tensor `{tensor}` is missing")]
    MissingTensor {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor has another shape than the metadata implies.
    #[error("{source_name}: tensor `{tensor}` has shape {found:?}, expected {expected:?}")]
    TensorShape {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
        /// The shape that the metadata implies, outermost first.
        expected: Vec<usize>,
        /// The shape found, outermost first.
        found: Vec<usize>,
    },
    /// A tensor's type cannot be run.
    #[error("{source_name}: tensor `{tensor}` has type {dtype}, which this version cannot run; requantize the file to one of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K..Q6_K")]
    UnsupportedType {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
        /// The type's name.
        dtype: String,
    },
    /// The host's progress callback asked to stop.
    #[error("{source_name}: loading was cancelled")]
    Cancelled {
        /// The source.
        source_name: String,
    },
}
