//! What tests of this crate, and of code that embeds it, need: seeded tiny models, block writers and a GGUF writer.
//!
//! Behind the feature `testing`. **Not part of the stable interface**: anything here may change in any release.
//!
//! Knows the formats that `source` reads; no part of the library outside of tests may use this module.

mod gguf_writer;
mod quantize;
mod quantizer;
mod tiny;
mod vocabulary;
mod weights;

pub use gguf_writer::GgufWriter;
pub use quantize::quantize_blocks;
pub use quantizer::check_quantizer;
pub use tiny::{Architecture, TinyModel};
pub use vocabulary::TokenizerKind;
pub use weights::{normal, splitmix64};
