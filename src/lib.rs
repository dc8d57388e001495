//! LLM inference that a Rust program links.

mod error;
mod types;

pub mod kernel;
pub mod source;

// The public interface is:
pub use candle_core as candle;
pub use error::{
    BuildError, Error, KernelError, ModelError, RequestError, Result, SourceError, TemplateError, TokenizerError,
};
pub use types::{FinishReason, SequenceId, TokenId};
