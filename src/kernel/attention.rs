//! Attention over blocks: the one arithmetic that decode, prefill and verification share.
//!
//! For a query at logical index p the keys are those at indices `first..=p` (`first` from the sliding window).
//! Scores accumulate over head_dim in order. Indices are cut into parts of 256, anchored at index 0; a part has its
//! own maximum, its sum of weights (32 lanes over the part's blocks in order, then a fixed tree) and its weighted
//! values (tokens in order). Parts merge in ascending order. Nothing depends on which other queries are computed,
//! so a row's result is the same in a prompt, a chunk or a decode step.

use super::kv::{KvBlocks, BLOCK_TOKENS};
use super::vector::{exp, leveled, sum32};
use super::Cpu;

/// Logical indices whose weights are summed before merging.
const PART: usize = 256;
const PART_BLOCKS: usize = PART / BLOCK_TOKENS;
/// Query rows that share one reading of K and V.
const TILE_ROWS: usize = 8;

/// What a layer's attention does.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads; a multiple of the KV heads.
    pub heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// `cap * tanh(score / cap)` on scaled scores.
    pub softcap: Option<f32>,
    /// Keys that a query sees, its own included; `None` sees all.
    pub window: Option<usize>,
}

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSpan<'a> {
    /// The first row in `q` and `out`.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Logical index of the first row's token; the following rows have the following indices.
    pub first_index: usize,
    /// Block of each 32 logical indices; entries that no row of the span can see are not read.
    pub table: &'a [u32],
}

/// First index that a query sees.
fn first_visible(index: usize, window: Option<usize>) -> usize {
    window.map_or(0, |w| (index + 1).saturating_sub(w))
}

