//! The decoder: one forward over a ragged batch of rows. Prompt, chunk and decode step are the same call.

use super::arch;
use super::layer::{Layer, Linear};
use super::spec::{DecoderSpec, LayerSpec};
use crate::cache::{BlockArena, SequenceCache};
use crate::kernel::{self, Activations, AttentionShape, AttentionSpan, Cpu, PackedMatrix, Precision, BLOCK_TOKENS};
use crate::source::WeightSource;
use crate::types::TokenId;
use crate::weights::{Progress, Weights};
use crate::Result;

/// Rows whose logits are computed at a time when many are asked for.
const LOGIT_ROWS: usize = 64;

/// Consecutive new tokens of one sequence. Their blocks are reserved; the cache's length is the first one's index. All
/// caches of a forward have one layout.
pub(crate) struct Span<'a> {
    pub(crate) tokens: &'a [TokenId],
    pub(crate) cache: &'a SequenceCache,
}

/// Weights with what a forward needs to run them.
pub(crate) struct Decoder {
    spec: DecoderSpec,
    cpu: Cpu,
    precision: Precision,
    embedding: PackedMatrix,
    /// The output matrix, where it is not the embedding.
    head: Option<PackedMatrix>,
    layers: Vec<Layer>,
    output_norm: Vec<f32>,
    workspace: Workspace,
}

/// Buffers that keep their memory from step to step.
#[derive(Default)]
struct Workspace {
    /// The residual stream, `[rows][hidden]`.
    x: Vec<f32>,
    normed: Vec<f32>,
    q: Vec<f32>,
    /// The queries again, rotated for the sinks.
    sink_q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    /// Output of attention or MLP, `[rows][hidden]`.
    block: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    activations: Activations,
    positions: Vec<usize>,
    /// Cosines and sines, per kind of rotation.
    angles: Vec<(Vec<f32>, Vec<f32>)>,
    /// The same at the positions as which rows score their sinks; no positions in a step whose rows need none.
    sink_positions: Vec<usize>,
    sink_angles: Vec<(Vec<f32>, Vec<f32>)>,
    logits: Vec<f32>,
}

impl Decoder {
    /// Reads the model that `source` describes.
    ///
    /// # Errors
    /// An unknown architecture, missing or misshapen tensors, types that cannot be run, failed reads.
    pub(crate) fn load(
        source: &dyn WeightSource,
        cpu: &Cpu,
        precision: Precision,
        progress: &mut Progress<'_>,
    ) -> Result<Decoder> {
        let mut weights = Weights::new(source, cpu, progress);
        let spec = arch::spec(source.metadata(), &mut weights)?;
        let (vocab, hidden) = (spec.vocab_size, spec.hidden_size);
        let embedding = weights.matrix("token_embd.weight", vocab, hidden)?;
        let head = match weights.has("output.weight") {
            true => Some(weights.matrix("output.weight", vocab, hidden)?),
            false => None,
        };
        let output_norm = weights.vector("output_norm.weight", hidden)?;
        let layers = spec.layers.iter().enumerate();
        let layers = layers.map(|(i, layer)| Layer::load(&mut weights, &spec, layer, i)).collect::<Result<_>>()?;
        let angles = vec![Default::default(); spec.ropes.len()];
        let workspace = Workspace { angles: angles.clone(), sink_angles: angles, ..Workspace::default() };
        Ok(Decoder { spec, cpu: cpu.clone(), precision, embedding, head, layers, output_norm, workspace })
    }

    pub(crate) fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Bytes of all packed matrices.
    pub(crate) fn size_in_bytes(&self) -> usize {
        let head = self.head.as_ref().map_or(0, PackedMatrix::size_in_bytes);
        self.embedding.size_in_bytes() + head + self.layers.iter().map(Layer::size_in_bytes).sum::<usize>()
    }

