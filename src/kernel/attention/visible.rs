//! Who sees what: windows, sinks and dropped tokens, as lanes of blocks. Knows indices only.

use std::ops::Range;

use super::super::kv::BLOCK_TOKENS;
use super::{AttentionShape, LiveBlock, PART_BLOCKS};

impl AttentionShape {
    /// First index of a query's window.
    pub(super) fn window_start(&self, index: usize) -> usize {
        self.window.map_or(0, |w| (index + 1).saturating_sub(w))
    }

    /// End of the sinks that are out of a query's window.
    pub(super) fn sinks_end(&self, index: usize) -> usize {
        self.sinks.min(self.window_start(index))
    }

    /// The lanes of a block that a query may see.
    pub(super) fn lanes(&self, index: usize, block: usize) -> u32 {
        between(block, 0, self.sinks_end(index)) | between(block, self.window_start(index), index + 1)
    }

    /// Whether a query is so far out that its sinks count as moved up to its window.
    pub(super) fn moves_sinks(&self, index: usize) -> bool {
        self.window.is_some_and(|window| index >= window.saturating_add(self.sinks))
    }
}

/// The lanes of a block whose indices lie in `first..end`.
pub(super) fn between(block: usize, first: usize, end: usize) -> u32 {
    let lane = |index: usize| index.saturating_sub(block * BLOCK_TOKENS).min(BLOCK_TOKENS);
    let (low, high) = (lane(first), lane(end));
    if low >= high {
        return 0;
    }
    u32::MAX >> (BLOCK_TOKENS - (high - low)) << low
}

/// Consecutive lanes that are set, ascending.
pub(super) fn runs(mut lanes: u32) -> impl Iterator<Item = Range<usize>> {
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

/// The blocks that some of a few consecutive queries may see: sinks, then a window that does not overlap them.
pub(super) struct Visible<'a> {
    sinks: Range<usize>,
    window: Range<usize>,
    live: Option<&'a [LiveBlock]>,
}

impl<'a> Visible<'a> {
    /// For queries at the indices `first..=last`.
    pub(super) fn new(shape: &AttentionShape, live: Option<&'a [LiveBlock]>, first: usize, last: usize) -> Visible<'a> {
        let window = shape.window_start(first) / BLOCK_TOKENS..last / BLOCK_TOKENS + 1;
        let sinks = 0..shape.sinks_end(last).div_ceil(BLOCK_TOKENS).min(window.start);
        Visible { sinks, window, live }
    }

    /// Parts that hold a visible block.
    pub(super) fn parts(&self) -> usize {
        let (sinks, window) = self.ranges();
        sinks + window.len()
    }

    /// Parts of the sinks, and those of the window that are not among them.
    fn ranges(&self) -> (usize, Range<usize>) {
        let sinks = self.sinks.end.div_ceil(PART_BLOCKS);
        let window = self.window.start / PART_BLOCKS..self.window.end.div_ceil(PART_BLOCKS);
        (sinks, window.start.max(sinks)..window.end)
    }

    /// The visible blocks of the `n`-th part in ascending order, which may be none; `n` is below [`parts`](Self::parts).
    pub(super) fn blocks(&self, n: usize) -> PartBlocks {
        let (sinks, window) = self.ranges();
        let part = if n < sinks { n } else { window.start + n - sinks };
        let range = part * PART_BLOCKS..(part + 1) * PART_BLOCKS;
        let mut blocks = PartBlocks::default();
        let visible = |block: usize| self.sinks.contains(&block) || self.window.contains(&block);
        match self.live {
            None => {
                let all = range.filter(|&b| visible(b)).map(|b| LiveBlock { block: b as u32, lanes: u32::MAX });
                all.for_each(|block| blocks.push(block));
            }
            Some(live) => {
                let from = live.partition_point(|b| (b.block as usize) < range.start);
                let part = live[from..].iter().take_while(|b| (b.block as usize) < range.end);
                part.filter(|b| visible(b.block as usize)).for_each(|block| blocks.push(*block));
            }
        }
        blocks
    }
}

/// Blocks of one part.
#[derive(Default)]
pub(super) struct PartBlocks {
    blocks: [LiveBlock; PART_BLOCKS],
    len: usize,
}

impl PartBlocks {
    fn push(&mut self, block: LiveBlock) {
        self.blocks[self.len] = block;
        self.len += 1;
    }

    pub(super) fn as_slice(&self) -> &[LiveBlock] {
        &self.blocks[..self.len]
    }
}
