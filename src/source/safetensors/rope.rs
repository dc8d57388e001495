//! Rotary positions: from config.json's two layouts to metadata keys.
//!
//! Older files have `rope_theta` and `rope_scaling`, newer ones `rope_parameters` with everything in it, per layer type
//! for Gemma. Must not compute frequencies: that is the model's.

use super::family::Family;
use super::fields::Fields;
use crate::source::{shown, Metadata, Value};
use crate::Result;

/// Base of Gemma's sliding layers, where config.json does not say.
const LOCAL_BASE: f64 = 10_000.0;

/// Sets the keys of `rope.*`.
pub(super) fn set(fields: Fields<'_>, family: &Family, head_dim: u64, metadata: &mut Metadata) -> Result<()> {
    let parameters = fields.object("rope_parameters", "rope_parameters.")?;
    let nested = |key, prefix| parameters.map_or(Ok(None), |p: Fields<'_>| p.object(key, prefix));
    let full = nested("full_attention", "rope_parameters.full_attention.")?;
    let sliding = nested("sliding_attention", "rope_parameters.sliding_attention.")?;
    let scaling = match full.or(parameters) {
        None => fields.object("rope_scaling", "rope_scaling.")?,
        newer => newer,
    };
    // Loaders differ in which of the two they read.
    let older = fields.object("rope_scaling", "rope_scaling.")?;
    if let (Some(newer), Some(older)) = (full.or(parameters), older) {
        if kind(newer)? != kind(older)? || newer.positive("factor")? != older.positive("factor")? {
            return Err(family.unsupported("`rope_scaling` beside `rope_parameters` that say something else; keep one"));
        }
    }
    let mut set = |key: &str, value: Value| {
        metadata.insert(format!("{}.{key}", family.architecture), value);
    };

    let within = |key: &str| scaling.map_or(Ok(None), |s| s.positive(key));
    let base = match within("rope_theta")? {
        None => fields.positive("rope_theta")?,
        given => given,
    };
    set("rope.freq_base", Value::Float(base.unwrap_or(family.rope_theta)));
    if family.is_gemma() {
        let local = sliding.map_or(Ok(None), |s| s.positive("rope_theta"))?;
        let local = match local {
            None => fields.positive("rope_local_base_freq")?,
            given => given,
        };
        set("rope.freq_base_swa", Value::Float(local.unwrap_or(LOCAL_BASE)));
        if let Some(kind) = sliding.map_or(Ok(None), kind)?.filter(|kind| *kind != "default") {
            return Err(family.unsupported(format!("rope scaling `{}` of sliding layers", shown(kind))));
        }
    }
    let partial = match within("partial_rotary_factor")? {
        None => fields.positive("partial_rotary_factor")?,
        given => given,
    };
    if let Some(partial) = partial {
        if partial > 1.0 {
            return Err(fields.invalid("partial_rotary_factor", "a number above 0, up to 1").into());
        }
        set("rope.dimension_count", Value::Unsigned((head_dim as f64 * partial) as u64));
    }

    let Some(scaling) = scaling else { return Ok(()) };
    let kind = kind(scaling)?.unwrap_or("default");
    let original = || -> Result<Option<u64>> {
        match scaling.count("original_max_position_embeddings")? {
            None => Ok(fields.count("original_max_position_embeddings")?),
            given => Ok(given),
        }
    };
    let factor = || -> Result<Value> {
        let factor = scaling.required_positive("factor")?;
        if factor < 1.0 {
            return Err(scaling.invalid("factor", "a number from 1 on").into());
        }
        Ok(Value::Float(factor))
    };
    match kind {
        "default" => return Ok(()),
        "linear" => set("rope.scaling.factor", factor()?),
        "llama3" => {
            set("rope.scaling.factor", factor()?);
            let key = "original_max_position_embeddings";
            let original = original()?.ok_or_else(|| scaling.missing(key))?;
            set("rope.scaling.original_context_length", Value::Unsigned(original));
            let (low, high) =
                (scaling.required_positive("low_freq_factor")?, scaling.required_positive("high_freq_factor")?);
            if high <= low {
                return Err(scaling.invalid("high_freq_factor", "a number above `low_freq_factor`").into());
            }
            set("candlewick.rope.low_freq_factor", Value::Float(low));
            set("candlewick.rope.high_freq_factor", Value::Float(high));
        }
        "yarn" => {
            set("rope.scaling.factor", factor()?);
            if let Some(original) = original()? {
                set("rope.scaling.original_context_length", Value::Unsigned(original));
            }
            for (field, key) in
                [("beta_fast", "rope.scaling.yarn_beta_fast"), ("beta_slow", "rope.scaling.yarn_beta_slow")]
            {
                if let Some(beta) = scaling.positive(field)? {
                    set(key, Value::Float(beta));
                }
            }
            if let Some(attention) = scaling.positive("attention_factor")? {
                set("candlewick.rope.attention_factor", Value::Float(attention));
            }
            // As transformers has it, 0 counts as absent, and one without the other has no effect.
            let mscale = |field: &str| if scaling.is_zero(field) { Ok(None) } else { scaling.positive(field) };
            if let (Some(mscale), Some(all_dim)) = (mscale("mscale")?, mscale("mscale_all_dim")?) {
                set("candlewick.rope.mscale", Value::Float(mscale));
                set("candlewick.rope.mscale_all_dim", Value::Float(all_dim));
            }
            if let Some(truncate) = scaling.bool("truncate")? {
                set("candlewick.rope.truncate", Value::Bool(truncate));
            }
        }
        other => return Err(family.unsupported(format!("rope scaling `{}`", shown(other)))),
    }
    set("rope.scaling.type", Value::String(kind.to_string()));
    Ok(())
}

/// The type of scaling, under its newer or its older name.
fn kind(scaling: Fields<'_>) -> std::result::Result<Option<&str>, crate::SourceError> {
    match scaling.string("rope_type")? {
        None => scaling.string("type"),
        given => Ok(given),
    }
}