    /// Runs the rows of all spans, writes their keys and values, and hands the logits of `wanted` rows (ascending,
    /// counted over all spans) to `take`, some rows at a time: `take(first, logits)` gets `[n][vocab]` for
    /// `wanted[first..first + n]`.
    pub(crate) fn forward(
        &mut self,
        arena: &mut BlockArena,
        spans: &[Span<'_>],
        wanted: &[usize],
        take: &mut dyn FnMut(usize, &mut [f32]),
    ) {
        let rows = spans.iter().map(|s| s.tokens.len()).sum();
        if rows == 0 {
            return;
        }
        self.embed(spans, rows);
        for index in 0..self.layers.len() {
            self.attention(arena, spans, index, rows);
            self.feed_forward(index, rows);
        }
        self.logits(wanted, take);
    }

    fn embed(&mut self, spans: &[Span<'_>], rows: usize) {
        let Decoder { spec, cpu, embedding, workspace: w, .. } = self;
        let hidden = spec.hidden_size;
        w.positions.clear();
        for span in spans {
            w.positions.extend(span.cache.len()..span.cache.len() + span.tokens.len());
        }
        w.x.resize(rows * hidden, 0.0);
        let tokens: Vec<TokenId> = spans.iter().flat_map(|s| s.tokens.iter().copied()).collect();
        cpu.for_each_chunk(&mut w.x, 4 * hidden, &|first, x| {
            for (row, &token) in x.chunks_exact_mut(hidden).zip(&tokens[first / hidden..]) {
                embedding.dequantize_row(token as usize, row);
            }
        });
        if let Some(factor) = spec.embedding_scale {
            kernel::scale(cpu, &mut w.x, factor);
        }
        for (rope, (cos, sin)) in spec.ropes.iter().zip(&mut w.angles) {
            rope.angles(cpu, &w.positions, cos, sin);
        }
        w.sink_positions.clear();
        let limit = spans.first().and_then(|s| s.cache.sink_position());
        if let Some(limit) = limit.filter(|limit| w.positions.iter().any(|p| p > limit)) {
            w.sink_positions.extend(w.positions.iter().map(|&p| p.min(limit)));
            for (rope, (cos, sin)) in spec.ropes.iter().zip(&mut w.sink_angles) {
                rope.angles(cpu, &w.sink_positions, cos, sin);
            }
        }
    }

    fn attention(&mut self, arena: &mut BlockArena, spans: &[Span<'_>], index: usize, rows: usize) {
        let Decoder { spec, cpu, precision, layers, workspace: w, .. } = self;
        let (layer, LayerSpec { rope, .. }) = (&layers[index], &spec.layers[index]);
        let Some(visible) = spans.first().map(|s| s.cache.visible(index)) else { return };
        let (head_dim, kv_heads) = (spec.kv.head_dim, spec.kv.kv_heads);
        w.normed.resize(rows * spec.hidden_size, 0.0);
        w.q.resize(rows * spec.query_width(), 0.0);
        w.k.resize(rows * spec.kv_width(), 0.0);
        w.v.resize(rows * spec.kv_width(), 0.0);
        kernel::rms_norm(cpu, &w.x, &layer.attention_norm, spec.norm_eps, &mut w.normed);
        linears(
            cpu,
            *precision,
            &mut w.activations,
            &w.normed,
            rows,
            &[&layer.q, &layer.k, &layer.v],
            &mut [&mut w.q, &mut w.k, &mut w.v],
        );
        for (norm, values) in [(&layer.q_norm, &mut w.q), (&layer.k_norm, &mut w.k)] {
            if let Some(norm) = norm {
                kernel::rms_norm_in_place(cpu, values, norm, spec.norm_eps);
            }
        }
        let sinks_move = visible.sinks > 0 && !w.sink_positions.is_empty();
        if sinks_move {
            let (cos, sin) = &w.sink_angles[*rope];
            w.sink_q.clone_from(&w.q);
            kernel::rope(cpu, &mut w.sink_q, spec.heads, head_dim, spec.pairing, cos, sin);
        }
        let (cos, sin) = &w.angles[*rope];
        kernel::rope(cpu, &mut w.q, spec.heads, head_dim, spec.pairing, cos, sin);
        kernel::rope(cpu, &mut w.k, kv_heads, head_dim, spec.pairing, cos, sin);

        let width = spec.kv_width();
        let mut row = 0;
        let mut views = Vec::with_capacity(spans.len());
        for span in spans {
            let table = span.cache.table(index);
            let first_index = span.cache.len();
            for at in first_index..first_index + span.tokens.len() {
                let r = row + at - first_index;
                let values = r * width..(r + 1) * width;
                let (key, value) = (&w.k[values.clone()], &w.v[values]);
                arena.blocks_mut().write(table[at / BLOCK_TOKENS], at % BLOCK_TOKENS, key, value);
            }
            let live = span.cache.live(index);
            views.push(AttentionSpan { first_row: row, rows: span.tokens.len(), first_index, table, live });
            row += span.tokens.len();
        }
        let shape = AttentionShape {
            heads: spec.heads,
            scale: spec.attention_scale,
            softcap: spec.attention_softcap,
            window: visible.window,
            sinks: visible.sinks,
        };
        let sink_q = sinks_move.then_some(&w.sink_q[..]);
        w.attended.resize(rows * spec.query_width(), 0.0);
        kernel::attention(cpu, &shape, arena.blocks(), &views, &w.q, sink_q, &mut w.attended);

        w.block.resize(rows * spec.hidden_size, 0.0);
        let outs: &mut [&mut [f32]] = &mut [&mut w.block];
        linears(cpu, *precision, &mut w.activations, &w.attended, rows, &[&layer.output], outs);
        if let Some(norm) = &layer.post_attention_norm {
            kernel::rms_norm_in_place(cpu, &mut w.block, norm, spec.norm_eps);
        }
        kernel::add(cpu, &mut w.x, &w.block);
    }

    fn feed_forward(&mut self, index: usize, rows: usize) {
        let Decoder { spec, cpu, precision, layers, workspace: w, .. } = self;
        let (layer, width) = (&layers[index], spec.layers[index].feed_forward);
        kernel::rms_norm(cpu, &w.x, &layer.feed_forward_norm, spec.norm_eps, &mut w.normed);
        w.gate.resize(rows * width, 0.0);
        w.up.resize(rows * width, 0.0);
        let outs: &mut [&mut [f32]] = &mut [&mut w.gate, &mut w.up];
        linears(cpu, *precision, &mut w.activations, &w.normed, rows, &[&layer.gate, &layer.up], outs);
        kernel::gate(cpu, spec.activation, &mut w.gate, &w.up);
        let outs: &mut [&mut [f32]] = &mut [&mut w.block];
        linears(cpu, *precision, &mut w.activations, &w.gate, rows, &[&layer.down], outs);
        if let Some(norm) = &layer.post_feed_forward_norm {
            kernel::rms_norm_in_place(cpu, &mut w.block, norm, spec.norm_eps);
        }
        kernel::add(cpu, &mut w.x, &w.block);
    }

    fn logits(&mut self, wanted: &[usize], take: &mut dyn FnMut(usize, &mut [f32])) {
        let Decoder { spec, cpu, precision, embedding, head, output_norm, workspace: w, .. } = self;
        let (hidden, head) = (spec.hidden_size, head.as_ref().unwrap_or(embedding));
        for (chunk, rows) in wanted.chunks(LOGIT_ROWS).enumerate() {
            w.block.clear();
            for &row in rows {
                w.block.extend_from_slice(&w.x[row * hidden..(row + 1) * hidden]);
            }
            kernel::rms_norm_in_place(cpu, &mut w.block, output_norm, spec.norm_eps);
            w.logits.resize(rows.len() * spec.vocab_size, 0.0);
            w.activations.prepare(cpu, &w.block, rows.len(), hidden, &[head], *precision);
            kernel::matmul(cpu, &[head], &w.activations, &mut [&mut w.logits]);
            if let Some(cap) = spec.final_softcap {
                kernel::softcap(cpu, &mut w.logits, cap);
            }
            take(chunk * LOGIT_ROWS, &mut w.logits);
        }
    }
}

/// Products of one input with several matrices, biases added.
fn linears(
    cpu: &Cpu,
    precision: Precision,
    activations: &mut Activations,
    x: &[f32],
    rows: usize,
    linears: &[&Linear],
    outs: &mut [&mut [f32]],
) {
    let weights: Vec<&PackedMatrix> = linears.iter().map(|l| &l.weight).collect();
    activations.prepare(cpu, x, rows, x.len() / rows, &weights, precision);
    kernel::matmul(cpu, &weights, activations, outs);
    for (linear, out) in linears.iter().zip(outs) {
        if let Some(bias) = &linear.bias {
            kernel::add_bias(cpu, out, bias);
        }
    }
}
