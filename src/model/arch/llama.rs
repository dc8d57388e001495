//! Llama 2 and 3, Mistral, SmolLM2: pre-norm, SwiGLU, rotary positions on adjacent pairs.
//!
//! The converter that makes these GGUF files permutes q and k, so that pairs lie side by side.

use super::super::spec::DecoderSpec;
use super::keys::Keys;
use crate::kernel::RopePairing;
use crate::weights::Weights;
use crate::Result;

pub(super) fn spec(keys: &Keys<'_>, weights: &mut Weights<'_>) -> Result<DecoderSpec> {
    Ok(DecoderSpec { pairing: RopePairing::Adjacent, ..keys.decoder(weights, 10_000.0)? })
}
