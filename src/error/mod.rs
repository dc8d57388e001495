//! Typed errors, grouped by who has to act: the file (source, tokenizer, template, model), the caller
//! (request, build) or the machine (resources).

mod build;
mod kernel;
mod model;
mod request;
mod source;
mod template;
mod tokenizer;

pub use build::BuildError;
pub use kernel::KernelError;
pub use model::ModelError;
pub use request::RequestError;
pub use source::SourceError;
pub use template::TemplateError;
pub use tokenizer::TokenizerError;

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Anything that can go wrong, by blame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The weights' file or directory.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The vocabulary that the source carries.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The model that the source describes.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The parts that the builder was given.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A weight matrix that the kernels cannot hold.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// One request.
    #[error(transparent)]
    Request(#[from] RequestError),
}
