//! Between text and token ids.

pub mod chat;
