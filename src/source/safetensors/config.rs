//! config.json as metadata in GGUF's key convention.
//!
//! What GGUF has no key for gets one under `<architecture>.candlewick.`; the list is at
//! [`Safetensors`](super::Safetensors). Must not know tensors.

use super::family::Family;
use super::fields::Fields;
use super::rope;
use crate::source::{shown, Array, Metadata, Value};
use crate::{Result, SourceError};

/// More than any model has, so that a list of layers stays short.
const MAX_LAYERS: u64 = 1024;
const EPS: f64 = 1e-6;
/// Gemma's, where config.json does not say.
const QUERY_PRE_ATTN_SCALAR: f64 = 256.0;

/// A configuration that was understood.
pub(super) struct Config {
    pub(super) family: &'static Family,
    pub(super) metadata: Metadata,
    /// Whether the head is the embedding.
    pub(super) tied: bool,
    pub(super) layers: u64,
    /// GGUF's names of the modules of each layer that must have a bias.
    pub(super) biases: Vec<&'static str>,
}

/// Translates the object of the file `file`; `source_name` is the directory.
pub(super) fn translate(source_name: &str, file: &str, json: &serde_json::Value) -> Result<Config> {
    let not_an_object = || SourceError::InvalidJson {
        source_name: file.to_string(),
        what: "the configuration",
        expected: "an object".to_string(),
        found: "another value".to_string(),
        at: 0,
    };
    let root = Fields::new(file, json.as_object().ok_or_else(not_an_object)?);
    let text = root.object("text_config", "text_config.")?;
    for fields in [Some(root), text].into_iter().flatten() {
        quantization(fields)?;
    }
    let model_type = root.string("model_type")?.ok_or_else(|| root.missing("model_type"))?;
    let family = Family::of(model_type)?;
    let fields = text.unwrap_or(root);

    let mut metadata = Metadata::new(source_name);
    metadata.insert("general.architecture", family.architecture.into());
    let layers = count(fields, "num_hidden_layers", family.num_hidden_layers)?;
    if layers > MAX_LAYERS {
        return Err(fields.invalid("num_hidden_layers", format!("an integer from 1 to {MAX_LAYERS}")).into());
    }
    let hidden_size = count(fields, "hidden_size", family.hidden_size)?;
    let heads = count(fields, "num_attention_heads", family.num_attention_heads)?;
    let kv_default = family.num_key_value_heads.filter(|_| !fields.has("num_key_value_heads"));
    let kv_heads = fields.count("num_key_value_heads")?.or(kv_default).unwrap_or(heads);
    // `null` means that the heads divide the width, also where the class has a default.
    let head_default = family.head_dim.filter(|_| !fields.has("head_dim"));
    let head_dim = match fields.count("head_dim")?.or(head_default) {
        Some(head_dim) => head_dim,
        None if hidden_size % heads == 0 => hidden_size / heads,
        None => return Err(fields.invalid("num_attention_heads", "a divisor of `hidden_size`").into()),
    };
    let mut set = |key: &str, value: Value| {
        metadata.insert(format!("{}.{key}", family.architecture), value);
    };
    set("block_count", layers.into());
    set("embedding_length", hidden_size.into());
    set("feed_forward_length", count(fields, "intermediate_size", family.intermediate_size)?.into());
    let context = fields.count("max_position_embeddings")?.unwrap_or(family.max_position_embeddings);
    set("context_length", context.into());
    set("attention.head_count", heads.into());
    set("attention.head_count_kv", kv_heads.into());
    set("attention.key_length", head_dim.into());
    set("attention.value_length", head_dim.into());
    set("attention.layer_norm_rms_epsilon", fields.positive("rms_norm_eps")?.unwrap_or(EPS).into());
    if let Some((window, slides)) = family.windows(fields, layers)? {
        set("attention.sliding_window", window.into());
        set("attention.sliding_window_pattern", Value::Array(Array::Bool(slides)));
    }
    set("candlewick.activation", activation(fields, family)?.into());
    set("candlewick.rotary_rows", "halves".into());
    if family.is_gemma() {
        let scalar = fields.positive("query_pre_attn_scalar")?.unwrap_or(QUERY_PRE_ATTN_SCALAR);
        set("attention.scale", (1.0 / scalar.sqrt()).into());
        set("candlewick.norm_offset", 1.0f64.into());
        if fields.bool("use_bidirectional_attention")? == Some(true) {
            return Err(family.unsupported("`use_bidirectional_attention`"));
        }
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(cap) = fields.positive(key)? {
                set(key, cap.into());
            }
        }
    }
    rope::set(fields, family, head_dim, &mut metadata)?;
    let tied = match fields.bool("tie_word_embeddings")? {
        None => root.bool("tie_word_embeddings")?,
        given => given,
    };
    let tied = tied.unwrap_or(family.tie_word_embeddings);
    let biases = family.biases(fields)?;
    Ok(Config { family, metadata, tied, layers, biases })
}

fn count(fields: Fields<'_>, key: &str, default: Option<u64>) -> Result<u64> {
    match default {
        None => Ok(fields.required_count(key)?),
        Some(default) => Ok(fields.count(key)?.unwrap_or(default)),
    }
}

/// Refuses a checkpoint that says that it is quantized.
fn quantization(fields: Fields<'_>) -> Result<()> {
    for (key, prefix) in
        [("quantization_config", "quantization_config."), ("compression_config", "compression_config.")]
    {
        if let Some(quantization) = fields.object(key, prefix)? {
            let method = quantization.string("quant_method")?.unwrap_or("an unnamed method");
            let source_name = fields.file().to_string();
            return Err(SourceError::QuantizedCheckpoint { source_name, method: shown(method) }.into());
        }
    }
    Ok(())
}

/// The activation by the name that the model's keys use.
fn activation(fields: Fields<'_>, family: &Family) -> Result<&'static str> {
    // Gemma's files may carry both; `hidden_act` is not read then.
    let (key, default) = match family.is_gemma() {
        true => ("hidden_activation", "gelu_pytorch_tanh"),
        false => ("hidden_act", "silu"),
    };
    match fields.string(key)?.unwrap_or(default) {
        "silu" | "swish" => Ok("silu"),
        "gelu_pytorch_tanh" | "gelu_new" => Ok("gelu_tanh"),
        other => Err(family.unsupported(format!("activation `{}`", shown(other)))),
    }
}
