//! From tokens to what the host sees. Last room before the engine.

mod stop;

pub use stop::{StopMatcher, StopOutcome};
