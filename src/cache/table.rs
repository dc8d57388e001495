//! Which blocks hold which indices of a sequence, per cache group and layer.

use super::arena::{BlockArena, OutOfBlocks};
use crate::kernel::BLOCK_TOKENS;
use crate::{ResourceError, Result};

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
    /// The shortest length that can be gone back to.
    oldest: usize,
}

impl SequenceCache {
    pub(crate) fn new(layout: &CacheLayout) -> SequenceCache {
        SequenceCache { tables: vec![Vec::new(); layout.layers.len()], reserved: 0, len: 0, oldest: 0 }
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

    /// Counts `tokens` more indices as written and final; what no later query can see is freed.
    pub(crate) fn advance(&mut self, layout: &CacheLayout, arena: &mut BlockArena, tokens: usize) {
        self.extend(tokens);
        self.commit(layout, arena);
    }

    /// Counts `tokens` more indices as written. They may still be taken back: nothing is freed until
    /// [`commit`](Self::commit).
    pub(crate) fn extend(&mut self, tokens: usize) {
        self.len += tokens;
        debug_assert!(self.len <= self.reserved);
    }

    /// Takes the indices written so far as final: frees the blocks that no later query of a sliding layer can see.
    pub(crate) fn commit(&mut self, layout: &CacheLayout, arena: &mut BlockArena) {
        for (table, &group) in self.tables.iter_mut().zip(&layout.layers) {
            let Some(window) = layout.groups[group].window else { continue };
            // The next query has index `len` and sees the last `window` indices, its own included.
            let first = ((self.len + 1).saturating_sub(window) / BLOCK_TOKENS).min(self.len / BLOCK_TOKENS);
            for slot in table[..first].iter_mut().rev() {
                if *slot == FREED {
                    break;
                }
                arena.release(std::mem::replace(slot, FREED));
            }
            if first > 0 {
                // The first query that sees none of the freed indices.
                self.oldest = self.oldest.max(first * BLOCK_TOKENS + window - 1);
            }
        }
    }

    /// Whether [`truncate`](Self::truncate) to `len` indices is possible: exactly if every index that a query at `len`
    /// sees is still stored. Always so for the lengths since the last [`commit`](Self::commit), its own included.
    pub(crate) fn can_truncate(&self, len: usize) -> bool {
        (self.oldest..=self.len).contains(&len)
    }

    /// Goes back to the first `len` indices, as if the others had never been written; their blocks are free again.
    /// `false`, and nothing has changed, where [`can_truncate`](Self::can_truncate) says no.
    #[must_use]
    pub(crate) fn truncate(&mut self, arena: &mut BlockArena, len: usize) -> bool {
        if !self.can_truncate(len) {
            return false;
        }
        let blocks = len.div_ceil(BLOCK_TOKENS);
        for table in &mut self.tables {
            table.drain(blocks.min(table.len())..).filter(|&b| b != FREED).for_each(|b| arena.release(b));
        }
        (self.len, self.reserved) = (len, blocks * BLOCK_TOKENS);
        true
    }

    /// A second sequence with the same content; every block is copied.
    ///
    /// # Errors
    /// Too few free blocks; nothing has changed then.
    // Sharing full blocks by counting references has its place here: only the last block would need a copy.
    pub(crate) fn fork(&self, arena: &mut BlockArena) -> Result<SequenceCache> {
        let mut copy =
            SequenceCache { tables: Vec::new(), reserved: self.reserved, len: self.len, oldest: self.oldest };
        for table in &self.tables {
            let mut twins = Vec::with_capacity(table.len());
            let copied = table.iter().try_for_each(|&block| {
                twins.push(if block == FREED { FREED } else { arena.duplicate(block)? });
                Ok::<_, OutOfBlocks>(())
            });
            copy.tables.push(twins);
            if copied.is_err() {
                copy.clear(arena);
                return Err(ResourceError::OutOfMemory.into());
            }
        }
        Ok(copy)
    }

    /// Gives all blocks back.
    pub(crate) fn clear(&mut self, arena: &mut BlockArena) {
        for table in &mut self.tables {
            table.drain(..).filter(|&b| b != FREED).for_each(|b| arena.release(b));
        }
        (self.len, self.reserved, self.oldest) = (0, 0, 0);
    }

    /// Every block that the sequence holds.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn held(&self) -> impl Iterator<Item = u32> + '_ {
        self.tables.iter().flatten().copied().filter(|&b| b != FREED)
    }
}
