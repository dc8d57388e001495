//! What a cache session sees when it chooses. Must not know tensors.

use std::fmt;
use std::ops::Range;

use crate::kernel::{LiveBlock, BLOCK_TOKENS};

/// One cache group of one sequence: layers that retain alike, and the positions that they still hold.
pub struct CacheView<'a> {
    pub(crate) group: usize,
    pub(crate) layers: &'a [usize],
    pub(crate) window: Option<usize>,
    pub(crate) sinks: usize,
    pub(crate) position: usize,
    pub(crate) prompt_len: usize,
    pub(crate) live: &'a [LiveBlock],
}

impl fmt::Debug for CacheView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheView")
            .field("group", &self.group)
            .field("layers", &self.layers)
            .field("window", &self.window)
            .field("position", &self.position)
            .field("prompt_len", &self.prompt_len)
            .finish_non_exhaustive()
    }
}

impl CacheView<'_> {
    /// The group's number; the groups of a model are numbered in the order of their first layers.
    pub fn group(&self) -> usize {
        self.group
    }

    /// The model's layers in this group, ascending.
    pub fn layers(&self) -> &[usize] {
        self.layers
    }

    /// The sliding window of these layers, their own or the policy's; `None` where queries see all.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// Positions stored so far, which is the position of the next query.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Tokens of the prompt.
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// The positions that the next query would see, ascending: neither dropped nor out of the window.
    pub fn live(&self) -> impl Iterator<Item = usize> + '_ {
        self.live.iter().flat_map(|b| {
            let start = b.block as usize * BLOCK_TOKENS;
            (0..BLOCK_TOKENS).filter(|t| b.lanes >> t & 1 == 1).map(move |t| start + t).filter(|&p| self.sees(p))
        })
    }

    /// How many positions are live.
    pub fn num_live(&self) -> usize {
        self.live().count()
    }

    /// Whether a position is live.
    pub fn is_live(&self, position: usize) -> bool {
        let block = self.live.binary_search_by_key(&(position / BLOCK_TOKENS), |b| b.block as usize);
        block.is_ok_and(|at| self.live[at].lanes >> (position % BLOCK_TOKENS) & 1 == 1) && self.sees(position)
    }

    /// The positions of the window that the next query sees besides its own.
    pub(crate) fn window_range(&self) -> Range<usize> {
        self.window.map_or(0, |window| (self.position + 1).saturating_sub(window))..self.position
    }

    fn sees(&self, position: usize) -> bool {
        self.window_range().contains(&position) || position < self.sinks.min(self.position)
    }
}
