//! Which blocks hold which indices of a sequence, per cache group and layer, and which of them are live.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use super::arena::{BlockArena, OutOfBlocks};
use super::layout::{CacheLayer, CacheLayout, Visible};
use super::{CachePolicy, CacheSession};
use crate::kernel::{LiveBlock, BLOCK_TOKENS};
use crate::{Error, RequestError, ResourceError, Result};

/// Stands in a table where a block was freed.
pub(super) const FREED: u32 = u32::MAX;

/// The blocks of one sequence.
#[derive(Debug, Default)]
pub(crate) struct SequenceCache {
    /// `[layer][index / 32]`.
    pub(super) tables: Vec<Vec<u32>>,
    layers: Arc<[CacheLayer]>,
    /// In the layout's order.
    pub(super) groups: Vec<GroupState>,
    /// Indices that have blocks.
    reserved: usize,
    /// Indices whose keys and values are written.
    pub(super) len: usize,
    /// The shortest length that can be gone back to.
    pub(super) oldest: usize,
    /// The length at which the policy acted last.
    pub(super) acted: usize,
    /// The policy's state, from the first action on.
    pub(super) session: Option<Box<dyn CacheSession>>,
}

/// What one group has freed.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupState {
    /// Blocks from the front, sinks aside, that left the window and are freed.
    swept: usize,
    /// The blocks that hold live tokens, ascending, where the policy drops some. Lanes of tokens that are not written
    /// yet are set.
    pub(super) live: Option<Vec<LiveBlock>>,
}

impl SequenceCache {
    pub(crate) fn new(layout: &CacheLayout) -> SequenceCache {
        let acts = layout.facts.acts != super::Acts::Never;
        let group = GroupState { swept: 0, live: acts.then(Vec::new) };
        SequenceCache {
            tables: vec![Vec::new(); layout.layers.len()],
            layers: layout.layers.clone(),
            groups: vec![group; layout.groups.len()],
            reserved: 0,
            len: 0,
            oldest: 0,
            acted: 0,
            session: None,
        }
    }

    /// Tokens whose keys and values are stored or were dropped: the next token's index and position.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The table of a layer: the block of each 32 indices.
    pub(crate) fn table(&self, layer: usize) -> &[u32] {
        &self.tables[layer]
    }

    /// What a query of a layer sees by position.
    pub(crate) fn visible(&self, layer: usize) -> Visible {
        self.layers[layer].visible
    }

    /// The position as which queries further out score their sinks, where the policy has a window with sinks.
    pub(crate) fn sink_position(&self) -> Option<usize> {
        // One policy has one rule, whatever group it applies to.
        let rule = self.layers.iter().map(|l| l.visible).find(|v| v.sinks > 0)?;
        rule.window.map(|window| window + rule.sinks - 1)
    }

    /// The live blocks of a layer; `None` where the policy drops nothing.
    pub(crate) fn live(&self, layer: usize) -> Option<&[LiveBlock]> {
        self.groups[self.layers[layer].group].live.as_deref()
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
        let first = self.reserved / BLOCK_TOKENS;
        for live in self.groups.iter_mut().filter_map(|g| g.live.as_mut()) {
            live.extend((first..blocks).map(|block| LiveBlock { block: block as u32, lanes: u32::MAX }));
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

    /// Takes the indices written so far as final: frees the blocks that no later query can see.
    pub(crate) fn commit(&mut self, layout: &CacheLayout, arena: &mut BlockArena) {
        for (group, state) in layout.groups.iter().zip(&mut self.groups) {
            let Visible { window: Some(window), sinks } = group.visible else { continue };
            // The next query has index `len` and sees the last `window` indices, its own included.
            let first = ((self.len + 1).saturating_sub(window) / BLOCK_TOKENS).min(self.len / BLOCK_TOKENS);
            let gone = state.swept.max(sinks.div_ceil(BLOCK_TOKENS))..first;
            if gone.is_empty() {
                continue;
            }
            for &layer in &group.layers {
                free(&mut self.tables[layer][gone.clone()], arena);
            }
            if let Some(live) = &mut state.live {
                live.retain(|b| !gone.contains(&(b.block as usize)));
            }
            state.swept = first;
            // The first query that sees none of the freed indices.
            self.oldest = self.oldest.max(first * BLOCK_TOKENS + window - 1);
        }
    }

    /// Whether [`truncate`](Self::truncate) to `len` indices is possible: exactly if every index that a query at `len`
    /// sees is still stored, and the policy has not acted later. Always so for the lengths since the last
    /// [`commit`](Self::commit), its own included.
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
            let blocks = blocks.min(table.len());
            free(&mut table[blocks..], arena);
            table.truncate(blocks);
        }
        for live in self.groups.iter_mut().filter_map(|g| g.live.as_mut()) {
            live.truncate(live.partition_point(|b| (b.block as usize) < blocks));
        }
        (self.len, self.reserved) = (len, blocks * BLOCK_TOKENS);
        true
    }

