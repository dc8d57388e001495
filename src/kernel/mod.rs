//! Arithmetic on slices: the only room with `unsafe`. Knows no tensors, models or files.
#![allow(unsafe_code)]

mod attention;
mod chunks;
mod isa;
mod kv;
mod ops;
mod pool;
mod vector;

#[cfg(test)]
mod tests;

pub use attention::{attention, AttentionShape, AttentionSpan};
pub use isa::{Cpu, KernelLevel};
pub use kv::{KvBlocks, KvFormat, KvShape, BLOCK_TOKENS};
pub use ops::{add, add_bias, gate, rms_norm, rms_norm_in_place, rope, scale, softcap, Activation, RopePairing};
pub use pool::Pool;
