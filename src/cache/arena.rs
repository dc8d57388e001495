//! The arena of blocks: who may write which block, and how many are left.

use crate::kernel::{KvBlocks, KvFormat, KvShape};

/// Bytes that the arena asks the system for at a time.
const SEGMENT_BYTES: usize = 4 << 20;

/// No more block may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfBlocks;

/// A bounded number of blocks. Memory is taken when blocks are first used, and kept.
#[derive(Debug)]
pub(crate) struct BlockArena {
    blocks: KvBlocks,
    capacity: usize,
    free: Vec<u32>,
    /// Whether each block that has memory is in a table.
    used: Vec<bool>,
}

impl BlockArena {
    pub(crate) fn new(format: KvFormat, shape: KvShape, capacity: usize) -> BlockArena {
        let bytes = format.block_bytes(shape).max(1);
        let blocks = KvBlocks::new(format, shape, (SEGMENT_BYTES / bytes).clamp(1, capacity.max(1)));
        BlockArena { blocks, capacity: capacity.min(u32::MAX as usize - 1), free: Vec::new(), used: Vec::new() }
    }

    /// Blocks in all.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Blocks in tables.
    pub(crate) fn used(&self) -> usize {
        self.used.len() - self.free.len()
    }

    pub(crate) fn blocks(&self) -> &KvBlocks {
        &self.blocks
    }

    pub(crate) fn blocks_mut(&mut self) -> &mut KvBlocks {
        &mut self.blocks
    }

    /// Takes a block. Its content is whatever it held before.
    pub(crate) fn allocate(&mut self) -> Result<u32, OutOfBlocks> {
        if self.used() >= self.capacity {
            return Err(OutOfBlocks);
        }
        if self.free.is_empty() {
            if !self.blocks.grow() {
                return Err(OutOfBlocks);
            }
            let first = self.used.len();
            let last = self.blocks.len().min(self.capacity);
            self.used.resize(last, false);
            self.free.extend((first as u32..last as u32).rev());
        }
        let block = self.free.pop().ok_or(OutOfBlocks)?;
        self.used[block as usize] = true;
        Ok(block)
    }

    /// Takes a block with the content of another.
    pub(crate) fn duplicate(&mut self, block: u32) -> Result<u32, OutOfBlocks> {
        let twin = self.allocate()?;
        self.blocks.copy(block, twin);
        Ok(twin)
    }

    /// Gives a block back.
    pub(crate) fn release(&mut self, block: u32) {
        debug_assert!(self.used[block as usize], "block {block} released twice");
        if std::mem::take(&mut self.used[block as usize]) {
            self.free.push(block);
        }
    }

    /// Whether the tables together hold exactly the used blocks, each once; says what is wrong if not.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn check_integrity(&self, tables: impl Iterator<Item = u32>) -> Result<(), String> {
        let mut seen = vec![false; self.used.len()];
        for block in tables {
            match seen.get_mut(block as usize) {
                None => return Err(format!("block {block} has no memory")),
                Some(true) => return Err(format!("block {block} is in two tables")),
                Some(slot) => *slot = true,
            }
        }
        for (block, (&used, &seen)) in self.used.iter().zip(&seen).enumerate() {
            if used != seen {
                return Err(format!("block {block}: used {used}, in a table {seen}"));
            }
        }
        let mut free = self.free.clone();
        free.sort_unstable();
        free.dedup();
        if free.len() != self.free.len() || self.free.iter().any(|&b| self.used[b as usize]) {
            return Err("the free list holds a block twice or a used one".to_string());
        }
        if self.used.iter().filter(|&&u| !u).count() != self.free.len() {
            return Err("a block is neither used nor free".to_string());
        }
        Ok(())
    }
}
