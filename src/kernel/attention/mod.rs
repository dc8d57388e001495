//! Attention over blocks: the one arithmetic that decode, prefill and verification share.
//!
//! For a query at logical index p the keys are those that [`AttentionShape`] lets it see and that are live. Scores
//! accumulate over head_dim in order. Indices are cut into parts of 256, anchored at index 0; a part has its own
//! maximum, its sum of weights (32 lanes over the part's blocks in order, then a fixed tree) and its weighted values
//! (tokens in order). Parts merge in ascending order. Nothing depends on which other queries are computed or on how
//! parts are spread over threads, so a row's result is the same in a prompt, a chunk or a decode step.
//!
//! This file says what is asked and splits it into tasks; `visible` knows who sees what, `tile` computes a task with
//! the kernels of `pairs` (blocks of bf16), `products` (the other formats) and `softmax`.

#[cfg(test)]
mod mass_tests;
mod pairs;
mod products;
#[cfg(test)]
mod property_tests;
mod softmax;
#[cfg(test)]
mod tests;
mod tile;
mod visible;
#[cfg(test)]
mod window_tests;

use std::cell::RefCell;
use std::ops::Range;

use self::softmax::merge;
use self::tile::{Tile, TILE_ROWS};
use super::chunks::Shared;
use super::kv::{KvBlocks, KvShape, BLOCK_TOKENS};
use super::memory::with_shared_scratch;
use super::Cpu;

/// Logical indices whose weights are summed before merging.
const PART: usize = 256;
const PART_BLOCKS: usize = PART / BLOCK_TOKENS;
/// From the scores of a query to those of the next: a power of two would put many of them into few places of the cache.
const SCORES: usize = PART + 16;
/// Tasks per thread that are enough: so many that a slow core does not hold the others for long.
const TASKS_PER_THREAD: usize = 4;
/// Rows of a span up to which reading K and V takes the time, not computing with them.
const FEW_ROWS: usize = 4;
/// Bytes of keys or values in one piece beyond which longer ones are not read faster.
const RUN_BYTES: usize = 16 << 10;
/// Values of partial results that are kept at a time, beside the merged ones (64 MiB each at most); tests keep two parts.
const MOST_PARTIAL: usize = 16 << 20;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveBlock {
    /// Place in the table: the block of the logical indices from 32 times this number.
    pub block: u32,
    /// Bit t is set where index `32 * block + t` is live or not written yet.
    pub lanes: u32,
}

/// `out[r] = softmax(scale * q[r] K^T) V` per head over the keys that row r sees; `q` and `out` are
/// `[rows][heads][head_dim]`. K and V are what the blocks hold; with [`KvFormat::Bf16`](super::KvFormat::Bf16) q and the
/// weights are rounded to bf16 too.
///
/// `sink_q` is a second copy of `q`, rotated for the position `sinks + window - 1`: rows at this index or beyond score
/// their sinks with it, so that the sinks stay as far away as when the window was first full (StreamingLLM,
/// arXiv 2309.17453). `None` scores sinks with `q`.
///
/// One dispatch to the pool; where few rows go over a long context, its parts are tasks too, and a second one merges them.
///
/// # Panics
/// If a span reaches outside `q`, `out` or its table, spans do not ascend or overlap, the head counts do not divide, or
/// `sink_q` has another length.
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
    let (rows, mut end) = (q.len() / (shape.heads * kv.head_dim).max(1), 0);
    for span in spans {
        // Ascending, so that no two tasks have the same rows of the output.
        let next = span.first_row.checked_add(span.rows).filter(|&next| span.first_row >= end && next <= rows);
        let Some(next) = next else { panic!("attention spans: ascending, apart and inside of the {rows} rows") };
        end = next;
    }
    thread_local! {
        /// Span and first row of every tile; kept for its memory.
        static TILES: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
    }
    TILES.with_borrow_mut(|tiles| {
        tiles.clear();
        for (s, span) in spans.iter().enumerate() {
            tiles.extend((0..span.rows).step_by(TILE_ROWS).map(|row| (s, row)));
        }
        Inputs { cpu, shape, blocks, q, sink_q }.run(spans, tiles, out);
    });
}

/// How much attention each key has from a span's rows: adds to `mass`, `[kv_heads][indices]` for the logical indices up
/// to the last row's, every row's softmax weights, summed over the query heads of a KV head. A row adds 1 per query
/// head, or nothing where it sees no key.
///
/// For policies that keep the keys which attention goes to (H2O, arXiv 2306.14048; SnapKV, arXiv 2404.14469). Apart from
/// [`attention`], which keeps no weights: this computes the span's scores twice again, so give it few rows. One dispatch
/// to the pool, a task per KV head. Rows are added in order, so cutting them into several calls changes no bit.
///
/// # Panics
/// If the span reaches outside `q` or its table, the head counts do not divide, or `sink_q` or `mass` has another length.
pub fn attention_mass(
    cpu: &Cpu,
    shape: &AttentionShape,
    blocks: &KvBlocks,
    span: &AttentionSpan<'_>,
    q: &[f32],
    sink_q: Option<&[f32]>,
    mass: &mut [f32],
) {
    let kv = blocks.shape();
    assert!(shape.heads.is_multiple_of(kv.kv_heads), "attention heads");
    assert!(sink_q.is_none_or(|sink_q| sink_q.len() == q.len()), "attention sinks");
    let (rows, indices) = (q.len() / (shape.heads * kv.head_dim).max(1), span.first_index + span.rows);
    assert!(span.first_row.checked_add(span.rows).is_some_and(|end| end <= rows), "a span inside of the {rows} rows");
    assert_eq!(mass.len(), kv.kv_heads * indices, "attention mass");
    if span.rows == 0 {
        return;
    }
    let inputs = Inputs { cpu, shape, blocks, q, sink_q };
    let mass = Shared::new(mass);
    cpu.pool.run(kv.kv_heads, &|head| {
        // SAFETY: every KV head has its own part, and one task.
        let mass = unsafe { mass.slice(head * indices, indices) };
        for row in (0..span.rows).step_by(TILE_ROWS) {
            Tile::new(inputs, span, row, head..head + 1).mass(mass);
        }
    });
}

