//! From tokens to what the host sees. Last room before the engine.

mod channel;
mod stop;

pub(crate) use channel::{channel, Receiver, Sender};
pub use stop::{StopMatcher, StopOutcome};
