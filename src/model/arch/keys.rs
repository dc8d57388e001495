//! Reading an architecture's keys: prefixes, defaults, and limits that keep later arithmetic in range.

use super::super::rope::{RopeSpec, Yarn};
use super::super::spec::{DecoderSpec, LayerSpec};
use crate::kernel::{Activation, KvShape};
use crate::source::Metadata;
use crate::weights::{Conventions, Interleaved, Weights};
use crate::{ModelError, Result};

/// Limits far above every known model; a larger number is a broken file.
const MAX_LAYERS: u64 = 1024;
const MAX_WIDTH: u64 = 1 << 20;
const MAX_CONTEXT: u64 = 1 << 30;

/// The metadata of one architecture.
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'static str,
}

impl<'a> Keys<'a> {
    pub(super) fn new(metadata: &'a Metadata, architecture: &'static str) -> Keys<'a> {
        Keys { metadata, architecture }
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn bounded(&self, key: &str, value: u64, max: u64) -> Result<usize> {
        if value == 0 || value > max {
            return Err(self.metadata.invalid(key, format!("an integer from 1 to {max}")).into());
        }
        Ok(value as usize)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.metadata.value(&self.key(name)).is_some()
    }

    pub(super) fn optional(&self, name: &str, max: u64) -> Result<Option<usize>> {
        let key = self.key(name);
        self.metadata.unsigned(&key)?.map(|value| self.bounded(&key, value, max)).transpose()
    }

    pub(super) fn required(&self, name: &str, max: u64) -> Result<usize> {
        let key = self.key(name);
        self.optional(name, max)?.ok_or_else(|| self.metadata.missing(&key).into())
    }

    pub(super) fn float(&self, name: &str) -> Result<Option<f64>> {
        self.metadata.float(&self.key(name))
    }

    /// A float above zero.
    pub(super) fn positive(&self, name: &str) -> Result<Option<f64>> {
        match self.float(name)? {
            Some(v) if v <= 0.0 => Err(self.metadata.invalid(&self.key(name), "a number above 0").into()),
            other => Ok(other),
        }
    }

