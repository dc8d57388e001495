//! LLM inference that a Rust program links.

mod error;
mod types;

pub mod kernel;
pub mod source;
pub mod tokenizer;

mod cache;
mod model;
mod schedule;
mod weights;

pub mod engine;
pub mod sample;
pub mod stream;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

// The public interface is:
pub use candle_core as candle;
pub use engine::{Engine, EngineBuilder, Event, Generation, Output, Piece, Request, Score, Usage};
pub use error::{
    BuildError, Error, KernelError, ModelError, RequestError, ResourceError, Result, SourceError, TemplateError,
    TokenizerError,
};
#[cfg(feature = "hub")]
pub use error::{HubError, HubErrorKind};
pub use kernel::{KernelLevel, KvFormat, Precision};
pub use source::{Gguf, WeightSource};
pub use tokenizer::{ChatTemplate, EncodeOptions, Message, Tokenizer};
pub use types::{FinishReason, SequenceId, TokenId};
