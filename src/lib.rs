//! LLM inference that a Rust program links.

mod error;
mod types;

pub mod kernel;
pub mod source;

// The public interface is:
pub use candle_core as candle;
pub use error::{BuildError, Error, ModelError, RequestError, Result, SourceError, TemplateError, TokenizerError};
#[cfg(feature = "hub")]
pub use error::{HubError, HubErrorKind};
pub use types::{FinishReason, SequenceId, TokenId};
