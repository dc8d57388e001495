//! Tests of the kernels.

mod pool;
