//! LLM inference that a Rust program links: from a model file to text, in the host's own process.
//!
//! ```no_run
//! use std::io::Write;
//!
//! use candlewick::{Engine, Gguf, Message, Request};
//!
//! fn main() -> candlewick::Result<()> {
//!     let mut engine = Engine::builder(Gguf::open("model.gguf")?).build()?;
//!     let mut answer = engine.generate(Request::chat([Message::user("Hi")]).max_tokens(64))?;
//!     for piece in answer.by_ref() {
//!         print!("{}", piece?.text);
//!         let _ = std::io::stdout().flush();
//!     }
//!     let bill = answer.into_output()?.usage;
//!     println!("\n{} tokens, the first after {:?}", bill.completion_tokens, bill.ttft);
//!     Ok(())
//! }
//! ```
//!
//! # How it behaves
//!
//! * **No runtime, no globals.** The core is synchronous: [`Engine::submit`] takes requests, [`Engine::step`] computes
//!   one batch, [`Engine::generate`] drives both for one request. The library reads no environment variable (the HTTP
//!   client below the feature `hub` follows the system's for proxies) and starts no thread but the engine's compute threads, and one for the engine itself if [`Engine::spawn`] is called.
//! * **Answers do not depend on how they were computed.** For one precision, KV format and cache policy, tokens
//!   and log-probabilities are bitwise the same whatever runs beside the request, however its prompt is cut into steps,
//!   whatever a drafter guesses, however many threads compute and with whichever instructions.
//! * **Errors are typed and local.** Files, templates and prompts may be hostile: what is wrong is an [`Error`] that
//!   says so, never a panic; the failure of one request leaves the others running.
//!
//! # First steps
//!
//! `cargo add --git https://github.com/candlewick-rs/candlewick`, and a model file: any GGUF of the families below, or a Hugging Face directory with
//! safetensors ([`source::Safetensors`]). The code above is a whole program; build it with `--release`, or set `opt-level = 3` for
//! `[profile.dev.package.candlewick]`: unoptimized, a model is some eighty times slower. With the feature `hub`,
//! [`source::Hub`] fetches files.
//!
//! A [`Request`] is a chat, a text or tokens, with its limits and sampling parameters; an [`Output`] has the text, the
//! tokens, why it ended and the bill.
//!
//! # Several requests at once
//!
//! ```
//! use candlewick::testing::TinyModel;
//! use candlewick::{Engine, Event, Request};
//!
//! # fn main() -> candlewick::Result<()> {
//! // A tiny random model in place of a file.
//! let mut engine = Engine::builder(TinyModel::llama().build()?).threads(1).build()?;
//! let first = engine.submit(Request::prompt("Once upon a time").max_tokens(8))?;
//! let second = engine.submit(Request::prompt("Hello").max_tokens(4).temperature(0.8).seed(7))?;
//! let mut finished = Vec::new();
//! while !engine.is_idle() {
//!     for event in engine.step()? {
//!         if let Event::Finished { id, output, .. } = event {
//!             finished.push((id, output.token_ids.len()));
//!         }
//!     }
//! }
//! assert_eq!(finished.len(), 2);
//! assert!(finished.iter().any(|(id, _)| *id == first) && finished.iter().any(|(id, _)| *id == second));
//! # Ok(())
//! # }
//! ```
//!
//! # Parts that plug in
//!
//! Each is a trait, a default and a choice on the builder; `docs/extending.md` shows one of your own for each, with the
//! conformance suite that it has to pass.
//!
//! ```
//! use candlewick::cache::Window;
//! use candlewick::draft::Ngram;
//! use candlewick::quant::{Requantize, Target};
//! use candlewick::sample::Chain;
//! use candlewick::testing::TinyModel;
//! use candlewick::{Engine, Request};
//!
//! # fn main() -> candlewick::Result<()> {
//! let mut engine = Engine::builder(TinyModel::llama().build()?)
//!     .quantizer(Requantize::all(Target::Q8_0)) // how weights are kept: trait Quantizer
//!     .cache_policy(Window { size: 128, sinks: 4 }) // what the KV cache keeps: trait CachePolicy
//!     .sampler(Chain::new()) // how tokens are chosen: trait Sampler
//!     .drafter(Ngram::default()) // guesses that save steps: trait Drafter
//!     .threads(1)
//!     .build()?;
//! let output = engine.complete(Request::prompt("to be or not to be, to be or").max_tokens(12).temperature(0.7))?;
//! assert!(output.usage.completion_tokens <= 12);
//! # Ok(())
//! # }
//! ```
//!
//! # From many threads and tasks
//!
//! [`Engine::spawn`] moves the engine to a thread and answers an [`EngineHandle`] that can be cloned and shared. Its
//! requests give a [`TokenStream`]: an iterator for threads, a `futures_core::Stream` for tasks of any executor.
//!
//! # Rooms
//!
//! Data flows from the top down; a room uses only rooms above it.
//!
//! | room | what it is |
//! |---|---|
//! | [`source`] | where weights and metadata come from: trait [`WeightSource`], GGUF files, safetensors directories, memory, the hub |
//! | [`tokenizer`] | text to tokens and back, chat templates |
//! | [`cache`] | keys and values in blocks: trait [`CachePolicy`], windows and sinks |
//! | [`kernel`] | the arithmetic on slices, for every instruction set; the only `unsafe` code |
//! | [`quant`] | how weights are kept and multiplied: trait [`quant::Quantizer`], requantization at load |
//! | [`sample`] | from logits to a token: trait [`sample::Sampler`] and keyed noise |
//! | [`draft`] | guesses at the next tokens: trait [`draft::Drafter`], n-gram lookup |
//! | [`stream`] | stop strings, queues to readers |
//! | [`engine`] | builder, requests, steps, events |
//!
//! Between them, and private: weights (packing), model (the decoder), schedule (who runs next).
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `hub` (default) | fetching files from the Hugging Face hub |
//! | `testing` | tiny seeded models, file writers and conformance suites, for tests of programs that use this crate |
//! | `cuda`, `metal` | candle's devices; the engine itself computes on the CPU so far |
//! | `constrain`, `metrics`, `flash-attn` | reserved: their dependencies resolve, they add nothing yet |

mod error;
mod types;

pub mod cache;
pub mod kernel;
pub mod quant;
pub mod source;
pub mod tokenizer;

mod model;
mod schedule;
mod weights;

pub mod draft;
pub mod engine;
pub mod sample;
pub mod stream;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

// The public interface is:
pub use cache::CachePolicy;
pub use candle_core as candle;
pub use engine::{
    Engine, EngineBuilder, EngineHandle, Event, Generation, Output, Piece, Request, Score, TokenStream, Usage,
};
pub use error::{
    BuildError, Error, KernelError, MatmulError, ModelError, RequestError, ResourceError, Result, SourceError,
    TemplateError, TokenizerError,
};
#[cfg(feature = "hub")]
pub use error::{HubError, HubErrorKind};
pub use kernel::{KernelLevel, KvFormat, Precision};
pub use source::{Gguf, Safetensors, WeightSource};
pub use tokenizer::{ChatTemplate, EncodeOptions, Message, Tokenizer};
pub use types::{FinishReason, SequenceId, TokenId};
