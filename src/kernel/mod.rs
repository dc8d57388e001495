//! Arithmetic on slices: the only room with `unsafe`. Knows no tensors, models or files.
#![allow(unsafe_code)]

mod activations;
mod float;
mod format;
mod int8;
mod isa;
mod lanes;
mod matmul;
pub mod measure;
mod memory;
mod packed;
mod pool;
mod scalar;
mod unpack;

#[cfg(test)]
mod tests;

pub use activations::{Activations, Precision};
pub use isa::{Cpu, KernelLevel};
pub use matmul::matmul;
pub use packed::PackedMatrix;
pub use pool::Pool;
pub use scalar::dequantize;
