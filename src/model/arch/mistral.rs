//! Mistral outside of GGUF: as Llama, with a window in every layer where the configuration has one.
//!
//! GGUF files call it `llama` and have no key for the window.

use super::super::spec::DecoderSpec;
use super::keys::Keys;
use crate::weights::Weights;
use crate::Result;

pub(super) fn spec(keys: &Keys<'_>, weights: &mut Weights<'_>) -> Result<DecoderSpec> {
    let mut spec = keys.decoder(weights, 10_000.0)?;
    keys.windows(&mut spec, 0)?;
    Ok(spec)
}
