//! One task: some rows of a span with the query heads of one or some KV heads, over all or some parts of the context.
//!
//! A query is a row with a head; all queries of a KV head share every reading of its K and V.

use std::ops::Range;

use super::super::isa::KernelLevel;
use super::super::kv::{KvFormat, Panel, BLOCK_TOKENS};
use super::super::lanes::pairs::has_pairs;
use super::super::memory::{with_scratch, words_mut};
use super::super::ops::softcap_slice as softcap;
use super::softmax::{divide, merge, share, soften, UNSEEN};
use super::visible::{between, runs, PartBlocks, Visible};
use super::{pairs, products};
use super::{AttentionSpan, Inputs, LiveBlock, FEW_ROWS, PART, PART_BLOCKS, SCORES};

/// Query rows that share one reading of K and V.
pub(super) const TILE_ROWS: usize = 16;
/// Bytes of keys or values between what is read and what is brought closer: what is read while memory answers.
const AHEAD_BYTES: usize = 8 << 10;
/// Bytes of values that are brought closer while a part's weights are computed.
const VALUE_BYTES: usize = 16 << 10;
/// Up to this many queries, taking pairs apart in every product costs less than widening a panel for all of them.
const MOST_DIRECT: usize = 8;

pub(super) struct Tile<'a> {
    inputs: Inputs<'a>,
    level: KernelLevel,
    span: &'a AttentionSpan<'a>,
    /// The first row, counted in the span.
    row: usize,
    rows: usize,
    /// The KV heads.
    heads: Range<usize>,
    /// Query heads per KV head.
    group: usize,
    dim: usize,
    /// Whether queries and weights are rounded to bf16.
    narrow: bool,
    /// Whether products read pairs of bf16 where they lie, and whether the level wants factors as pairs too.
    pairs: bool,
    packed: bool,
    visible: Visible<'a>,
}

/// Working memory of one part. Queries are ordered by KV head, row and query head.
struct Buffers<'a> {
    /// `[queries][SCORES]`: scores, then weights.
    scores: &'a mut [f32],
    /// `[queries][stride]`, as the products want them.
    queries: &'a mut [f32],
    /// The same for the query heads of one row and KV head whose sinks are moved.
    moved: &'a mut [f32],
    /// One widened K or V panel; with pairs, one row of them.
    panel: &'a mut [f32],
}

/// Panels that are read for a part, and those that follow, in that order: hints for prefetching. A block that no row sees may be
/// gone; it has no address then.
struct Reads {
    /// The first head's panels; those of the others follow each.
    panels: [Option<*const u8>; 3 * PART_BLOCKS],
    /// KV heads, and the bytes of a panel.
    heads: usize,
    bytes: usize,
    /// How many panels ahead of its use one is brought closer.
    ahead: usize,
}

impl Reads {
    const NONE: Reads = Reads { panels: [None; 3 * PART_BLOCKS], heads: 1, bytes: 0, ahead: 0 };

    /// What to bring closer while the `i`-th block's panel of the `head`-th head is read.
    fn beside(&self, i: usize, head: usize) -> Option<*const u8> {
        self.later(i * self.heads + head)
    }

    /// What to bring closer beside the panel of that number.
    fn later(&self, panel: usize) -> Option<*const u8> {
        let panel = panel + self.ahead;
        let first = self.panels.get(panel / self.heads).copied().flatten()?;
        Some(first.wrapping_add(panel % self.heads * self.bytes))
    }
}

/// Per row, the lanes of the part's blocks that it sees.
type Seen = [[u32; PART_BLOCKS]; TILE_ROWS];

impl<'a> Tile<'a> {
    pub(super) fn new(inputs: Inputs<'a>, span: &'a AttentionSpan<'a>, row: usize, heads: Range<usize>) -> Tile<'a> {
        let kv = inputs.blocks.shape();
        let rows = TILE_ROWS.min(span.rows - row);
        let first = span.first_index + row;
        let visible = Visible::new(inputs.shape, span.live, first, first + rows - 1);
        let (level, group) = (inputs.cpu.usable_level(), inputs.shape.heads / kv.kv_heads);
        let narrow = inputs.blocks.format() == KvFormat::Bf16;
        let packed = narrow && has_pairs(level);
        let pairs = packed || narrow && rows * group <= MOST_DIRECT;
        Tile { inputs, level, span, row, rows, heads, group, dim: kv.head_dim, narrow, pairs, packed, visible }
    }

    /// Logical index of a row.
    fn index(&self, r: usize) -> usize {
        self.span.first_index + self.row + r
    }

    pub(super) fn queries(&self) -> usize {
        self.heads.len() * self.rows * self.group
    }

    /// Parts of the context that some row may see.
    pub(super) fn parts(&self) -> usize {
        self.visible.parts()
    }

    /// Where row `r`'s query heads of a KV head begin in `q` and `out`.
    fn place(&self, head: usize, r: usize) -> usize {
        ((self.span.first_row + self.row + r) * self.inputs.shape.heads + head * self.group) * self.dim
    }

    /// Those places for all queries, in their order.
    fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.heads.clone().flat_map(move |head| (0..self.rows).map(move |r| self.place(head, r)))
    }

