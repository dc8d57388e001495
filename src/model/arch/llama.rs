//! Llama 2 and 3, SmolLM2, and Mistral in GGUF files: pre-norm, SwiGLU, rotary positions.
//!
//! The converter that makes these GGUF files permutes q and k, so that rows that rotate together lie side by side.

use super::super::spec::DecoderSpec;
use super::keys::Keys;
use crate::weights::Weights;
use crate::Result;

pub(super) fn spec(keys: &Keys<'_>, weights: &mut Weights<'_>) -> Result<DecoderSpec> {
    let mut spec = keys.decoder(weights, 10_000.0)?;
    keys.interleaved_rows(&mut spec)?;
    Ok(spec)
}