/// What all tasks of a dispatch share.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    cpu: &'a Cpu,
    shape: &'a AttentionShape,
    blocks: &'a KvBlocks,
    q: &'a [f32],
    sink_q: Option<&'a [f32]>,
}

impl<'a> Inputs<'a> {
    /// KV heads of a task. Their keys lie side by side, and so do their values: where few rows go over a long context, what
    /// is read as one piece is read faster than pieces here and there.
    fn heads_together(self, spans: &'a [AttentionSpan<'a>], tiles: &[(usize, usize)], aim: usize) -> usize {
        let (kv_heads, panel) = (self.blocks.shape().kv_heads, self.blocks.panel_bytes());
        let parts = || tiles.iter().map(|&(s, row)| Tile::new(self, &spans[s], row, 0..1).parts()).sum::<usize>();
        if spans.iter().any(|span| span.rows > FEW_ROWS) || parts() < aim {
            return 1;
        }
        (1..=kv_heads).rev().find(|&n| n == 1 || kv_heads.is_multiple_of(n) && n * panel <= RUN_BYTES).unwrap_or(1)
    }

    fn run(self, spans: &'a [AttentionSpan<'a>], tiles: &[(usize, usize)], out: &mut [f32]) {
        let KvShape { kv_heads, head_dim } = self.blocks.shape();
        let threads = self.cpu.pool.threads();
        let aim = threads * TASKS_PER_THREAD;
        if kv_heads == 0 || tiles.is_empty() {
            return;
        }
        let heads = self.heads_together(spans, tiles, aim);
        let each = kv_heads / heads;
        let pairs = tiles.len() * each;
        let tile = |pair: usize| {
            // Later tiles see more keys. A long one beside a short one: every run of tasks is as much work as others are.
            let (i, head) = (pair / each, pair % each * heads);
            let (s, row) = tiles[if i.is_multiple_of(2) { tiles.len() - 1 - i / 2 } else { i / 2 }];
            Tile::new(self, &spans[s], row, head..head + heads)
        };
        let out = Shared::new(out);
        // SAFETY: rows of spans are disjoint and each (row, KV head) belongs to one pair, finished by one task.
        let finish = |place: usize, values: &[f32]| unsafe { out.slice(place, values.len()) }.copy_from_slice(values);
        let (mut parts, mut queries) = (1, 0);
        if threads > 1 && pairs < aim {
            for pair in 0..pairs {
                let tile = tile(pair);
                (parts, queries) = (tile.parts().max(parts), tile.queries().max(queries));
            }
        }
        let results = pairs * queries * (head_dim + 2);
        if parts == 1 || results > MOST_PARTIAL {
            self.cpu.pool.run(pairs, &|pair| tile(pair).whole(&finish));
            return;
        }
        self.in_parts(pairs, (parts, queries), &tile, &finish);
    }

    /// Tiles whose parts are tasks of their own, merged afterwards in their order. None has more parts or queries than given.
    fn in_parts(
        self,
        pairs: usize,
        (parts, queries): (usize, usize),
        tile: &(impl Fn(usize) -> Tile<'a> + Sync),
        finish: &(impl Fn(usize, &[f32]) + Sync),
    ) {
        let (dim, level) = (self.blocks.shape().head_dim, self.cpu.usable_level());
        let stride = queries * (dim + 2);
        // As many parts at a time as their results have room.
        let most = (if cfg!(test) { 2 } else { MOST_PARTIAL / (pairs * stride) }).clamp(1, parts);
        with_shared_scratch(pairs * (most + 1) * stride, |scratch| {
            let (partials, merged) = scratch.split_at_mut(pairs * most * stride);
            let merged = Shared::new(merged);
            for first in (0..parts).step_by(most) {
                let round = |tile: &Tile<'_>| first.min(tile.parts())..(first + most).min(tile.parts());
                let shared = Shared::new(partials);
                // Parts of a context differ in length, so there are more tasks than others have.
                let chunks = (2 * self.cpu.pool.threads() * TASKS_PER_THREAD).div_ceil(pairs).min(most);
                self.cpu.pool.run(pairs * chunks, &|task| {
                    let (pair, chunk) = (task / chunks, task % chunks);
                    let tile = tile(pair);
                    let Range { start, end } = round(&tile);
                    let each = (end - start).div_ceil(chunks);
                    // SAFETY: every part of every pair has its own place, and one task.
                    let place = |part: usize| unsafe { shared.slice((pair * most + part - first) * stride, stride) };
                    tile.parts_alone(end.min(start + chunk * each)..end.min(start + (chunk + 1) * each), place);
                });
                let partials: &[f32] = partials;
                self.cpu.pool.run(pairs, &|pair| {
                    let tile = tile(pair);
                    // SAFETY: every pair has its own place, and one task.
                    let merged = unsafe { merged.slice(pair * stride, stride) };
                    if first == 0 {
                        tile.start(merged);
                    }
                    for part in round(&tile) {
                        let result = &partials[(pair * most + part - first) * stride..];
                        merge(level, tile.queries(), result, merged, dim);
                    }
                    if first + most >= parts {
                        tile.finish(merged, finish);
                    }
                });
            }
        });
    }
}
