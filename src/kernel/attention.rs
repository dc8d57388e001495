//! Attention over blocks: the one arithmetic that decode, prefill and verification share.
//!
//! For a query at logical index p the keys are those that [`AttentionShape`] lets it see and that are live. Scores
//! accumulate over head_dim in order. Indices are cut into parts of 256, anchored at index 0; a part has its own
//! maximum, its sum of weights (32 lanes over the part's blocks in order, then a fixed tree) and its weighted values
//! (tokens in order). Parts merge in ascending order. Nothing depends on which other queries are computed, so a row's
//! result is the same in a prompt, a chunk or a decode step.

use std::ops::Range;

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
    /// The last keys that a query sees, its own included; `None` sees all.
    pub window: Option<usize>,
    /// The first keys, which every query sees beside its window; without a window it sees them anyway.
    pub sinks: usize,
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
    /// The blocks that hold live tokens, ascending; `None` where every written token is live.
    pub live: Option<&'a [LiveBlock]>,
}

/// A block with the tokens of it that are not dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Place in the table: the block of the logical indices from 32 times this number.
    pub block: u32,
    /// Bit t is set where index `32 * block + t` is live or not written yet.
    pub lanes: u32,
}

impl AttentionShape {
    /// First index of a query's window.
    fn window_start(&self, index: usize) -> usize {
        self.window.map_or(0, |w| (index + 1).saturating_sub(w))
    }

    /// End of the sinks that are out of a query's window.
    fn sinks_end(&self, index: usize) -> usize {
        self.sinks.min(self.window_start(index))
    }

    /// The lanes of a block that a query may see.
    fn lanes(&self, index: usize, block: usize) -> u32 {
        between(block, 0, self.sinks_end(index)) | between(block, self.window_start(index), index + 1)
    }

    /// Whether a query is so far out that its sinks count as moved up to its window.
    fn moves_sinks(&self, index: usize) -> bool {
        self.window.is_some_and(|window| index >= window.saturating_add(self.sinks))
    }
}

/// The lanes of a block whose indices lie in `first..end`.
fn between(block: usize, first: usize, end: usize) -> u32 {
    let lane = |index: usize| index.saturating_sub(block * BLOCK_TOKENS).min(BLOCK_TOKENS);
    let (low, high) = (lane(first), lane(end));
    if low >= high {
        return 0;
    }
    u32::MAX >> (BLOCK_TOKENS - (high - low)) << low
}

/// Consecutive lanes that are set, ascending.
fn runs(mut lanes: u32) -> impl Iterator<Item = Range<usize>> {
    let mut end = 0;
    std::iter::from_fn(move || {
        if lanes == 0 {
            return None;
        }
        let skipped = lanes.trailing_zeros();
        lanes >>= skipped;
        let len = lanes.trailing_ones();
        lanes = lanes.checked_shr(len).unwrap_or(0);
        let start = end + skipped as usize;
        end = start + len as usize;
        Some(start..end)
    })
}

/// `out[r] = softmax(scale * q[r] K^T) V` per head over the keys that row r sees; `q` and `out` are
/// `[rows][heads][head_dim]`.
///
/// `sink_q` is a second copy of `q`, rotated for the position `sinks + window - 1`: rows at this index or beyond score
/// their sinks with it, so that the sinks stay as far away as when the window was first full (StreamingLLM,
/// arXiv 2309.17453). `None` scores sinks with `q`.
///
/// # Panics
/// If a span reaches outside `q`, `out` or its table, the head counts do not divide, or `sink_q` has another length.
pub fn attention(
    cpu: &Cpu,
    shape: &AttentionShape,
    blocks: &KvBlocks,
    spans: &[AttentionSpan<'_>],
    q: &[f32],
    sink_q: Option<&[f32]>,
    out: &mut [f32],
) {
    let kv = blocks.shape();
    assert!(shape.heads.is_multiple_of(kv.kv_heads) && q.len() == out.len(), "attention heads");
    assert!(sink_q.is_none_or(|sink_q| sink_q.len() == q.len()), "attention sinks");
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
        let tile = Tile { cpu, shape, blocks, span, row, rows, head, group, q, sink_q };
        let merged = tile.run();
        for r in 0..rows {
            let at = (span.first_row + row + r) * width + head * group * kv.head_dim;
            // SAFETY: rows of spans are disjoint and each (row, KV head) belongs to one task.
            let target = unsafe { out.slice(at, group * kv.head_dim) };
            target.copy_from_slice(&merged[r * group * kv.head_dim..(r + 1) * group * kv.head_dim]);
        }
    });
}

