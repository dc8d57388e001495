//! Arithmetic on slices: the only room with `unsafe`. Knows no tensors, models or files.
#![allow(unsafe_code)]

mod isa;
mod pool;

#[cfg(test)]
mod tests;

pub use isa::{Cpu, KernelLevel};
pub use pool::Pool;
