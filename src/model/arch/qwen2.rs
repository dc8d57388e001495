//! Qwen2 and Qwen2.5: as Llama, with biases on q, k and v (found by their tensors).
//!
//! Only checkpoints outside of GGUF may have windows, in the layers that they list.

use super::super::spec::DecoderSpec;
use super::keys::Keys;
use crate::weights::Weights;
use crate::Result;

pub(super) fn spec(keys: &Keys<'_>, weights: &mut Weights<'_>) -> Result<DecoderSpec> {
    let mut spec = keys.decoder(weights, 10_000.0)?;
    keys.listed_windows(&mut spec)?;
    Ok(spec)
}
