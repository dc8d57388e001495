//! What tests of this crate, and of code that embeds it, need: seeded tiny models, block and file writers, and a
//! conformance suite per extension trait.
//!
//! Behind the feature `testing`. **Not part of the stable interface**: anything here may change in any release.
//!
//! Knows the formats that `source` reads; no part of the library outside of tests may use this module.

mod cache_policy;
mod drafter;
mod gguf_writer;
mod probes;
mod quantize;
mod quantizer;
mod safetensors_writer;
mod sampler;
mod tiny;
mod vocabulary;
mod weight_source;
mod weights;

pub use cache_policy::check_cache_policy;
pub use drafter::check_drafter;
pub use gguf_writer::GgufWriter;
pub use quantize::{quantize_blocks, random_blocks};
pub use quantizer::check_quantizer;
pub use safetensors_writer::safetensors_bytes;
pub use sampler::check_sampler;
pub use tiny::{Architecture, TinyModel};
pub use vocabulary::TokenizerKind;
pub use weight_source::check_weight_source;
pub use weights::{normal, splitmix64};
