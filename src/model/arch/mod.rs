//! Architectures: from a file's metadata to a [`DecoderSpec`]. Adding one is a file here and a line in [`spec`].

mod gemma3;
mod keys;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use super::spec::DecoderSpec;
use crate::source::Metadata;
use crate::weights::Weights;
use crate::{ModelError, Result};
use keys::Keys;

type Architecture = fn(&Keys<'_>, &mut Weights<'_>) -> Result<DecoderSpec>;

/// Every architecture by its name in `general.architecture`.
const ARCHITECTURES: &[(&str, Architecture)] = &[
    ("llama", llama::spec),
    ("mistral", mistral::spec),
    ("qwen2", qwen2::spec),
    ("qwen3", qwen3::spec),
    ("gemma3", gemma3::spec),
];

/// The specification of the model that the metadata and tensors describe.
pub(super) fn spec(metadata: &Metadata, weights: &mut Weights<'_>) -> Result<DecoderSpec> {
    let key = "general.architecture";
    let name = metadata.string(key)?.ok_or_else(|| metadata.missing(key))?;
    let Some((name, spec)) = ARCHITECTURES.iter().find(|(known, _)| *known == name) else {
        return Err(ModelError::UnknownArchitecture {
            architecture: name.chars().take(64).collect(),
            known: ARCHITECTURES.iter().map(|(name, _)| *name).collect(),
        }
        .into());
    };
    spec(&Keys::new(metadata, name), weights)
}
