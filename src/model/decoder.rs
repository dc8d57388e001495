//! The decoder: one forward over a ragged batch of rows. Prompt, chunk and decode step are the same call.

use super::arch;
use super::layer::{load_group, Layer, LayerLinears, Linear};
use super::spec::{DecoderSpec, LayerSpec};
use super::{Model, Span, TakeLogits};
use crate::cache::{BlockArena, CacheLayout};
use crate::error::MatmulError;
use crate::kernel::{self, Activations, AttentionShape, AttentionSpan, Cpu, KvShape, Precision, BLOCK_TOKENS};
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
    normed: Vec<f32>,
    q: Vec<f32>,
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
        let workspace = Workspace { angles: vec![Default::default(); spec.ropes.len()], ..Workspace::default() };
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
        let (layer, LayerSpec { window, rope, .. }) = (&layers[index], &spec.layers[index]);
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
        )?;
        for (norm, values) in [(&layer.q_norm, &mut w.q), (&layer.k_norm, &mut w.k)] {
            if let Some(norm) = norm {
                kernel::rms_norm_in_place(cpu, values, norm, spec.norm_eps);
            }
        }
        let (cos, sin) = &w.angles[*rope];
        kernel::rope(cpu, &mut w.q, spec.heads, head_dim, cos, sin);
        kernel::rope(cpu, &mut w.k, kv_heads, head_dim, cos, sin);

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
            views.push(AttentionSpan { first_row: row, rows: span.tokens.len(), first_index, table });
            row += span.tokens.len();
        }
        let shape = AttentionShape {
            heads: spec.heads,
            scale: spec.attention_scale,
            softcap: spec.attention_softcap,
            window: *window,
        };
        w.attended.resize(rows * spec.query_width(), 0.0);
        kernel::attention(cpu, &shape, arena.blocks(), &views, &w.q, &mut w.attended);

        w.block.resize(rows * spec.hidden_size, 0.0);
        let outs: &mut [&mut [f32]] = &mut [&mut w.block];
        linears(cpu, *precision, &mut w.activations, &w.attended, rows, &[&layer.output], outs)?;
        if let Some(norm) = &layer.post_attention_norm {
            kernel::rms_norm_in_place(cpu, &mut w.block, norm, spec.norm_eps);
        }
        kernel::add(cpu, &mut w.x, &w.block);
        Ok(())
    }

    fn feed_forward(&mut self, index: usize, rows: usize) -> Result<(), MatmulError> {
        let Decoder { spec, cpu, precision, layers, workspace: w, .. } = self;
        let (layer, width) = (&layers[index], spec.layers[index].feed_forward);
        kernel::rms_norm(cpu, &w.x, &layer.feed_forward_norm, spec.norm_eps, &mut w.normed);
        w.gate.resize(rows * width, 0.0);
        w.up.resize(rows * width, 0.0);
        let outs: &mut [&mut [f32]] = &mut [&mut w.gate, &mut w.up];
        linears(cpu, *precision, &mut w.activations, &w.normed, rows, &[&layer.gate, &layer.up], outs)?;
        kernel::gate(cpu, spec.activation, &mut w.gate, &w.up);
        let outs: &mut [&mut [f32]] = &mut [&mut w.block];
        linears(cpu, *precision, &mut w.activations, &w.gate, rows, &[&layer.down], outs)?;
        if let Some(norm) = &layer.post_feed_forward_norm {
            kernel::rms_norm_in_place(cpu, &mut w.block, norm, spec.norm_eps);
        }
        kernel::add(cpu, &mut w.x, &w.block);
        Ok(())
    }

    fn logits(&mut self, wanted: &[usize], take: &mut TakeLogits<'_>) -> Result<(), MatmulError> {
        let Decoder { spec, cpu, precision, head, output_norm, workspace: w, .. } = self;
        let hidden = spec.hidden_size;
        for (chunk, rows) in wanted.chunks(LOGIT_ROWS).enumerate() {
            w.block.clear();
            for &row in rows {
                w.block.extend_from_slice(&w.x[row * hidden..(row + 1) * hidden]);
            }
            kernel::rms_norm_in_place(cpu, &mut w.block, output_norm, spec.norm_eps);
            w.logits.resize(rows.len() * spec.vocab_size, 0.0);
            let outs: &mut [&mut [f32]] = &mut [&mut w.logits];
            linears(cpu, *precision, &mut w.activations, &w.block, rows.len(), &[head], outs)?;
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

    fn cache_layout(&self) -> CacheLayout {
        self.spec.cache_layout()
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

/// Products of one input with several matrices, biases added.
fn linears(
    cpu: &Cpu,
    precision: Precision,
    activations: &mut Activations,
    x: &[f32],
    rows: usize,
    linears: &[&Linear],
    outs: &mut [&mut [f32]],
) -> Result<(), MatmulError> {
    let matrices: Vec<_> = linears.iter().map(|linear| (&linear.site, &*linear.weight)).collect();
    quant::products(&KernelContext::new(cpu, precision), activations, x, x.len() / rows, &matrices, outs)?;
    for (linear, out) in linears.iter().zip(outs) {
        if let Some(bias) = &linear.bias {
            kernel::add_bias(cpu, out, bias);
        }
    }
    Ok(())
}
