//! Small types that every room shares. Knows no room.

use std::fmt;

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// Names one submitted request of one engine; never reused by that engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub(crate) u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}", self.0)
    }
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// An end token of the model, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the model's context is used up.
    Length,
    /// The host cancelled the request or dropped its stream.
    Cancelled,
    /// The request's deadline passed.
    Deadline,
    /// The request failed; the event carries the error.
    Error,
}

impl FinishReason {
    /// The word that reports use: `stop`, `length`, `cancelled`, `deadline` or `error`.
    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Deadline => "deadline",
            FinishReason::Error => "error",
        }
    }
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
