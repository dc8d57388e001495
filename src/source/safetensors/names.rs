//! Tensor names: from a Hugging Face checkpoint's to GGUF's.

/// Modules outside of the layers.
const MODEL: &[(&str, &str)] = &[("embed_tokens", "token_embd"), ("norm", "output_norm"), ("lm_head", "output")];

/// Modules of a layer that mean the same in all families.
const LAYER: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Norms of a layer with two norms: `post_attention_layernorm` comes before the MLP.
const PRE_NORMS: &[(&str, &str)] = &[("post_attention_layernorm", "ffn_norm")];

/// Norms of a layer with four norms: `post_attention_layernorm` is on the attention's output.
const SANDWICH_NORMS: &[(&str, &str)] = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Where a layer has its norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Norms {
    /// Before attention and before the MLP.
    Pre,
    /// Before and after both.
    Sandwich,
}

/// The GGUF name of a tensor; its own name where GGUF has none; nothing if no text model has a use for it.
pub(super) fn translate(name: &str, norms: Norms) -> Option<String> {
    // Models with several modalities nest the text model, with or without the outer `model.`.
    let mut inner = name;
    while let Some(rest) = ["model.", "language_model."].iter().find_map(|prefix| inner.strip_prefix(prefix)) {
        inner = rest;
    }
    if inner.starts_with("vision_tower.") || inner.starts_with("multi_modal_projector.") {
        return None;
    }
    // A buffer of old checkpoints, computed from the configuration.
    if inner.ends_with(".rotary_emb.inv_freq") {
        return None;
    }
    Some(translated(inner, norms).unwrap_or_else(|| name.to_string()))
}

fn translated(inner: &str, norms: Norms) -> Option<String> {
    let (module, kind) = inner.rsplit_once('.').filter(|(_, kind)| matches!(*kind, "weight" | "bias"))?;
    let find = |table: &[(&str, &'static str)], module: &str| {
        table.iter().find(|(known, _)| *known == module).map(|(_, gguf)| *gguf)
    };
    if let Some(gguf) = find(MODEL, module) {
        return Some(format!("{gguf}.{kind}"));
    }
    let (layer, module) = module.strip_prefix("layers.")?.split_once('.')?;
    let canonical = layer == "0" || (layer.bytes().all(|b| b.is_ascii_digit()) && !layer.starts_with('0'));
    let own = if norms == Norms::Sandwich { SANDWICH_NORMS } else { PRE_NORMS };
    let gguf = find(LAYER, module).or_else(|| find(own, module)).filter(|_| canonical)?;
    Some(format!("blk.{layer}.{gguf}.{kind}"))
}

/// What tells a quantized checkpoint by its tensors: the scales or packed values beside a weight.
pub(super) fn is_of_quantization(name: &str) -> bool {
    const SUFFIXES: [&str; 10] = [
        ".qweight",
        ".qzeros",
        ".scales",
        ".g_idx",
        ".weight_packed",
        ".weight_scale",
        ".weight_scale_inv",
        ".weight_zero_point",
        ".weight.absmax",
        ".SCB",
    ];
    SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_by_family() {
        let name = |name: &str, norms| translate(name, norms).unwrap();
        for (hf, gguf) in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight"),
            ("model.layers.12.self_attn.k_proj.bias", "blk.12.attn_k.bias"),
            ("layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight"),
            ("language_model.model.layers.3.mlp.up_proj.weight", "blk.3.ffn_up.weight"),
            ("model.language_model.layers.3.mlp.gate_proj.weight", "blk.3.ffn_gate.weight"),
            ("language_model.lm_head.weight", "output.weight"),
            ("model.layers.1.self_attn.q_norm.weight", "blk.1.attn_q_norm.weight"),
        ] {
            assert_eq!(name(hf, Norms::Pre), gguf);
            assert_eq!(name(hf, Norms::Sandwich), gguf);
        }
        let post = "model.layers.2.post_attention_layernorm.weight";
        assert_eq!(name(post, Norms::Pre), "blk.2.ffn_norm.weight");
        assert_eq!(name(post, Norms::Sandwich), "blk.2.post_attention_norm.weight");
        let before = "model.layers.2.pre_feedforward_layernorm.weight";
        assert_eq!(name(before, Norms::Sandwich), "blk.2.ffn_norm.weight");
        // What is not known keeps its name.
        for odd in
            [before, "model.layers.01.mlp.up_proj.weight", "model.layers.x.mlp.up_proj.weight", "layers.", "weight"]
        {
            assert_eq!(name(odd, Norms::Pre), odd);
        }
        for ignored in [
            "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight",
            "model.vision_tower.x.weight",
            "multi_modal_projector.mm_input_projection_weight",
            "model.layers.0.self_attn.rotary_emb.inv_freq",
        ] {
            assert_eq!(translate(ignored, Norms::Sandwich), None);
        }
    }
}
