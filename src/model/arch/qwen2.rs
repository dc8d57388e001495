//! Qwen2 and Qwen2.5: as Llama, with biases on q, k and v (found by their tensors) and pairs half a head apart.

use super::super::spec::DecoderSpec;
use super::keys::Keys;
use crate::weights::Weights;
use crate::Result;

pub(super) fn spec(keys: &Keys<'_>, weights: &mut Weights<'_>) -> Result<DecoderSpec> {
    keys.decoder(weights, 10_000.0)
}
