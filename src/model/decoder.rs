//! The decoder: one forward over a ragged batch of rows. Prompt, chunk and decode step are the same call.

use std::sync::Arc;

use super::arch;
use super::layer::{load_group, Layer, LayerLinears, Linear};
use super::spec::{DecoderSpec, LayerSpec};
use super::{Model, Span, TakeLogits};
use crate::cache::{BlockArena, CacheLayout, CachePolicy};
use crate::error::MatmulError;
use crate::kernel::{self, Activations, AttentionShape, AttentionSpan, Cpu, Input, KvShape, Precision};
use crate::quant::{self, KernelContext, MatrixInfo, Quantizer, Role, Site};
use crate::source::WeightSource;
use crate::types::TokenId;
use crate::weights::{Progress, Weights};
use crate::Result;

/// Rows whose logits are computed at a time when many are asked for.
const LOGIT_ROWS: usize = 64;

/// Weights with what a forward needs to run them.
pub(crate) struct Decoder {
    spec: DecoderSpec,
    cpu: Cpu,
    precision: Precision,
    /// The embedding, where it is not the head.
    embedding: Option<Linear>,
    head: Linear,
    layers: Vec<Layer>,
    output_norm: Vec<f32>,
    workspace: Workspace,
}

/// Buffers that keep their memory from step to step.
#[derive(Default)]
struct Workspace {
    /// The residual stream, `[rows][hidden]`.
    x: Vec<f32>,
    q: Vec<f32>,
    /// The queries again, rotated for the sinks.
    sink_q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    /// Output of attention or MLP before its norm, or rows whose logits are wanted: `[rows][hidden]`.
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
    /// An unknown architecture, missing or misshapen tensors, types that cannot be run, failed reads; whatever the
    /// quantizer refuses.
    pub(crate) fn load(
        source: &dyn WeightSource,
        cpu: &Cpu,
        precision: Precision,
        quantizer: &dyn Quantizer,
        progress: &mut Progress<'_>,
    ) -> Result<Decoder> {
        let mut weights = Weights::new(source, cpu, quantizer, progress);
        let spec = arch::spec(source.metadata(), &mut weights)?;
        weights.set_conventions(spec.conventions);
        let (vocab, hidden) = (spec.vocab_size, spec.hidden_size);
        let vocabulary = |weights: &Weights<'_>, role: Role, name: &str| {
            weights.linear(Site::new(None, role, name), vocab, hidden, 0..vocab)
        };
        // A tied embedding is the head's matrix, stored once.
        let (embedding, head) = match weights.has("output.weight") {
            true => (
                Some(vocabulary(&weights, Role::Embedding, "token_embd.weight")?),
                vocabulary(&weights, Role::Head, "output.weight")?,
            ),
            false => (None, vocabulary(&weights, Role::Head, "token_embd.weight")?),
        };
        let layers = spec.layers.iter().enumerate();
        let linears: Vec<LayerLinears> =
            layers.map(|(i, layer)| LayerLinears::find(&weights, &spec, layer, i)).collect::<Result<_>>()?;
        let all = std::iter::once(&head).chain(linears.iter().flat_map(LayerLinears::iter));
        weights.check(&all.map(|linear| linear.info.clone()).collect::<Vec<_>>())?;