/// `out[r] = softmax(scale * q[r] K^T) V` per head; `q` and `out` are `[rows][heads][head_dim]`.
///
/// # Panics
/// If a span reaches outside `q`, `out` or its table, or the head counts do not divide.
pub fn attention(
    cpu: &Cpu,
    shape: &AttentionShape,
    blocks: &KvBlocks,
    spans: &[AttentionSpan<'_>],
    q: &[f32],
    out: &mut [f32],
) {
    let kv = blocks.shape();
    assert!(shape.heads.is_multiple_of(kv.kv_heads) && q.len() == out.len(), "attention heads");
    let group = shape.heads / kv.kv_heads;
    let width = shape.heads * kv.head_dim;
    let tiles: Vec<(usize, usize)> = spans
        .iter()
        .enumerate()
        .flat_map(|(s, span)| (0..span.rows).step_by(TILE_ROWS).map(move |row| (s, row)))
        .collect();
    for span in spans {
        assert!((span.first_row + span.rows) * width <= q.len(), "attention span");
    }
    let out = super::chunks::Shared::new(out);
    cpu.pool.run(tiles.len() * kv.kv_heads, &|task| {
        // Later tiles see more keys: the longest first balances the threads.
        let (s, row) = tiles[tiles.len() - 1 - task / kv.kv_heads];
        let head = task % kv.kv_heads;
        let span = &spans[s];
        let rows = TILE_ROWS.min(span.rows - row);
        let mut tile = Tile::new(rows * group, kv.head_dim);
        tile.run(cpu, shape, blocks, span, row, rows, head, group, q);
        for r in 0..rows {
            let at = (span.first_row + row + r) * width + head * group * kv.head_dim;
            // SAFETY: rows of spans are disjoint and each (row, KV head) belongs to one task.
            let target = unsafe { out.slice(at, group * kv.head_dim) };
            target.copy_from_slice(&tile.merged[r * group * kv.head_dim..(r + 1) * group * kv.head_dim]);
        }
    });
}

/// Working memory of one task: `queries` = rows x query heads of one KV head.
struct Tile {
    /// `[queries][PART]`: scores, then weights.
    scores: Vec<f32>,
    /// One widened K or V panel.
    panel: Vec<f32>,
    /// `[queries][head_dim]`: values of the current part.
    part: Vec<f32>,
    /// `[queries][head_dim]`: values so far.
    merged: Vec<f32>,
    /// Per query: maximum so far and sum of weights so far.
    running: Vec<(f32, f32)>,
}

impl Tile {
    fn new(queries: usize, head_dim: usize) -> Tile {
        Tile {
            scores: vec![0.0; queries * PART],
            panel: vec![0.0; head_dim * BLOCK_TOKENS],
            part: vec![0.0; queries * head_dim],
            merged: vec![0.0; queries * head_dim],
            running: vec![(f32::NEG_INFINITY, 0.0); queries],
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn run(
        &mut self,
        cpu: &Cpu,
        shape: &AttentionShape,
        blocks: &KvBlocks,
        span: &AttentionSpan<'_>,
        row: usize,
        rows: usize,
        head: usize,
        group: usize,
        q: &[f32],
    ) {
        let dim = blocks.shape().head_dim;
        let width = shape.heads * dim;
        let index = |r: usize| span.first_index + row + r;
        let begin = first_visible(index(0), shape.window);
        let end = index(rows - 1) + 1;
        for part in begin / PART..end.div_ceil(PART) {
            let base = part * PART;
            // Blocks of the part that some row of the tile sees.
            let first_block = begin.max(base) / BLOCK_TOKENS;
            let last_block = end.min(base + PART).div_ceil(BLOCK_TOKENS);
            for block in first_block..last_block {
                blocks.load_keys(cpu, span.table[block], head, &mut self.panel);
                for r in 0..rows {
                    if block * BLOCK_TOKENS > index(r)
                        || (block + 1) * BLOCK_TOKENS <= first_visible(index(r), shape.window)
                    {
                        continue;
                    }
                    for g in 0..group {
                        let at = (span.first_row + row + r) * width + (head * group + g) * dim;
                        let lane = (r * group + g) * PART + (block * BLOCK_TOKENS - base);
                        let out = &mut self.scores[lane..lane + BLOCK_TOKENS];
                        score(cpu, &q[at..at + dim], &self.panel, shape.scale, out);
                        if let Some(cap) = shape.softcap {
                            out.iter_mut().for_each(|s| *s = cap * (*s / cap).tanh());
                        }
                    }
                }
            }
            // Visible indices of row r inside this part, relative to its base; empty if there are none.
            let visible = |r: usize| {
                let first = first_visible(index(r), shape.window).max(base) - base;
                let last = (index(r) + 1).min(base + PART).saturating_sub(base);
                first..last.max(first)
            };
            let mut maxima = vec![(f32::NEG_INFINITY, 0f32); rows * group];
            for r in 0..rows {
                let seen = visible(r);
                if seen.is_empty() {
                    continue;
                }
                for g in 0..group {
                    let query = r * group + g;
                    let weights = &mut self.scores[query * PART..(query + 1) * PART];
                    let mut max = f32::NEG_INFINITY;
                    for &s in &weights[seen.clone()] {
                        // NaN must survive, so that a broken model is noticed.
                        max = if s > max || s.is_nan() { s } else { max };
                    }
                    weights[..seen.start].fill(0.0);
                    weights[seen.end..].fill(0.0);
                    let mut sum = [0f32; 1];
                    soften(cpu, &mut weights[..], seen.start, seen.end, max, &mut sum);
                    maxima[query] = (max, sum[0]);
                }
            }
            self.part.fill(0.0);
            for block in first_block..last_block {
                let start = block * BLOCK_TOKENS;
                let readable = begin.max(start) - start..end.min(start + BLOCK_TOKENS) - start;
                blocks.load_values(cpu, span.table[block], head, readable, &mut self.panel);
                for r in 0..rows {
                    let seen = visible(r);
                    let first = seen.start.max(start - base);
                    let last = seen.end.min(start - base + BLOCK_TOKENS);
                    if first >= last {
                        continue;
                    }
                    for g in 0..group {
                        let query = r * group + g;
                        let weights = &self.scores[query * PART + first..query * PART + last];
                        let values = &self.panel[(first + base - start) * dim..(last + base - start) * dim];
                        weigh(cpu, weights, values, &mut self.part[query * dim..(query + 1) * dim]);
                    }
                }
            }
            for r in 0..rows {
                if visible(r).is_empty() {
                    continue;
                }
                for g in 0..group {
                    let query = r * group + g;
                    let range = query * dim..(query + 1) * dim;
                    let (max, sum) = maxima[query];
                    let (old_max, old_sum) = self.running[query];
                    if old_max == f32::NEG_INFINITY {
                        self.merged[range.clone()].copy_from_slice(&self.part[range]);
                        self.running[query] = (max, sum);
                        continue;
                    }
                    let new_max = if max > old_max || max.is_nan() { max } else { old_max };
                    let (a, b) = (exp(old_max - new_max), exp(max - new_max));
                    for (m, p) in self.merged[range.clone()].iter_mut().zip(&self.part[range]) {
                        *m = p.mul_add(b, *m * a);
                    }
                    self.running[query] = (new_max, sum.mul_add(b, old_sum * a));
                }
            }
        }
        for (query, &(_, sum)) in self.running.iter().enumerate() {
            for m in &mut self.merged[query * dim..(query + 1) * dim] {
                *m /= sum;
            }
        }
    }
}

leveled! {
    /// `out[t] = scale * sum over d of q[d] * keys[d][t]`, d ascending.
    fn score(q: &[f32], keys: &[f32], scale: f32, out: &mut [f32]) {
        let mut lanes = [0f32; BLOCK_TOKENS];
        for (q, keys) in q.iter().zip(keys.chunks_exact(BLOCK_TOKENS)) {
            for t in 0..BLOCK_TOKENS {
                lanes[t] = q.mul_add(keys[t], lanes[t]);
            }
        }
        for t in 0..BLOCK_TOKENS {
            out[t] = lanes[t] * scale;
        }
    }
}

leveled! {
    /// Turns the scores at `first..last` into `e^(score - max)` and sums them.
    fn soften(weights: &mut [f32], first: usize, last: usize, max: f32, sum: &mut [f32; 1]) {
        for w in &mut weights[first..last] {
            *w = exp(*w - max);
        }
        let mut lanes = [0f32; BLOCK_TOKENS];
        for block in 0..PART_BLOCKS {
            for t in 0..BLOCK_TOKENS {
                lanes[t] += weights[block * BLOCK_TOKENS + t];
            }
        }
        sum[0] = sum32(lanes);
    }
}

leveled! {
    /// `out += sum over t of weights[t] * values[t]`, t ascending.
    fn weigh(weights: &[f32], values: &[f32], out: &mut [f32]) {
        let dim = out.len();
        for (w, values) in weights.iter().zip(values.chunks_exact(dim)) {
            for d in 0..dim {
                out[d] = w.mul_add(values[d], out[d]);
            }
        }
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
