//! Errors of: request.

/// What is wrong with the request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Placeholder.
    #[error("unreachable")]
    Unreachable,
}
