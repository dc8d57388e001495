//! One layer's weights, taken from the source by the specification.

use super::spec::{DecoderSpec, LayerSpec};
use crate::quant::{QuantizedMatrix, Role, Site};
use crate::weights::{LinearSpec, Weights};
use crate::Result;

/// A matrix with its bias.
pub(super) struct Linear {
    pub(super) site: Site,
    pub(super) weight: Box<dyn QuantizedMatrix>,
    pub(super) bias: Option<Vec<f32>>,
}

/// The linears of one layer by the inputs that they share, in the order of execution.
pub(super) struct LayerLinears {
    attention: Vec<LinearSpec>,
    output: Vec<LinearSpec>,
    feed_forward: Vec<LinearSpec>,
    down: Vec<LinearSpec>,
}

impl LayerLinears {
    /// Where the linears of layer `index` lie, each checked for its shape.
    pub(super) fn find(
        weights: &Weights<'_>,
        spec: &DecoderSpec,
        layer: &LayerSpec,
        index: usize,
    ) -> Result<LayerLinears> {
        let (hidden, ff) = (spec.hidden_size, layer.feed_forward);
        let (query, kv) = (spec.query_width(), spec.kv_width());
        let name = |tensor: &str| format!("blk.{index}.{tensor}.weight");
        let single = |role: Role, tensor: &str, rows: usize, cols: usize| {
            weights.linear(Site::new(Some(index), role, name(tensor)), rows, cols, 0..rows)
        };
        // Consecutive rows of one tensor.
        let parts = |tensor: &str, parts: &[(Role, usize)]| {
            let total = parts.iter().map(|(_, rows)| rows).sum();
            let mut first = 0;
            let part = |&(role, rows): &(Role, usize)| {
                let range = first..first + rows;
                first = range.end;
                weights.linear(Site::new(Some(index), role, name(tensor)), total, hidden, range)
            };
            parts.iter().map(part).collect::<Result<Vec<_>>>()
        };
        let attention = if weights.has(&name("attn_qkv")) {
            parts("attn_qkv", &[(Role::Query, query), (Role::Key, kv), (Role::Value, kv)])?
        } else {
            vec![
                single(Role::Query, "attn_q", query, hidden)?,
                single(Role::Key, "attn_k", kv, hidden)?,
                single(Role::Value, "attn_v", kv, hidden)?,
            ]
        };
        let feed_forward = if weights.has(&name("ffn_gate")) {
            vec![single(Role::Gate, "ffn_gate", ff, hidden)?, single(Role::Up, "ffn_up", ff, hidden)?]
        } else {
            // One tensor of both, gate rows first.
            parts("ffn_up", &[(Role::Gate, ff), (Role::Up, ff)])?
        };
        let output = vec![single(Role::AttentionOutput, "attn_output", hidden, query)?];
        let down = vec![single(Role::Down, "ffn_down", hidden, ff)?];
        Ok(LayerLinears { attention, output, feed_forward, down })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LinearSpec> {
        [&self.attention, &self.output, &self.feed_forward, &self.down].into_iter().flatten()
    }
}

/// The weights of one layer; norms that the architecture lacks are absent.
pub(super) struct Layer {
    pub(super) attention_norm: Vec<f32>,
    pub(super) q: Linear,
    pub(super) k: Linear,
    pub(super) v: Linear,
    pub(super) output: Linear,
    pub(super) q_norm: Option<Vec<f32>>,
    pub(super) k_norm: Option<Vec<f32>>,
    pub(super) post_attention_norm: Option<Vec<f32>>,
    pub(super) feed_forward_norm: Vec<f32>,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) post_feed_forward_norm: Option<Vec<f32>>,
}

impl Layer {
    pub(super) fn load(
        weights: &mut Weights<'_>,
        spec: &DecoderSpec,
        linears: &LayerLinears,
        index: usize,
    ) -> Result<Layer> {
        let (hidden, head_dim) = (spec.hidden_size, spec.kv.head_dim);
        let name = |tensor: &str| format!("blk.{index}.{tensor}");
        let mut norm = |when: bool, tensor: &str, len: usize| {
            when.then(|| weights.vector(&name(&format!("{tensor}.weight")), len)).transpose()
        };
        let q_norm = norm(spec.qk_norm, "attn_q_norm", head_dim)?;
        let k_norm = norm(spec.qk_norm, "attn_k_norm", head_dim)?;
        let post_attention_norm = norm(spec.post_norms, "post_attention_norm", hidden)?;
        let post_feed_forward_norm = norm(spec.post_norms, "post_ffw_norm", hidden)?;
        let attention_norm = weights.vector(&name("attn_norm.weight"), hidden)?;
        let feed_forward_norm = weights.vector(&name("ffn_norm.weight"), hidden)?;

        let [q, k, v] = load_group(weights, &linears.attention)?;
        let [output] = load_group(weights, &linears.output)?;
        let [gate, up] = load_group(weights, &linears.feed_forward)?;
        let [down] = load_group(weights, &linears.down)?;
        Ok(Layer {
            attention_norm,
            q,
            k,
            v,
            output,
            q_norm,
            k_norm,
            post_attention_norm,
            feed_forward_norm,
            gate,
            up,
            down,
            post_feed_forward_norm,
        })
    }

    /// Those of queries, keys and values.
    pub(super) fn inputs(&self) -> [&Linear; 3] {
        [&self.q, &self.k, &self.v]
    }

    pub(super) fn linears(&self) -> [&Linear; 7] {
        [&self.q, &self.k, &self.v, &self.output, &self.gate, &self.up, &self.down]
    }
}

/// The matrices of one group, by the quantizer, with their biases.
pub(super) fn load_group<const N: usize>(weights: &mut Weights<'_>, linears: &[LinearSpec]) -> Result<[Linear; N]> {
    let biases = biases(weights, linears)?;
    let matrices = weights.group(linears)?;
    let sites = linears.iter().map(|linear| linear.info.site.clone());
    let loaded = sites.zip(matrices).zip(biases).map(|((site, weight), bias)| Linear { site, weight, bias });
    // `group` answers with a matrix per linear, and a group has N.
    loaded.collect::<Vec<_>>().try_into().map_err(|_| unreachable!("a matrix per linear"))
}

/// The biases where there are some. A fused tensor's is as long as the tensor; where it has none, those of the single
/// linears count.
fn biases(weights: &mut Weights<'_>, linears: &[LinearSpec]) -> Result<Vec<Option<Vec<f32>>>> {
    let bias_of = |name: &str| format!("{}.bias", name.strip_suffix(".weight").unwrap_or(name));
    let mut whole: Option<Vec<f32>> = None;
    let mut biases = Vec::with_capacity(linears.len());
    for linear in linears {
        let site = &linear.info.site;
        let (total, range) = linear.place();
        if !linear.is_part() {
            biases.push(weights.optional_vector(&bias_of(&site.name), total)?);
            continue;
        }
        if range.start == 0 {
            whole = weights.optional_vector(&bias_of(&site.name), total)?;
        }
        biases.push(match &whole {
            Some(whole) => Some(whole[range].to_vec()),
            None => weights.optional_vector(&bias_of(&site.gguf_name()), range.len())?,
        });
    }
    Ok(biases)
}
