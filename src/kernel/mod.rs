//! Arithmetic on slices: the only room with `unsafe`. Knows no tensors, models or files.
#![allow(unsafe_code)]

mod activations;
mod attention;
mod chunks;
mod cores;
mod dense;
mod float;
mod format;
mod int8;
mod interleave;
mod isa;
mod kv;
mod lanes;
mod matmul;
pub mod measure;
mod memory;
mod ops;
mod packed;
#[cfg(unix)]
mod pages;
mod pool;
mod prepare;
mod scalar;
mod stored;
mod unpack;
mod vector;

#[cfg(test)]
mod tests;

pub use activations::{Activations, Input, Precision};
pub use attention::{attention, attention_mass, AttentionShape, AttentionSpan, LiveBlock};
pub use cores::usable_cores;
pub use dense::matmul_f32;
pub use isa::{Cpu, KernelLevel};
pub use kv::{KvBlocks, KvFormat, KvShape, BLOCK_TOKENS};
pub use matmul::{expect, matmul, matmul_add};
pub use ops::{add, add_bias, add_rms_norm, rms_norm, rms_norm_in_place, rope, scale, softcap, Activation};
pub use packed::PackedMatrix;
pub use pool::Pool;
pub use scalar::dequantize;