    fn string(&self, name: &str) -> Result<Option<&'a str>> {
        self.metadata.string(&self.key(name))
    }

    /// A key that is one integer for all layers, or one per layer.
    fn per_layer(&self, name: &str, layers: usize, max: u64) -> Result<Option<Vec<usize>>> {
        let key = self.key(name);
        if let Some(crate::source::Value::Array(_)) = self.metadata.value(&key) {
            let values = self.metadata.integers(&key)?.unwrap_or_default();
            if values.len() != layers {
                return Err(self.metadata.invalid(&key, format!("{layers} integers, one per layer")).into());
            }
            let bounded = |v: i64| self.bounded(&key, u64::try_from(v).unwrap_or(0), max);
            return values.into_iter().map(bounded).collect::<Result<_>>().map(Some);
        }
        Ok(self.optional(name, max)?.map(|value| vec![value; layers]))
    }

    /// Which layers slide, from `attention.sliding_window_pattern`: an integer n (layer i slides unless
    /// `i mod n = n - 1`) or one bool per layer.
    fn sliding_pattern(&self, layers: usize, default: usize) -> Result<Vec<bool>> {
        let key = self.key("attention.sliding_window_pattern");
        if let Some(crate::source::Value::Array(_)) = self.metadata.value(&key) {
            let pattern = self.metadata.bools(&key)?.unwrap_or_default();
            if pattern.len() != layers {
                return Err(self.metadata.invalid(&key, format!("{layers} bools, one per layer")).into());
            }
            return Ok(pattern);
        }
        let every = self.metadata.unsigned(&key)?.map_or(default, |n| n.min(MAX_LAYERS) as usize);
        Ok((0..layers).map(|i| every == 0 || i % every < every - 1).collect())
    }

    fn unsupported(&self, feature: impl Into<String>) -> crate::Error {
        ModelError::Unsupported { architecture: self.architecture.to_string(), feature: feature.into() }.into()
    }

    /// The rotation for `base`, with the scaling that the file names.
    pub(super) fn rope(&self, weights: &mut Weights<'_>, base: f64, head_dim: usize) -> Result<RopeSpec> {
        let dims = self.optional("rope.dimension_count", MAX_WIDTH)?.unwrap_or(head_dim);
        if dims > head_dim || dims % 2 != 0 {
            let expected = format!("an even number up to the head's {head_dim} values");
            return Err(self.metadata.invalid(&self.key("rope.dimension_count"), expected).into());
        }
        if base <= 1.0 {
            return Err(self.metadata.invalid(&self.key("rope.freq_base"), "a number above 1").into());
        }
        let mut rope = RopeSpec::new(base, dims);
        if let Some(factors) = weights.optional_vector("rope_freqs.weight", dims / 2)? {
            if factors.iter().any(|f| !f.is_finite() || *f <= 0.0) {
                return Err(self.unsupported("rope_freqs.weight with a factor that is not above 0"));
            }
            rope = rope.divided_by(&factors);
        }
        // Files say 0 for none.
        let factor = match self.float("rope.scaling.factor")?.filter(|factor| *factor != 0.0) {
            Some(_) => self.positive("rope.scaling.factor")?,
            None => self.positive("rope.scale_linear")?,
        };
        let factor = factor.unwrap_or(1.0);
        match self.string("rope.scaling.type")? {
            Some("none") => Ok(rope),
            None | Some("linear") => Ok(rope.linear(factor)),
            Some("llama3") => {
                let original = self.required("rope.scaling.original_context_length", MAX_CONTEXT)?;
                let [low, high] = ["candlewick.rope.low_freq_factor", "candlewick.rope.high_freq_factor"];
                let (Some(low), Some(high)) = (self.positive(low)?, self.positive(high)?) else {
                    return Err(self.unsupported("rope scaling `llama3` without its two frequency factors"));
                };
                Ok(rope.llama3(factor, original as f64, low, high))
            }
            Some("yarn") => Ok(rope.yarn(base, &self.yarn(factor)?)),
            Some(other) => Err(self.unsupported(format!("rope scaling `{other}`"))),
        }
    }

    /// GGUF's keys, and those of configurations that GGUF has none for.
    fn yarn(&self, factor: f64) -> Result<Yarn> {
        let context = self.required("context_length", MAX_CONTEXT)?;
        let original = self.optional("rope.scaling.original_context_length", MAX_CONTEXT)?.unwrap_or(context);
        let mscales = [self.positive("candlewick.rope.mscale")?, self.positive("candlewick.rope.mscale_all_dim")?];
        let magnitude = match (self.positive("candlewick.rope.attention_factor")?, mscales) {
            (Some(factor), _) => factor,
            (None, [Some(mscale), Some(all)]) => Yarn::growth(factor, mscale) / Yarn::growth(factor, all),
            _ => Yarn::growth(factor, 1.0),
        };
        Ok(Yarn {
            factor,
            original_context: original as f64,
            beta_fast: self.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: self.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            truncate: self.metadata.bool(&self.key("candlewick.rope.truncate"))?.unwrap_or(true),
            magnitude: magnitude * self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
        })
    }

    /// A pre-norm decoder with what all architectures share; the caller changes what differs.
    pub(super) fn decoder(&self, weights: &mut Weights<'_>, default_base: f64) -> Result<DecoderSpec> {
        if self.metadata.unsigned(&self.key("expert_count"))?.unwrap_or(0) > 0 {
            return Err(self.unsupported("mixture of experts"));
        }
        let layers = self.required("block_count", MAX_LAYERS)?;
        let hidden_size = self.required("embedding_length", MAX_WIDTH)?;
        let heads = self
            .uniform("attention.head_count", layers)?
            .ok_or_else(|| crate::Error::from(self.metadata.missing(&self.key("attention.head_count"))))?;
        let kv_heads = self.uniform("attention.head_count_kv", layers)?.unwrap_or(heads);
        let key_length = self.optional("attention.key_length", MAX_WIDTH)?;
        if key_length.is_none() && hidden_size % heads != 0 {
            let expected = format!("a divisor of embedding_length {hidden_size}");
            return Err(self.metadata.invalid(&self.key("attention.head_count"), expected).into());
        }
        let head_dim = key_length.unwrap_or(hidden_size / heads);
        if self.optional("attention.value_length", MAX_WIDTH)?.is_some_and(|v| v != head_dim) {
            return Err(self.unsupported("values of another length than keys"));
        }
        if heads % kv_heads != 0 {
            let expected = format!("a divisor of head_count {heads}");
            return Err(self.metadata.invalid(&self.key("attention.head_count_kv"), expected).into());
        }
        if heads.saturating_mul(head_dim) > MAX_WIDTH as usize {
            return Err(self.metadata.invalid(&self.key("attention.key_length"), "a smaller head").into());
        }
        let feed_forward = self.per_layer("feed_forward_length", layers, MAX_WIDTH)?;
        let feed_forward = feed_forward.ok_or_else(|| self.metadata.missing(&self.key("feed_forward_length")))?;
        let eps_key = "attention.layer_norm_rms_epsilon";
        let norm_eps = self.positive(eps_key)?.ok_or_else(|| self.metadata.missing(&self.key(eps_key)))?;
        let base = self.positive("rope.freq_base")?.unwrap_or(default_base);
        let vocab_size = weights.shape("token_embd.weight")?.first().copied().unwrap_or(0);
        Ok(DecoderSpec {
            vocab_size,
            hidden_size,
            context_length: self.required("context_length", MAX_CONTEXT)?,
            heads,
            kv: KvShape { kv_heads, head_dim },
            norm_eps: norm_eps as f32,
            layers: feed_forward
                .into_iter()
                .map(|feed_forward| LayerSpec { window: None, rope: 0, feed_forward })
                .collect(),
            ropes: vec![self.rope(weights, base, head_dim)?],
            activation: self.activation()?.unwrap_or(Activation::Silu),
            attention_scale: self.attention_scale(head_dim)?,
            attention_softcap: None,
            final_softcap: None,
            embedding_scale: None,
            qk_norm: false,
            post_norms: false,
            conventions: Conventions {
                norm_offset: self.float("candlewick.norm_offset")?.unwrap_or(0.0) as f32,
                interleaved: None,
            },
        })
    }

    /// Rows of q and k are stored in pairs, unless the source says otherwise.
    pub(super) fn interleaved_rows(&self, spec: &mut DecoderSpec) -> Result<()> {
        const KEY: &str = "candlewick.rotary_rows";
        match self.string(KEY)? {
            Some("halves") => return Ok(()),
            Some(_) => return Err(self.metadata.invalid(&self.key(KEY), "`halves`, or no such key").into()),
            None => {}
        }
        let head_dim = spec.kv.head_dim;
        // All values of a head were permuted, so all must rotate.
        if spec.ropes.iter().any(|rope| 2 * rope.frequencies.len() != head_dim) {
            return Err(self.unsupported("a rotation of a part of each head"));
        }
        let rows = spec.query_width() + spec.kv_width();
        spec.conventions.interleaved = Some(Interleaved { head_dim, rows });
        Ok(())
    }

    pub(super) fn activation(&self) -> Result<Option<Activation>> {
        const KEY: &str = "candlewick.activation";
        match self.string(KEY)? {
            None => Ok(None),
            Some("silu") => Ok(Some(Activation::Silu)),
            Some("gelu_tanh") => Ok(Some(Activation::GeluTanh)),
            Some(_) => Err(self.metadata.invalid(&self.key(KEY), "`silu` or `gelu_tanh`").into()),
        }
    }

    /// The factor on scores: the file's if it is above 0, else what the head's width implies.
    fn attention_scale(&self, head_dim: usize) -> Result<f32> {
        let given = self.float("attention.scale")?.filter(|&scale| scale > 0.0);
        Ok(given.unwrap_or(1.0 / (head_dim as f64).sqrt()) as f32)
    }

    pub(super) fn softcap(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.float(name)?.filter(|&cap| cap > 0.0).map(|cap| cap as f32))
    }

    /// Gives the layers that slide their window; answers which. Without a pattern, layer i slides unless
    /// `i mod default = default - 1`, where 0 means that all slide.
    pub(super) fn windows(&self, spec: &mut DecoderSpec, default: usize) -> Result<Vec<usize>> {
        let Some(window) = self.optional("attention.sliding_window", MAX_CONTEXT)? else { return Ok(Vec::new()) };
        let pattern = self.sliding_pattern(spec.layers.len(), default)?;
        let sliding: Vec<usize> = (0..spec.layers.len()).filter(|&layer| pattern[layer]).collect();
        for &layer in &sliding {
            spec.layers[layer].window = Some(window);
        }
        Ok(sliding)
    }

    /// [`windows`](Keys::windows) where the file lists the layers, none where it does not.
    pub(super) fn listed_windows(&self, spec: &mut DecoderSpec) -> Result<()> {
        if self.has("attention.sliding_window_pattern") {
            self.windows(spec, 0)?;
        }
        Ok(())
    }

    /// A per-layer key that must be the same for all layers.
    fn uniform(&self, name: &str, layers: usize) -> Result<Option<usize>> {
        let Some(values) = self.per_layer(name, layers, MAX_WIDTH)? else { return Ok(None) };
        if values.iter().any(|v| *v != values[0]) {
            return Err(self.unsupported(format!("`{}` that differs between layers", self.key(name))));
        }
        Ok(Some(values[0]))
    }
}
