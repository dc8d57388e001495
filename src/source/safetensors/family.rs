//! What the model types of config.json have in common and where they differ: defaults of absent fields, windows, biases.
//!
//! The defaults are those of the configuration classes of Hugging Face transformers. Must not know files or tensors.

use super::fields::Fields;
use super::names::Norms;
use crate::{Error, ModelError, Result};

/// One model type.
#[derive(Debug)]
pub(super) struct Family {
    /// `model_type` of config.json.
    pub(super) model_type: &'static str,
    /// `general.architecture` of the metadata.
    pub(super) architecture: &'static str,
    pub(super) norms: Norms,
    /// Values where config.json has no such field; `None`: it must have it, or the value follows from others.
    pub(super) hidden_size: Option<u64>,
    pub(super) intermediate_size: Option<u64>,
    pub(super) num_hidden_layers: Option<u64>,
    pub(super) num_attention_heads: Option<u64>,
    pub(super) num_key_value_heads: Option<u64>,
    pub(super) head_dim: Option<u64>,
    pub(super) max_position_embeddings: u64,
    pub(super) rope_theta: f64,
    pub(super) tie_word_embeddings: bool,
    pub(super) sliding_window: Option<u64>,
}

const LLAMA: Family = Family {
    model_type: "llama",
    architecture: "llama",
    norms: Norms::Pre,
    hidden_size: None,
    intermediate_size: None,
    num_hidden_layers: None,
    num_attention_heads: None,
    num_key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    rope_theta: 10_000.0,
    tie_word_embeddings: false,
    sliding_window: None,
};

const MISTRAL: Family = Family {
    model_type: "mistral",
    architecture: "mistral",
    num_key_value_heads: Some(8),
    max_position_embeddings: 131_072,
    sliding_window: Some(4096),
    ..LLAMA
};

const QWEN2: Family = Family {
    model_type: "qwen2",
    architecture: "qwen2",
    num_key_value_heads: Some(32),
    max_position_embeddings: 32_768,
    sliding_window: Some(4096),
    ..LLAMA
};

const QWEN3: Family = Family { model_type: "qwen3", architecture: "qwen3", head_dim: Some(128), ..QWEN2 };

/// The larger models' files leave out what equals the class's default.
const GEMMA3: Family = Family {
    model_type: "gemma3_text",
    architecture: "gemma3",
    norms: Norms::Sandwich,
    hidden_size: Some(2304),
    intermediate_size: Some(9216),
    num_hidden_layers: Some(26),
    num_attention_heads: Some(8),
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    rope_theta: 1_000_000.0,
    tie_word_embeddings: true,
    sliding_window: Some(4096),
};

static FAMILIES: [&Family; 5] = [&LLAMA, &MISTRAL, &QWEN2, &QWEN3, &GEMMA3];

/// Qwen's first layer that slides, where config.json does not say.
const MAX_WINDOW_LAYERS: u64 = 28;
/// One of so many layers of Gemma sees everything, where config.json does not say.
const SLIDING_PATTERN: u64 = 6;

impl Family {
    /// The family of a `model_type`.
    pub(super) fn of(model_type: &str) -> Result<&'static Family> {
        // Gemma's models with several modalities nest the text model.
        let name = if model_type == "gemma3" { GEMMA3.model_type } else { model_type };
        FAMILIES.iter().find(|family| family.model_type == name).copied().ok_or_else(|| {
            ModelError::UnknownArchitecture {
                architecture: model_type.chars().take(64).collect(),
                known: FAMILIES.iter().map(|family| family.model_type).chain(["gemma3"]).collect(),
            }
            .into()
        })
    }

    pub(super) fn is_gemma(&self) -> bool {
        self.norms == Norms::Sandwich
    }

    /// An error for a variant that the decoder does not have.
    pub(super) fn unsupported(&self, feature: impl Into<String>) -> Error {
        ModelError::Unsupported { architecture: self.architecture.to_string(), feature: feature.into() }.into()
    }

    /// The window and which layers have it; `None` if none has.
    pub(super) fn windows(&self, fields: Fields<'_>, layers: u64) -> Result<Option<(u64, Vec<bool>)>> {
        let qwen = matches!(self.model_type, "qwen2" | "qwen3");
        if qwen && fields.bool("use_sliding_window")? != Some(true) {
            return Ok(None);
        }
        // `null` turns the window off, an absent field does not.
        let default = self.sliding_window.filter(|_| !fields.has("sliding_window"));
        let Some(window) = fields.count("sliding_window")?.or(default) else { return Ok(None) };
        if self.model_type == "llama" {
            return Err(self.unsupported("`sliding_window`"));
        }
        let slides = match fields.strings("layer_types")? {
            Some(types) => {
                let slides = types.iter().map(|kind| match *kind {
                    "sliding_attention" => Ok(true),
                    "full_attention" => Ok(false),
                    other => Err(self.unsupported(format!("layer type `{}`", super::shown(other)))),
                });
                let slides = slides.collect::<Result<Vec<bool>>>()?;
                if slides.len() as u64 != layers {
                    return Err(fields.invalid("layer_types", format!("{layers} entries, one per layer")).into());
                }
                slides
            }
            None if qwen => {
                // 0 is a value like any other here.
                let first = match fields.count("max_window_layers") {
                    Ok(first) => first.unwrap_or(MAX_WINDOW_LAYERS),
                    Err(_) if fields.is_zero("max_window_layers") => 0,
                    Err(error) => return Err(error.into()),
                };
                (0..layers).map(|layer| layer >= first).collect()
            }
            None if self.is_gemma() => {
                let every = match fields.count("sliding_window_pattern")? {
                    None => fields.count("_sliding_window_pattern")?,
                    given => given,
                };
                let every = every.unwrap_or(SLIDING_PATTERN);
                (0..layers).map(|layer| (layer + 1) % every != 0).collect()
            }
            None => vec![true; layers as usize],
        };
        Ok(slides.contains(&true).then_some((window, slides)))
    }

    /// The modules of every layer that must have a bias.
    pub(super) fn biases(&self, fields: Fields<'_>) -> Result<Vec<&'static str>> {
        let mut modules = Vec::new();
        if self.model_type == "qwen2" {
            modules.extend(["attn_q", "attn_k", "attn_v"]);
        } else if fields.bool("attention_bias")? == Some(true) {
            modules.extend(["attn_q", "attn_k", "attn_v", "attn_output"]);
        }
        if fields.bool("mlp_bias")? == Some(true) {
            modules.extend(["ffn_gate", "ffn_up", "ffn_down"]);
        }
        Ok(modules)
    }
}
