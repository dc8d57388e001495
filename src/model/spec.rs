//! What an architecture must say about itself; the decoder reads nothing else.

use super::rope::RopeSpec;
use crate::cache::CacheLayout;
use crate::kernel::{Activation, KvShape};
use crate::weights::Conventions;

/// A decoder as data.
#[derive(Clone, Debug)]
pub(crate) struct DecoderSpec {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) context_length: usize,
    pub(crate) heads: usize,
    pub(crate) kv: KvShape,
    pub(crate) norm_eps: f32,
    pub(crate) layers: Vec<LayerSpec>,
    /// The kinds of rotation that layers choose from.
    pub(crate) ropes: Vec<RopeSpec>,
    pub(crate) activation: Activation,
    /// Factor on the scores.
    pub(crate) attention_scale: f32,
    pub(crate) attention_softcap: Option<f32>,
    pub(crate) final_softcap: Option<f32>,
    /// Factor on the token embeddings.
    pub(crate) embedding_scale: Option<f32>,
    /// Norm each head of q and k before the rotation.
    pub(crate) qk_norm: bool,
    /// Norm the output of attention and MLP before it is added.
    pub(crate) post_norms: bool,
    /// How the source stores what the decoder computes with.
    pub(crate) conventions: Conventions,
}

/// One layer.
#[derive(Clone, Debug)]
pub(crate) struct LayerSpec {
    /// Keys that a query sees, its own included; `None` sees all.
    pub(crate) window: Option<usize>,
    /// Index into [`DecoderSpec::ropes`].
    pub(crate) rope: usize,
    pub(crate) feed_forward: usize,
}

impl DecoderSpec {
    /// Values of all query heads of a row.
    pub(crate) fn query_width(&self) -> usize {
        self.heads * self.kv.head_dim
    }

    /// Values of all KV heads of a row.
    pub(crate) fn kv_width(&self) -> usize {
        self.kv.kv_heads * self.kv.head_dim
    }

    pub(crate) fn cache_layout(&self) -> CacheLayout {
        CacheLayout::new(self.layers.iter().map(|l| l.window))
    }
}
