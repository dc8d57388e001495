//! Errors of: tokenizer.

/// What is wrong with the tokenizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// Placeholder.
    #[error("unreachable")]
    Unreachable,
}
