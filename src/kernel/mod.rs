//! Arithmetic on slices: the only room with `unsafe`. Knows no tensors, models or files.
#![allow(unsafe_code)]
