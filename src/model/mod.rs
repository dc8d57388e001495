//! The model: one decoder, driven by a declarative specification that each architecture fills in.
//!
//! Knows weights, blocks and rows; must not know requests, text or sampling.

mod arch;
mod decoder;
mod layer;
mod rope;
mod spec;

pub(crate) use decoder::{Decoder, Span};