    /// A second sequence with the same content and the same state of the policy; every block is copied.
    ///
    /// # Errors
    /// Too few free blocks, a policy whose state cannot be copied. Nothing has changed then.
    // Sharing full blocks by counting references has its place here: only the last block would need a copy.
    pub(crate) fn fork(&self, layout: &CacheLayout, arena: &mut BlockArena) -> Result<SequenceCache> {
        let session = match &self.session {
            None => None,
            Some(session) => Some(guarded(&*layout.policy, || fork(&**session, &*layout.policy))?),
        };
        let mut copy = SequenceCache {
            tables: Vec::new(),
            layers: self.layers.clone(),
            groups: self.groups.clone(),
            session,
            ..*self
        };
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

    /// Gives all blocks back and forgets the policy's state.
    pub(crate) fn clear(&mut self, arena: &mut BlockArena) {
        for table in &mut self.tables {
            free(table, arena);
            table.clear();
        }
        for group in &mut self.groups {
            group.swept = 0;
            group.live.iter_mut().for_each(Vec::clear);
        }
        (self.len, self.reserved, self.oldest, self.acted, self.session) = (0, 0, 0, 0, None);
    }

    /// Every block that the sequence holds.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn held(&self) -> impl Iterator<Item = u32> + '_ {
        self.tables.iter().flatten().copied().filter(|&b| b != FREED)
    }

    /// Whether tables, masks and lengths agree, and all that the next query sees is stored; says what is wrong if not.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check_integrity(&self, layout: &CacheLayout) -> std::result::Result<(), String> {
        let blocks = self.reserved / BLOCK_TOKENS;
        if self.len > self.reserved || self.oldest > self.len || self.acted > self.len {
            return Err(format!("lengths {} {} {} {}", self.reserved, self.len, self.oldest, self.acted));
        }
        for (group, state) in layout.groups.iter().zip(&self.groups) {
            let Visible { window, sinks } = group.visible;
            let start = window.map_or(0, |w| (self.len + 1).saturating_sub(w));
            let mut expected = vec![false; blocks];
            match &state.live {
                None => {
                    for (block, held) in expected.iter_mut().enumerate() {
                        *held = block < sinks.div_ceil(BLOCK_TOKENS) || block >= state.swept;
                        let seen = block * BLOCK_TOKENS < sinks || (block + 1) * BLOCK_TOKENS > start;
                        if seen && !*held {
                            return Err(format!("block {block} of layers {:?} is seen, but freed", group.layers));
                        }
                    }
                }
                Some(live) => {
                    if !live.windows(2).all(|pair| pair[0].block < pair[1].block) {
                        return Err("live blocks are not ascending".to_string());
                    }
                    for b in live {
                        match expected.get_mut(b.block as usize) {
                            Some(held) if b.lanes != 0 => *held = true,
                            _ => return Err(format!("live block {b:?} of {blocks}")),
                        }
                        // Policies drop written tokens only.
                        let written = self.len.saturating_sub(b.block as usize * BLOCK_TOKENS).min(BLOCK_TOKENS);
                        if (written..BLOCK_TOKENS).any(|t| b.lanes >> t & 1 == 0) {
                            return Err(format!("live block {b:?} lacks tokens behind {}", self.len));
                        }
                    }
                }
            }
            for &layer in &group.layers {
                if !self.tables[layer].iter().map(|&b| b != FREED).eq(expected.iter().copied()) {
                    return Err(format!("table of layer {layer}: {:?}, expected {expected:?}", self.tables[layer]));
                }
            }
        }
        Ok(())
    }
}

fn free(blocks: &mut [u32], arena: &mut BlockArena) {
    for slot in blocks.iter_mut().filter(|slot| **slot != FREED) {
        arena.release(std::mem::replace(slot, FREED));
    }
}

/// A copy of a session.
pub(super) fn fork(session: &dyn CacheSession, policy: &dyn CachePolicy) -> Result<Box<dyn CacheSession>> {
    let part = "cache policy";
    session.fork().ok_or_else(|| RequestError::CannotFork { part, name: policy.name().to_string() }.into())
}

/// Runs a policy's code; a panic becomes an error that names the policy.
pub(crate) fn guarded<T>(policy: &dyn CachePolicy, f: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic may leave broken is the session's own state, and its request ends with the error.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let message = match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(other) => other.downcast_ref::<&str>().map_or("no message".to_string(), |s| s.to_string()),
        };
        Err(Error::Extension { room: "cache", name: policy.name().to_string(), message })
    })
}