/// One task: some rows of a span with the query heads of one KV head. A query is a row with a head.
struct Tile<'a> {
    cpu: &'a Cpu,
    shape: &'a AttentionShape,
    blocks: &'a KvBlocks,
    span: &'a AttentionSpan<'a>,
    /// The first row, counted in the span.
    row: usize,
    rows: usize,
    head: usize,
    /// Query heads per KV head.
    group: usize,
    q: &'a [f32],
    sink_q: Option<&'a [f32]>,
}

/// Working memory of one task.
struct Buffers {
    /// `[queries][PART]`: scores, then weights.
    scores: Vec<f32>,
    /// Per row, the lanes of the part's blocks that it sees.
    lanes: Vec<[u32; PART_BLOCKS]>,
    /// One widened K or V panel.
    panel: Vec<f32>,
    /// `[queries][head_dim]`: values of the current part.
    part: Vec<f32>,
    /// `[queries][head_dim]`: values so far.
    merged: Vec<f32>,
    /// Per query: maximum so far and sum of weights so far.
    running: Vec<[f32; 2]>,
}

impl Tile<'_> {
    /// Logical index of a row.
    fn index(&self, r: usize) -> usize {
        self.span.first_index + self.row + r
    }

    /// `[queries][head_dim]`: the result.
    fn run(&self) -> Vec<f32> {
        let (queries, dim) = (self.rows * self.group, self.blocks.shape().head_dim);
        let mut buffers = Buffers {
            scores: vec![0.0; queries * PART],
            lanes: vec![[0; PART_BLOCKS]; self.rows],
            panel: vec![0.0; dim * BLOCK_TOKENS],
            part: vec![0.0; queries * dim],
            merged: vec![0.0; queries * dim],
            running: vec![[f32::NEG_INFINITY, 0.0]; queries],
        };
        let visited = self.visited();
        for part in visited.chunk_by(|a, b| a.block as usize / PART_BLOCKS == b.block as usize / PART_BLOCKS) {
            buffers.lanes.fill([0; PART_BLOCKS]);
            for &LiveBlock { block, lanes } in part {
                for (r, seen) in buffers.lanes.iter_mut().enumerate() {
                    seen[block as usize % PART_BLOCKS] = lanes & self.shape.lanes(self.index(r), block as usize);
                }
            }
            self.score(part, &mut buffers);
            self.weigh(part, &mut buffers);
        }
        for (values, [_, sum]) in buffers.merged.chunks_exact_mut(dim).zip(&buffers.running) {
            values.iter_mut().for_each(|v| *v /= sum);
        }
        buffers.merged
    }

    /// The live blocks that some row may see, ascending.
    fn visited(&self) -> Vec<LiveBlock> {
        let (first, last) = (self.index(0), self.index(self.rows - 1));
        let window = self.shape.window_start(first) / BLOCK_TOKENS..last / BLOCK_TOKENS + 1;
        let sinks = 0..self.shape.sinks_end(last).div_ceil(BLOCK_TOKENS).min(window.start);
        match self.span.live {
            None => sinks.chain(window).map(|block| LiveBlock { block: block as u32, lanes: u32::MAX }).collect(),
            Some(live) => {
                let seen = |b: &&LiveBlock| sinks.contains(&(b.block as usize)) || window.contains(&(b.block as usize));
                live.iter().filter(seen).copied().collect()
            }
        }
    }

    /// Scores of the part's blocks, for the rows that see some of a block.
    fn score(&self, part: &[LiveBlock], buffers: &mut Buffers) {
        let (shape, dim) = (self.shape, self.blocks.shape().head_dim);
        for &LiveBlock { block, .. } in part {
            let block = block as usize;
            // A live block may have live tokens out of sight only, and then may be gone.
            if buffers.lanes.iter().all(|seen| seen[block % PART_BLOCKS] == 0) {
                continue;
            }
            self.blocks.load_keys(self.cpu, self.span.table[block], self.head, &mut buffers.panel);
            for r in 0..self.rows {
                let seen = buffers.lanes[r][block % PART_BLOCKS];
                if seen == 0 {
                    continue;
                }
                let moved = self.sink_q.filter(|_| shape.moves_sinks(self.index(r)));
                let sinks = moved.map_or(0, |_| seen & between(block, 0, shape.sinks));
                for g in 0..self.group {
                    let at = ((self.span.first_row + self.row + r) * shape.heads + self.head * self.group + g) * dim;
                    let lane = (r * self.group + g) * PART + block % PART_BLOCKS * BLOCK_TOKENS;
                    let out = &mut buffers.scores[lane..lane + BLOCK_TOKENS];
                    if sinks != seen {
                        score(self.cpu, &self.q[at..at + dim], &buffers.panel, shape.scale, out);
                    }
                    if let Some(sink_q) = moved.filter(|_| sinks != 0) {
                        let mut scores = [0.0; BLOCK_TOKENS];
                        score(self.cpu, &sink_q[at..at + dim], &buffers.panel, shape.scale, &mut scores);
                        runs(sinks).for_each(|run| out[run.clone()].copy_from_slice(&scores[run]));
                    }
                    if let Some(cap) = shape.softcap {
                        out.iter_mut().for_each(|s| *s = cap * (*s / cap).tanh());
                    }
                }
            }
        }
    }

    /// Turns the part's scores into weights, weighs its values and merges them into the result.
    fn weigh(&self, part: &[LiveBlock], buffers: &mut Buffers) {
        let (group, dim) = (self.group, self.blocks.shape().head_dim);
        let Buffers { scores, lanes, panel, part: values, merged, running } = buffers;
        let mut totals = vec![[f32::NEG_INFINITY, 0.0]; running.len()];
        for (query, (weights, total)) in scores.chunks_exact_mut(PART).zip(&mut totals).enumerate() {
            soften(self.cpu, weights, &lanes[query / group], total);
        }
        values.fill(0.0);
        for &LiveBlock { block, .. } in part {
            let slot = block as usize % PART_BLOCKS;
            for run in runs(lanes.iter().fold(0, |all, seen| all | seen[slot])) {
                self.blocks.load_values(self.cpu, self.span.table[block as usize], self.head, run, panel);
            }
            for (r, seen) in lanes.iter().enumerate() {
                for run in runs(seen[slot]) {
                    for query in r * group..(r + 1) * group {
                        let at = query * PART + slot * BLOCK_TOKENS;
                        let weights = &scores[at + run.start..at + run.end];
                        let rows = &panel[run.start * dim..run.end * dim];
                        weigh(self.cpu, weights, rows, &mut values[query * dim..(query + 1) * dim]);
                    }
                }
            }
        }
        for (query, &[max, sum]) in totals.iter().enumerate() {
            if lanes[query / group] == [0; PART_BLOCKS] {
                continue;
            }
            let range = query * dim..(query + 1) * dim;
            let [old_max, old_sum] = running[query];
            if old_max == f32::NEG_INFINITY {
                merged[range.clone()].copy_from_slice(&values[range]);
                running[query] = [max, sum];
                continue;
            }
            let new_max = if max > old_max || max.is_nan() { max } else { old_max };
            let (a, b) = (exp(old_max - new_max), exp(max - new_max));
            for (m, v) in merged[range.clone()].iter_mut().zip(&values[range]) {
                *m = v.mul_add(b, *m * a);
            }
            running[query] = [new_max, sum.mul_add(b, old_sum * a)];
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
    /// Turns the scores of the lanes seen into `e^(score - max)`, the other lanes of their blocks into 0;
    /// `total` is the maximum and the sum. Blocks without a lane are left as they are.
    fn soften(weights: &mut [f32], seen: &[u32; PART_BLOCKS], total: &mut [f32; 2]) {
        // NaN must survive, so that a broken model is noticed.
        let larger = |a: f32, b: f32| if b > a || b.is_nan() { b } else { a };
        let hide = |weights: &mut [f32], seen: u32, value: f32| {
            if seen != u32::MAX {
                for (t, weight) in weights.iter_mut().enumerate() {
                    *weight = if seen >> t & 1 == 1 { *weight } else { value };
                }
            }
        };
        let mut maxima = [f32::NEG_INFINITY; BLOCK_TOKENS];
        for (weights, &seen) in weights.chunks_exact_mut(BLOCK_TOKENS).zip(seen) {
            if seen != 0 {
                hide(weights, seen, f32::NEG_INFINITY);
                for t in 0..BLOCK_TOKENS {
                    maxima[t] = larger(maxima[t], weights[t]);
                }
            }
        }
        let max = maxima.into_iter().fold(f32::NEG_INFINITY, larger);
        let mut sums = [0f32; BLOCK_TOKENS];
        for (weights, &seen) in weights.chunks_exact_mut(BLOCK_TOKENS).zip(seen) {
            if seen != 0 {
                for weight in weights.iter_mut() {
                    *weight = exp(*weight - max);
                }
                hide(weights, seen, 0.0);
                for t in 0..BLOCK_TOKENS {
                    sums[t] += weights[t];
                }
            }
        }
        *total = [max, sum32(sums)];
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

#[cfg(test)]
#[path = "attention_window_tests.rs"]
mod window_tests;
