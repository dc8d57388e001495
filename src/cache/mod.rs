//! The KV cache: blocks of 32 tokens from one arena, tables per sequence and cache group.
//!
//! A cache group is a set of layers that retain alike. Each group has its own table per sequence, so layers with a
//! sliding window free the blocks that no later query can see while the others keep theirs. Knows shapes and
//! indices; must not know models or requests.

mod arena;
mod table;

pub(crate) use arena::BlockArena;
pub(crate) use table::{CacheLayout, SequenceCache};

#[cfg(test)]
mod tests;
