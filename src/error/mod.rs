//! Typed errors, grouped by who has to act: the file (source, tokenizer, template, model), the caller
//! (request, build) or the machine (resources).

mod build;
#[cfg(feature = "hub")]
mod hub;
mod kernel;
mod matmul;
mod model;
mod request;
mod resources;
mod source;
mod template;
mod tokenizer;

pub use build::BuildError;
#[cfg(feature = "hub")]
pub use hub::{HubError, HubErrorKind};
pub use kernel::KernelError;
pub use matmul::MatmulError;
pub use model::ModelError;
pub use request::RequestError;
pub use resources::ResourceError;
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
    /// The hub that was asked for a file.
    #[cfg(feature = "hub")]
    #[error(transparent)]
    Hub(Box<HubError>),
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
    /// One request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Weights that the kernels cannot hold.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A quantizer's matrix that failed while a step was computed.
    #[error(transparent)]
    Matmul(#[from] MatmulError),
    /// The machine's memory.
    #[error(transparent)]
    Resources(#[from] ResourceError),
    /// The engine behind a handle can answer no more.
    #[error("the engine is not available: {reason}")]
    Unavailable {
        /// Why: it was shut down, or what it failed at.
        reason: String,
    },
    /// A part that the host brought panicked.
    #[error("the {room} part `{name}` panicked: {message}")]
    Extension {
        /// The room that the part plugs into.
        room: &'static str,
        /// The part's name.
        name: String,
        /// The panic's message.
        message: String,
    },
}
