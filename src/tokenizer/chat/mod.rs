//! Chat.

mod literals;

pub(crate) use literals::Literals;