        let embedding = match embedding {
            Some(embedding) => {
                let site = embedding.info.site.clone();
                Some(Linear { site, weight: weights.stored(embedding)?, bias: None })
            }
            None => None,
        };
        let [head] = load_group(&mut weights, &[head])?;
        let output_norm = weights.vector("output_norm.weight", hidden)?;
        let layers = linears.iter().enumerate();
        let layers = layers.map(|(i, linears)| Layer::load(&mut weights, &spec, linears, i)).collect::<Result<_>>()?;
        let angles = vec![Default::default(); spec.ropes.len()];
        let workspace = Workspace { angles: angles.clone(), sink_angles: angles, ..Workspace::default() };
        Ok(Decoder { spec, cpu: cpu.clone(), precision, embedding, head, layers, output_norm, workspace })
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.embedding.iter().chain([&self.head]).chain(self.layers.iter().flat_map(Layer::linears))
    }

    fn embed(&mut self, spans: &[Span<'_>], rows: usize) -> Result<(), MatmulError> {
        let Decoder { spec, cpu, embedding, head, workspace: w, .. } = self;
        let embedding = embedding.as_ref().unwrap_or(head);
        let hidden = spec.hidden_size;
        w.positions.clear();
        for span in spans {
            w.positions.extend(span.cache.len()..span.cache.len() + span.tokens.len());
        }
        w.x.resize(rows * hidden, 0.0);
        let tokens: Vec<TokenId> = spans.iter().flat_map(|s| s.tokens.iter().copied()).collect();
        quant::guarded(&embedding.site, || {
            cpu.for_each_chunk(&mut w.x, 4 * hidden, &|first, x| {
                for (row, &token) in x.chunks_exact_mut(hidden).zip(&tokens[first / hidden..]) {
                    let token = token as usize;
                    embedding.weight.dequantize(token..token + 1, row);
                }
            });
            Ok(())
        })?;
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
        Ok(())
    }

    fn attention(
        &mut self,
        arena: &mut BlockArena,
        spans: &[Span<'_>],
        index: usize,
        rows: usize,
    ) -> Result<(), MatmulError> {
        let Decoder { spec, cpu, precision, layers, workspace: w, .. } = self;
        let (layer, LayerSpec { rope, .. }) = (&layers[index], &spec.layers[index]);
        let Some(visible) = spans.first().map(|s| s.cache.visible(index)) else { return Ok(()) };
        let head_dim = spec.kv.head_dim;
        w.q.resize(rows * spec.query_width(), 0.0);
        w.k.resize(rows * spec.kv_width(), 0.0);
        w.v.resize(rows * spec.kv_width(), 0.0);
        let mut row = 0;
        let mut views = Vec::with_capacity(spans.len());
        for span in spans {
            let (first_index, rows) = (span.cache.len(), span.tokens.len());
            let (table, live) = (span.cache.table(index), span.cache.live(index));
            views.push(AttentionSpan { first_row: row, rows, first_index, table, live });
            row += rows;
        }
        arena.blocks().expect_writes(&views);
        let products = Products { cpu, precision: *precision, rows, next: &[&layer.output] };
        let input = Input::Normed { x: &w.x, weight: &layer.attention_norm, eps: spec.norm_eps };
        let outs: &mut [&mut [f32]] = &mut [&mut w.q, &mut w.k, &mut w.v];
        products.replace(&mut w.activations, &input, &layer.inputs(), outs)?;
        for (norm, values) in [(&layer.q_norm, &mut w.q), (&layer.k_norm, &mut w.k)] {
            if let Some(norm) = norm {
                kernel::rms_norm_in_place(cpu, values, norm, spec.norm_eps);
            }
        }
        let sinks_move = visible.sinks > 0 && !w.sink_positions.is_empty();
        if sinks_move {
            let (cos, sin) = &w.sink_angles[*rope];
            w.sink_q.clone_from(&w.q);
            kernel::rope(cpu, &mut w.sink_q, spec.heads, head_dim, cos, sin);
        }
        let (cos, sin) = &w.angles[*rope];
        kernel::rope(cpu, &mut w.q, spec.heads, head_dim, cos, sin);

        arena.blocks_mut().write_rotated(cpu, &views, (&mut w.k, &w.v), (cos, sin));
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

        let input = Input::Rows(&w.attended);
        let norm = layer.post_attention_norm.as_deref();
        let products = Products { next: &[&layer.gate, &layer.up], ..products };
        products.add(&mut w.activations, &input, &layer.output, norm, spec.norm_eps, (&mut w.x, &mut w.block))
    }

    fn feed_forward(&mut self, index: usize, rows: usize) -> Result<(), MatmulError> {
        let Decoder { spec, cpu, precision, layers, head, workspace: w, .. } = self;
        let (layer, width) = (&layers[index], spec.layers[index].feed_forward);
        w.gate.resize(rows * width, 0.0);
        w.up.resize(rows * width, 0.0);
        let products = Products { cpu, precision: *precision, rows, next: &[&layer.down] };
        let input = Input::Normed { x: &w.x, weight: &layer.feed_forward_norm, eps: spec.norm_eps };
        let outs: &mut [&mut [f32]] = &mut [&mut w.gate, &mut w.up];
        products.replace(&mut w.activations, &input, &[&layer.gate, &layer.up], outs)?;
        let input = Input::Gated { activation: spec.activation, gate: &w.gate, up: &w.up };
        let norm = layer.post_feed_forward_norm.as_deref();
        let next: &[&Linear] = match layers.get(index + 1) {
            Some(layer) => &layer.inputs(),
            None => &[head],
        };
        let products = Products { next, ..products };
        products.add(&mut w.activations, &input, &layer.down, norm, spec.norm_eps, (&mut w.x, &mut w.block))
    }

    fn logits(&mut self, wanted: &[usize], take: &mut TakeLogits<'_>) -> Result<(), MatmulError> {
        let Decoder { spec, cpu, precision, layers, head, output_norm, workspace: w, .. } = self;
        // The next step begins while tokens are chosen.
        let next = layers.first().map(Layer::inputs);
        let next = next.as_ref().map_or(&[][..], |linears| linears);
        let hidden = spec.hidden_size;
        for (chunk, rows) in wanted.chunks(LOGIT_ROWS).enumerate() {
            w.block.clear();
            for &row in rows {
                w.block.extend_from_slice(&w.x[row * hidden..(row + 1) * hidden]);
            }
            w.logits.resize(rows.len() * spec.vocab_size, 0.0);
            let products = Products { cpu, precision: *precision, rows: rows.len(), next };
            let input = Input::Normed { x: &w.block, weight: output_norm, eps: spec.norm_eps };
            products.replace(&mut w.activations, &input, &[head], &mut [&mut w.logits])?;
            if let Some(cap) = spec.final_softcap {
                kernel::softcap(cpu, &mut w.logits, cap);
            }
            take(chunk * LOGIT_ROWS, &mut w.logits);
        }
        Ok(())
    }
}

impl Model for Decoder {
    fn vocab_size(&self) -> usize {
        self.spec.vocab_size
    }

    fn context_length(&self) -> usize {
        self.spec.context_length
    }

    fn kv_shape(&self) -> KvShape {
        self.spec.kv
    }

    fn cache_layout(&self, policy: Arc<dyn CachePolicy>) -> Result<CacheLayout> {
        Ok(self.spec.cache_layout(policy)?)
    }

    fn matrices(&self) -> Vec<MatrixInfo> {
        self.linears().map(|linear| MatrixInfo::new(linear.site.clone(), &*linear.weight)).collect()
    }

    fn row_invariant(&self) -> bool {
        self.linears().all(|linear| linear.weight.row_invariant())
    }

    fn forward(
        &mut self,
        arena: &mut BlockArena,
        spans: &[Span<'_>],
        wanted: &[usize],
        take: &mut TakeLogits<'_>,
    ) -> Result<(), MatmulError> {
        let rows = spans.iter().map(|s| s.tokens.len()).sum();
        if rows == 0 {
            return Ok(());
        }
        self.embed(spans, rows)?;
        for index in 0..self.layers.len() {
            self.attention(arena, spans, index, rows)?;
            self.feed_forward(index, rows)?;
        }
        self.logits(wanted, take)
    }
}

/// What the products of a step have in common.
struct Products<'a> {
    cpu: &'a Cpu,
    precision: Precision,
    rows: usize,
    /// The linears of the product after this one.
    next: &'a [&'a Linear],
}

