//! Errors of: template.

/// What is wrong with the template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// Placeholder.
    #[error("unreachable")]
    Unreachable,
}
