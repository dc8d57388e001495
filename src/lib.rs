//! LLM inference that a Rust program links.

mod error;
mod types;

mod cache;

pub mod kernel;
pub mod source;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

// The public interface is:
pub use candle_core as candle;
pub use error::{BuildError, Error, ModelError, RequestError, Result, SourceError, TemplateError, TokenizerError};
pub use types::{FinishReason, SequenceId, TokenId};
