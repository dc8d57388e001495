//! Errors of: build.

/// What is wrong with the build.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Placeholder.
    #[error("unreachable")]
    Unreachable,
}
