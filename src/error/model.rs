//! Errors of the model that a source describes.

/// What is wrong with the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// `general.architecture` names a model that is not implemented.
    #[error("architecture `{architecture}` is not supported; supported are {}", known.join(", "))]
    UnknownArchitecture {
        /// The name found.
        architecture: String,
        /// The names that work.
        known: Vec<&'static str>,
    },
    /// The architecture is known, but the file asks for a variant that is not implemented.
    #[error("architecture `{architecture}`: {feature} is not supported")]
    Unsupported {
        /// The architecture.
        architecture: String,
        /// The variant.
        feature: String,
    },
}
