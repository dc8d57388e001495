//! What tests of this crate, and of code that embeds it, need: seeded tiny models, block writers, a GGUF writer, and
//! conformance suites for the traits that hosts implement.
//!
//! Behind the feature `testing`. **Not part of the stable interface**: anything here may change in any release.
//!
//! Knows the formats that `source` reads; no part of the library outside of tests may use this module.

mod gguf_writer;
mod k_quants;
mod probes;
mod quantize;
mod sampler;
mod tiny;
mod vocabulary;
mod weights;

pub use gguf_writer::GgufWriter;
pub use quantize::quantize_blocks;
pub use sampler::check_sampler;
pub use tiny::{Architecture, TinyModel};
pub use vocabulary::TokenizerKind;
pub use weights::{normal, splitmix64};