    /// All parts, merged. `take(place, values)` gets results, `[query heads of a KV head][dim]`, and where they belong.
    pub(super) fn whole(&self, take: impl FnMut(usize, &[f32])) {
        let results = self.queries() * (self.dim + 2);
        with_scratch(2 * results + self.buffers(), |scratch| {
            let (part, rest) = scratch.split_at_mut(results);
            let (merged, rest) = rest.split_at_mut(results);
            self.start(merged);
            let mut buffers = self.divide(rest);
            for n in 0..self.parts() {
                self.compute(n, &mut buffers, part);
                merge(self.level, self.queries(), part, merged, self.dim);
            }
            self.finish(merged, take);
        });
    }

    /// Some parts, each into the `[queries][dim]` values and then `[queries][2]` with the maximum and the sum of weights
    /// that `out` has for it.
    pub(super) fn parts_alone<'b>(&self, parts: Range<usize>, mut out: impl FnMut(usize) -> &'b mut [f32]) {
        with_scratch(self.buffers(), |scratch| {
            let mut buffers = self.divide(scratch);
            for n in parts {
                self.compute(n, &mut buffers, &mut out(n)[..self.queries() * (self.dim + 2)]);
            }
        });
    }

    /// What merging starts from.
    pub(super) fn start(&self, merged: &mut [f32]) {
        let (values, running) = merged[..self.queries() * (self.dim + 2)].split_at_mut(self.queries() * self.dim);
        values.fill(0.0);
        running.as_chunks_mut().0.fill([f32::NEG_INFINITY, UNSEEN]);
    }

    /// Hands out the results.
    pub(super) fn finish(&self, merged: &mut [f32], mut take: impl FnMut(usize, &[f32])) {
        let (values, running) = merged.split_at_mut(self.queries() * self.dim);
        for (query, values) in values.chunks_exact_mut(self.dim).enumerate() {
            divide(self.level, values, running[2 * query + 1]);
        }
        for (place, values) in self.places().zip(values.chunks_exact(self.group * self.dim)) {
            take(place, values);
        }
    }

    /// The row of a query.
    fn row_of(&self, query: usize) -> usize {
        query / self.group % self.rows
    }

    /// Length of a prepared query.
    fn stride(&self) -> usize {
        self.dim.next_multiple_of(2)
    }

    /// Length of the working memory of a part.
    fn buffers(&self) -> usize {
        self.queries() * SCORES + (self.queries() + self.group) * self.stride() + self.panel()
    }

    fn panel(&self) -> usize {
        self.dim * if self.pairs { 1 } else { BLOCK_TOKENS }
    }

    /// Copies the queries at some places, as the products want them.
    fn prepare(&self, q: &[f32], places: impl Iterator<Item = usize>, out: &mut [f32]) {
        let mut heads = out.chunks_exact_mut(self.stride());
        for place in places {
            let q = q[place..][..self.group * self.dim].chunks_exact(self.dim);
            for (q, out) in q.zip(heads.by_ref()) {
                let (values, padding) = out.split_at_mut(self.dim);
                values.copy_from_slice(q);
                padding.fill(0.0);
                if self.narrow {
                    pairs::prepare(self.level, out);
                }
            }
        }
    }

    fn compute(&self, n: usize, buffers: &mut Buffers<'_>, out: &mut [f32]) {
        let blocks = self.visible.blocks(n);
        let blocks = blocks.as_slice();
        let reads = self.reads(n, blocks);
        let (values, totals) = out.split_at_mut(self.queries() * self.dim);
        let seen = self.weights((blocks, &reads), buffers, totals);
        if self.packed {
            buffers.scores.chunks_exact_mut(SCORES).for_each(|weights| pairs::pack(self.level, &mut weights[..PART]));
        }
        values.fill(0.0);
        self.weigh((blocks, &reads), &seen, buffers, values);
    }

    /// What is read for part `n`, whose blocks these are: their keys, their values, and the next part's keys.
    fn reads(&self, n: usize, blocks: &[LiveBlock]) -> Reads {
        let following = if n + 1 < self.parts() { self.visible.blocks(n + 1) } else { PartBlocks::default() };
        let parts = [(blocks, Panel::Keys), (blocks, Panel::Values), (following.as_slice(), Panel::Keys)];
        let all = parts.into_iter().flat_map(|(blocks, panel)| blocks.iter().map(move |block| (block, panel)));
        let (heads, bytes) = (self.heads.len(), self.inputs.blocks.panel_bytes());
        let ahead = AHEAD_BYTES.div_ceil(bytes).min(blocks.len() * heads);
        let mut reads = Reads { panels: [None; _], heads, bytes, ahead };
        for (read, (block, panel)) in reads.panels.iter_mut().zip(all) {
            let id = self.span.table.get(block.block as usize);
            *read = id.and_then(|id| self.inputs.blocks.panel_address(*id, self.heads.start, panel));
        }
        reads
    }

    /// The working memory of parts, with the queries prepared.
    fn divide<'b>(&self, scratch: &'b mut [f32]) -> Buffers<'b> {
        let (scores, rest) = scratch.split_at_mut(self.queries() * SCORES);
        let (queries, rest) = rest.split_at_mut(self.queries() * self.stride());
        let (moved, rest) = rest.split_at_mut(self.group * self.stride());
        self.prepare(self.inputs.q, self.places(), queries);
        Buffers { scores, queries, moved, panel: &mut rest[..self.panel()] }
    }

    /// Weights of a part's blocks in `buffers.scores`, relative to the largest of each query; `totals` is that largest
    /// score and the sum of weights.
    fn weights(&self, (blocks, reads): (&[LiveBlock], &Reads), buffers: &mut Buffers<'_>, totals: &mut [f32]) -> Seen {
        let mut seen: Seen = [[0; PART_BLOCKS]; TILE_ROWS];
        for &LiveBlock { block, lanes } in blocks {
            for (r, seen) in seen[..self.rows].iter_mut().enumerate() {
                seen[block as usize % PART_BLOCKS] = lanes & self.inputs.shape.lanes(self.index(r), block as usize);
            }
        }
        self.score((blocks, reads), &seen, buffers);
        for (query, (weights, total)) in
            buffers.scores.chunks_exact_mut(SCORES).zip(totals.chunks_exact_mut(2)).enumerate()
        {
            self.bring_values(blocks.len(), reads, query);
            match &seen[self.row_of(query)] {
                [0, 0, 0, 0, 0, 0, 0, 0] => total.copy_from_slice(&[f32::NEG_INFINITY, UNSEEN]),
                seen => total.copy_from_slice(&soften(self.level, weights, seen, self.narrow)),
            }
        }
        seen
    }

    /// Brings some of the part's values closer beside the weights of a query: else memory is idle until all weights are there.
    fn bring_values(&self, blocks: usize, reads: &Reads, query: usize) {
        if self.rows > FEW_ROWS || reads.bytes == 0 {
            return;
        }
        let panels = VALUE_BYTES.div_ceil(reads.bytes);
        let from = |query: usize| (panels * query).div_ceil(self.queries());
        for i in from(query)..from(query + 1) {
            if let Some(panel) = reads.later(blocks * reads.heads + i) {
                self.inputs.blocks.prefetch(panel);
            }
        }
    }

    /// Adds to `mass`, one value per logical index, the share of attention that it has from each of the tile's queries.
    pub(super) fn mass(&self, mass: &mut [f32]) {
        let totals = 2 * self.queries();
        with_scratch(2 * totals + self.buffers(), |scratch| {
            let (running, rest) = scratch.split_at_mut(totals);
            let (part, rest) = rest.split_at_mut(totals);
            let mut buffers = self.divide(rest);
            running.as_chunks_mut().0.fill([f32::NEG_INFINITY, UNSEEN]);
            for n in 0..self.parts() {
                self.weights((self.visible.blocks(n).as_slice(), &Reads::NONE), &mut buffers, part);
                merge(self.level, self.queries(), part, running, 0);
            }
            // Once more, rather than to keep the weights of the whole context.
            for n in 0..self.parts() {
                let blocks = self.visible.blocks(n);
                let seen = self.weights((blocks.as_slice(), &Reads::NONE), &mut buffers, part);
                for (query, weights) in buffers.scores.chunks_exact(SCORES).enumerate() {
                    let ([max, sum], [part_max, _]) = (pair(running, query), pair(part, query));
                    for block in blocks.as_slice() {
                        let slot = block.block as usize % PART_BLOCKS;
                        let lanes = seen[self.row_of(query)][slot];
                        if lanes != 0 {
                            let mass = &mut mass[block.block as usize * BLOCK_TOKENS..];
                            share(self.level, &weights[slot * BLOCK_TOKENS..], lanes, part_max - max, sum, mass);
                        }
                    }
                }
            }
        });
    }

    /// Brings a panel closer beside products of widened ones. With many queries the time goes into arithmetic.
    fn prefetch(&self, panel: Option<*const u8>) {
        if let Some(panel) = panel.filter(|_| self.rows <= FEW_ROWS) {
            self.inputs.blocks.prefetch(panel);
        }
    }

    /// Scores of the part's blocks, for the rows that see some of a block.
    fn score(&self, (part, reads): (&[LiveBlock], &Reads), seen: &Seen, buffers: &mut Buffers<'_>) {
        for (i, &LiveBlock { block, .. }) in part.iter().enumerate() {
            // A live block may have live tokens out of sight only, and then may be gone.
            let Some(rows) = rows_that_see(&seen[..self.rows], block as usize % PART_BLOCKS) else { continue };
            for head in 0..self.heads.len() {
                self.score_block((block as usize, head, reads.beside(i, head)), rows.clone(), seen, buffers);
            }
        }
    }

    /// Scores of some rows with one block's keys of the tile's `head`-th KV head, before the panel at `next`.
    fn score_block(
        &self,
        (block, head, next): (usize, usize, Option<*const u8>),
        rows: Range<usize>,
        seen: &Seen,
        buffers: &mut Buffers<'_>,
    ) {
        let Inputs { shape, blocks, sink_q, .. } = self.inputs;
        let Buffers { scores, queries, moved, panel } = buffers;
        let (slot, kv_head) = (block % PART_BLOCKS, self.heads.start + head);
        let at = (self.span.table[block], kv_head);
        if !self.pairs {
            blocks.load_keys(self.level, at.0, kv_head, panel);
            self.prefetch(next);
        }
        let first = |r: usize| (head * self.rows + r) * self.group;
        let count = rows.len() * self.group;
        let to = first(rows.start) * SCORES + slot * BLOCK_TOKENS;
        self.products((at, next), count, &queries[first(rows.start) * self.stride()..], panel, &mut scores[to..]);
        let sinks = between(block, 0, shape.sinks);
        if let Some(sink_q) = sink_q.filter(|_| sinks != 0) {
            for r in rows.filter(|&r| shape.moves_sinks(self.index(r))) {
                self.prepare(sink_q, std::iter::once(self.place(kv_head, r)), moved);
                for (i, query) in moved.chunks_exact(self.stride()).enumerate() {
                    let mut sunk = [0.0; BLOCK_TOKENS];
                    self.products((at, None), 1, query, panel, &mut sunk);
                    let scores = &mut scores[(first(r) + i) * SCORES + slot * BLOCK_TOKENS..];
                    runs(sinks & seen[r][slot]).for_each(|run| scores[run.clone()].copy_from_slice(&sunk[run]));
                }
            }
        }
        if let Some(cap) = shape.softcap {
            for scores in scores[to..].chunks_mut(SCORES).take(count) {
                softcap(self.level, &mut scores[..BLOCK_TOKENS], cap);
            }
        }
    }

    /// Scores of `count` prepared queries with a block and KV head, whose widened keys are in `panel` unless pairs are read;
    /// then the panel at `next` is brought closer.
    fn products(
        &self,
        ((id, head), next): ((u32, usize), Option<*const u8>),
        count: usize,
        queries: &[f32],
        panel: &[f32],
        scores: &mut [f32],
    ) {
        let (queries, scale) = ((queries, self.stride()), self.inputs.shape.scale);
        if self.pairs {
            let keys = self.inputs.blocks.key_pairs(id, head);
            pairs::score(self.level, count, queries, (keys, next), scale, scores);
        } else {
            products::score(self.level, count, queries, panel, scale, scores);
        }
    }

    /// Weighs the part's values, block by block.
    fn weigh(&self, (part, reads): (&[LiveBlock], &Reads), seen: &Seen, buffers: &mut Buffers<'_>, out: &mut [f32]) {
        let each = self.rows * self.group;
        for (i, &LiveBlock { block, .. }) in part.iter().enumerate() {
            let place = (self.span.table[block as usize], block as usize % PART_BLOCKS);
            for (head, out) in out.chunks_exact_mut(each * self.dim).enumerate() {
                let next = reads.beside(part.len() + i, head);
                let Buffers { scores, panel, .. } = &mut *buffers;
                self.weigh_block(place, (head, next), seen, &scores[head * each * SCORES..], panel, out);
            }
        }
    }

    /// Weighs the values of block `id`, the `slot`-th of its part, of the tile's `head`-th KV head, for consecutive rows that
    /// see the same of it at a time, before the panel at `next`.
    fn weigh_block(
        &self,
        (id, slot): (u32, usize),
        (head, next): (usize, Option<*const u8>),
        seen: &Seen,
        weights: &[f32],
        panel: &mut [f32],
        out: &mut [f32],
    ) {
        let (blocks, head) = (self.inputs.blocks, self.heads.start + head);
        if !self.pairs {
            for run in runs(seen.iter().fold(0, |all, seen| all | seen[slot])) {
                blocks.load_values(self.level, id, head, run, panel);
            }
            self.prefetch(next);
        }
        let mut r = 0;
        for alike in seen[..self.rows].chunk_by(|a, b| a[slot] == b[slot]) {
            let queries = r * self.group..(r + alike.len()) * self.group;
            r += alike.len();
            let weights = &weights[queries.start * SCORES..];
            let out = &mut out[queries.start * self.dim..queries.end * self.dim];
            for run in runs(alike[0][slot]) {
                let token = slot * BLOCK_TOKENS + run.start;
                if self.pairs {
                    self.weigh_pairs(((id, head), slot, next), run, weights, panel, out);
                } else {
                    let values = &panel[run.start * self.dim..run.end * self.dim];
                    products::weigh(self.level, queries.len(), &weights[token..], values, run.len(), self.dim, out);
                }
            }
        }
    }

    /// Weighs the values of a run of tokens of a block and KV head, the `slot`-th of its part, before the panel at `next`.
    fn weigh_pairs(
        &self,
        ((id, head), slot, next): ((u32, usize), usize, Option<*const u8>),
        run: Range<usize>,
        weights: &[f32],
        row: &mut [f32],
        out: &mut [f32],
    ) {
        let count = out.len() / self.dim;
        let values = |rows: Range<usize>| self.inputs.blocks.value_pairs(id, head, rows);
        let weigh = |first: usize, values: &[u32], out: &mut [f32]| {
            let next = next.map(|next| next.wrapping_add(first * self.dim * size_of::<u32>()));
            let first = slot * BLOCK_TOKENS / 2 + first;
            let weights = &weights[if self.packed { first } else { 2 * first }..];
            pairs::weigh(self.level, count, weights, (values, next), self.dim, out);
        };
        // A token whose neighbour is not seen: that one's weight is 0, but its value may be anything.
        let row = words_mut(row);
        let mut single = |token: usize, out: &mut [f32]| {
            let keep = if token.is_multiple_of(2) { 0xffff_0000 } else { 0xffff };
            let pairs = values(token / 2..token / 2 + 1);
            row.iter_mut().zip(pairs).for_each(|(word, pair)| *word = pair & keep);
            weigh(token / 2, row, out);
        };
        let whole = run.start.div_ceil(2)..run.end / 2;
        if !run.start.is_multiple_of(2) {
            single(run.start, out);
        }
        if !whole.is_empty() {
            weigh(whole.start, values(whole), out);
        }
        if !run.end.is_multiple_of(2) {
            single(run.end - 1, out);
        }
    }
}

/// The maximum and the sum of a query.
fn pair(totals: &[f32], query: usize) -> [f32; 2] {
    [totals[2 * query], totals[2 * query + 1]]
}

/// The rows from the first that sees something of a block to the last.
fn rows_that_see(seen: &[[u32; PART_BLOCKS]], slot: usize) -> Option<Range<usize>> {
    let first = seen.iter().position(|seen| seen[slot] != 0)?;
    let last = seen.iter().rposition(|seen| seen[slot] != 0)?;
    Some(first..last + 1)
}
