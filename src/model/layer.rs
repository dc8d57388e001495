//! One layer's weights, taken from the source by the specification.

use super::spec::{DecoderSpec, LayerSpec};
use crate::kernel::PackedMatrix;
use crate::weights::Weights;
use crate::Result;

/// A matrix with its bias.
pub(super) struct Linear {
    pub(super) weight: PackedMatrix,
    pub(super) bias: Option<Vec<f32>>,
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
        layer: &LayerSpec,
        index: usize,
    ) -> Result<Layer> {
        let hidden = spec.hidden_size;
        let (query, kv, head_dim) = (spec.query_width(), spec.kv_width(), spec.kv.head_dim);
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

        let [q, k, v] =
            fused(weights, &name("attn_qkv"), ["attn_q", "attn_k", "attn_v"].map(&name), [query, kv, kv], hidden)?;
        let output = linear(weights, &name("attn_output"), hidden, query)?;
        let ff = layer.feed_forward;
        let [gate, up] = if weights.has(&name("ffn_gate.weight")) {
            [linear(weights, &name("ffn_gate"), ff, hidden)?, linear(weights, &name("ffn_up"), ff, hidden)?]
        } else {
            // One tensor of both, gate rows first.
            parts(weights, &name("ffn_up"), [ff, ff], hidden)?
        };
        let down = linear(weights, &name("ffn_down"), hidden, ff)?;
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

    /// Bytes of the packed matrices.
    pub(super) fn size_in_bytes(&self) -> usize {
        [&self.q, &self.k, &self.v, &self.output, &self.gate, &self.up, &self.down]
            .iter()
            .map(|l| l.weight.size_in_bytes())
            .sum()
    }
}

fn linear(weights: &mut Weights<'_>, name: &str, rows: usize, cols: usize) -> Result<Linear> {
    let bias = weights.optional_vector(&format!("{name}.bias"), rows)?;
    Ok(Linear { weight: weights.matrix(&format!("{name}.weight"), rows, cols)?, bias })
}

/// Consecutive row ranges of one tensor.
fn parts<const N: usize>(weights: &mut Weights<'_>, name: &str, rows: [usize; N], cols: usize) -> Result<[Linear; N]> {
    let total: usize = rows.iter().sum();
    let bias = weights.optional_vector(&format!("{name}.bias"), total)?;
    let mut first = 0;
    let mut linears = Vec::with_capacity(N);
    for rows in rows {
        let range = first..first + rows;
        let bias = bias.as_ref().map(|bias| bias[range.clone()].to_vec());
        let weight = weights.matrix_rows(&format!("{name}.weight"), total, cols, range)?;
        linears.push(Linear { weight, bias });
        first += rows;
    }
    // The loop above pushed N.
    linears.try_into().map_err(|_| unreachable!("as many parts as row counts"))
}

/// The fused tensor's parts if there is one, else each tensor by itself. Biases of the single tensors count in both
/// cases.
fn fused<const N: usize>(
    weights: &mut Weights<'_>,
    whole: &str,
    names: [String; N],
    rows: [usize; N],
    cols: usize,
) -> Result<[Linear; N]> {
    if !weights.has(&format!("{whole}.weight")) {
        let mut linears = Vec::with_capacity(N);
        for (name, rows) in names.iter().zip(rows) {
            linears.push(linear(weights, name, rows, cols)?);
        }
        return linears.try_into().map_err(|_| unreachable!("as many linears as names"));
    }
    let mut linears = parts(weights, whole, rows, cols)?;
    for ((linear, name), rows) in linears.iter_mut().zip(&names).zip(rows) {
        if linear.bias.is_none() {
            linear.bias = weights.optional_vector(&format!("{name}.bias"), rows)?;
        }
    }
    Ok(linears)
}
