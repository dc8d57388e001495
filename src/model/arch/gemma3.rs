//! Gemma 3 (text): norms before and after each block, normed q and k heads, two rotations, five sliding layers to
//! one full one, scaled embeddings. GGUF stores the norms' weights as w + 1, so that they are plain here.

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
    if let Some(window) = keys.optional("attention.sliding_window", 1 << 30)? {
        let pattern = keys.sliding_pattern(spec.layers.len(), 6)?;
        for (layer, slides) in spec.layers.iter_mut().zip(pattern) {
            if slides {
                (layer.window, layer.rope) = (Some(window), 1);
            }
        }
    }
    // The 27B model scales scores by hidden / heads; it is known by its 62 layers, for no key says so.
    if spec.layers.len() == 62 {
        spec.attention_scale = (spec.heads as f64 / spec.hidden_size as f64).sqrt() as f32;
    }
    spec.activation = Activation::GeluTanh;
    spec.embedding_scale = Some((spec.hidden_size as f32).sqrt());
    spec.final_softcap = keys.float("final_logit_softcapping")?.filter(|&cap| cap > 0.0).map(|cap| cap as f32);
    spec.qk_norm = true;
    spec.post_norms = true;
    Ok(spec)
}