impl Products<'_> {
    fn run(
        &self,
        activations: &mut Activations,
        input: &Input<'_>,
        linears: &[&Linear],
        into: quant::Into,
        outs: &mut [&mut [f32]],
    ) -> Result<(), MatmulError> {
        let matrices: Vec<_> = linears.iter().map(|linear| (&linear.site, &*linear.weight)).collect();
        let cols = input.values() / self.rows;
        let context = KernelContext::new(self.cpu, self.precision);
        let next = quant::packed_forms(self.next.iter().map(|linear| &*linear.weight));
        quant::products(&context, activations, input, (self.rows, cols), (&matrices, &next), into, outs)?;
        for (linear, out) in linears.iter().zip(outs) {
            if let Some(bias) = &linear.bias {
                kernel::add_bias(self.cpu, out, bias);
            }
        }
        Ok(())
    }

    /// Products of one input with several matrices, biases added.
    fn replace(
        &self,
        activations: &mut Activations,
        input: &Input<'_>,
        linears: &[&Linear],
        outs: &mut [&mut [f32]],
    ) -> Result<(), MatmulError> {
        self.run(activations, input, linears, quant::Into::Replace, outs)
    }

    /// Adds a product with its bias to the residual stream `x`; where a norm stands between, through `block`.
    fn add(
        &self,
        activations: &mut Activations,
        input: &Input<'_>,
        linear: &Linear,
        norm: Option<&[f32]>,
        eps: f32,
        (x, block): (&mut Vec<f32>, &mut Vec<f32>),
    ) -> Result<(), MatmulError> {
        let Some(norm) = norm else { return self.run(activations, input, &[linear], quant::Into::Add, &mut [x]) };
        block.resize(x.len(), 0.0);
        self.run(activations, input, &[linear], quant::Into::Replace, &mut [block])?;
        kernel::add_rms_norm(self.cpu, x, block, norm, eps);
        Ok(())
    }
}
