//! Gemma 3 (text): norms before and after each block, normed q and k heads, two rotations, five sliding layers to
//! one full one, scaled embeddings. Norms multiply by 1 + w: GGUF stores that sum, other checkpoints w.

use super::super::rope::RopeSpec;
use super::super::spec::DecoderSpec;
use super::keys::Keys;
use crate::kernel::Activation;
use crate::weights::Weights;
use crate::Result;

pub(super) fn spec(keys: &Keys<'_>, weights: &mut Weights<'_>) -> Result<DecoderSpec> {
    let mut spec = keys.decoder(weights, 1_000_000.0)?;
    let dims = 2 * spec.ropes[0].frequencies.len();
    // Sliding layers rotate by their own base, never scaled.
    let sliding_base = keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
    spec.ropes.push(RopeSpec::new(sliding_base, dims));
    for layer in keys.windows(&mut spec, 6)? {
        spec.layers[layer].rope = 1;
    }
    // The 27B model scales scores by hidden / heads; GGUF has no key for it, so it is known by its 62 layers.
    if spec.layers.len() == 62 && !keys.has("attention.scale") {
        spec.attention_scale = (spec.heads as f64 / spec.hidden_size as f64).sqrt() as f32;
    }
    spec.activation = keys.activation()?.unwrap_or(Activation::GeluTanh);
    spec.embedding_scale = Some((spec.hidden_size as f32).sqrt());
    spec.attention_softcap = keys.softcap("attn_logit_softcapping")?;
    spec.final_softcap = keys.softcap("final_logit_softcapping")?;
    spec.qk_norm = true;
    spec.post_norms = true;
    Ok(spec)
}
