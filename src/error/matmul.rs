//! Errors of products: a matrix of a quantizer failed while a step was computed.

/// The matrix of one place failed. The requests that ran in that step end with this; the engine goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the quantized matrix of `{tensor}` failed in a step: {message}")]
#[non_exhaustive]
pub struct MatmulError {
    /// The tensor that the matrix was made of.
    pub tensor: String,
    /// What went wrong.
    pub message: String,
}
