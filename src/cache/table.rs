//! Which blocks hold which indices of a sequence, per cache group and layer.

use super::arena::{BlockArena, OutOfBlocks};
use crate::kernel::BLOCK_TOKENS;

/// Stands in a table where a block was freed.
const FREED: u32 = u32::MAX;

/// Layers that retain alike.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CacheGroup {
    /// Keys that a query sees, its own included; `None` sees all.
    window: Option<usize>,
    /// Number of layers.
    layers: usize,
}

/// How a model's layers are grouped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheLayout {
    groups: Vec<CacheGroup>,
    /// The group of each layer.
    layers: Vec<usize>,
}

impl CacheLayout {
    /// Groups layers by their window.
    pub(crate) fn new(windows: impl IntoIterator<Item = Option<usize>>) -> CacheLayout {
        let mut layout = CacheLayout { groups: Vec::new(), layers: Vec::new() };
        for window in windows {
            let group = match layout.groups.iter().position(|g| g.window == window) {
                Some(group) => group,
                None => {
                    layout.groups.push(CacheGroup { window, layers: 0 });
                    layout.groups.len() - 1
                }
            };
            layout.layers.push(group);
            layout.groups[group].layers += 1;
        }
        layout
    }

    /// The most blocks that a sequence of `tokens` holds at once when it is run in steps of at most `step` tokens.
    pub(crate) fn blocks_needed(&self, tokens: usize, step: usize) -> usize {
        self.groups
            .iter()
            .map(|group| {
                let kept = match group.window {
                    // A step's first query still sees a whole window; both ends may lie inside a block.
                    Some(window) => tokens.min(window.saturating_add(step).saturating_add(2 * BLOCK_TOKENS)),
                    None => tokens,
                };
                kept.div_ceil(BLOCK_TOKENS).saturating_mul(group.layers)
            })
            .fold(0, usize::saturating_add)
    }
}

/// The blocks of one sequence.
#[derive(Debug, Default)]
pub(crate) struct SequenceCache {
    /// `[layer][index / 32]`.
    tables: Vec<Vec<u32>>,
    /// Indices that have blocks.
    reserved: usize,
    /// Indices whose keys and values are written.
    len: usize,
}

impl SequenceCache {
    pub(crate) fn new(layout: &CacheLayout) -> SequenceCache {
        SequenceCache { tables: vec![Vec::new(); layout.layers.len()], reserved: 0, len: 0 }
    }

    /// Tokens whose keys and values are stored.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The table of a layer: the block of each 32 indices.
    pub(crate) fn table(&self, layer: usize) -> &[u32] {
        &self.tables[layer]
    }

    /// Sees to it that the next `tokens` indices have blocks; on failure nothing has changed.
    pub(crate) fn reserve(&mut self, arena: &mut BlockArena, tokens: usize) -> Result<(), OutOfBlocks> {
        let blocks = (self.len + tokens).div_ceil(BLOCK_TOKENS);
        let before: Vec<usize> = self.tables.iter().map(Vec::len).collect();
        for layer in 0..self.tables.len() {
            while self.tables[layer].len() < blocks {
                match arena.allocate() {
                    Ok(block) => self.tables[layer].push(block),
                    Err(error) => {
                        for (table, len) in self.tables.iter_mut().zip(before) {
                            table.drain(len..).for_each(|b| arena.release(b));
                        }
                        return Err(error);
                    }
                }
            }
        }
        self.reserved = self.reserved.max(blocks * BLOCK_TOKENS);
        Ok(())
    }

    /// Counts `tokens` more indices as written, and frees what no later query of a sliding layer can see.
    pub(crate) fn advance(&mut self, layout: &CacheLayout, arena: &mut BlockArena, tokens: usize) {
        self.len += tokens;
        debug_assert!(self.len <= self.reserved);
        for (table, &group) in self.tables.iter_mut().zip(&layout.layers) {
            let Some(window) = layout.groups[group].window else { continue };
            // The next query has index `len` and sees the last `window` indices, its own included.
            let first = (self.len + 1).saturating_sub(window) / BLOCK_TOKENS;
            for slot in table[..first.min(self.len / BLOCK_TOKENS)].iter_mut().rev() {
                if *slot == FREED {
                    break;
                }
                arena.release(std::mem::replace(slot, FREED));
            }
        }
    }

    /// A copy with blocks of its own.
    pub(crate) fn fork(&self, arena: &mut BlockArena) -> crate::Result<SequenceCache> {
        let mut copy = SequenceCache { tables: Vec::new(), reserved: self.reserved, len: self.len };
        for table in &self.tables {
            let mut twins = Vec::new();
            for &block in table {
                twins.push(match block {
                    FREED => FREED,
                    block => {
                        let twin = arena.allocate().map_err(|_| crate::ResourceError::OutOfMemory)?;
                        arena.blocks_mut().copy(block, twin);
                        twin
                    }
                });
            }
            copy.tables.push(twins);
        }
        Ok(copy)
    }

    /// Gives all blocks back.
    pub(crate) fn clear(&mut self, arena: &mut BlockArena) {
        for table in &mut self.tables {
            table.drain(..).filter(|&b| b != FREED).for_each(|b| arena.release(b));
        }
        (self.len, self.reserved) = (0, 0);
    }

    /// Every block that the sequence holds.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn held(&self) -> impl Iterator<Item = u32> + '_ {
        self.tables.iter().flatten().copied().filter(|&b| b != FREED)
    }
}
