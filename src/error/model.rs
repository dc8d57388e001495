//! Errors of: model.

/// What is wrong with the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Placeholder.
    #[error("unreachable")]
    Unreachable,
}
