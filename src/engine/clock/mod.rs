//! Time, injected: it feeds deadlines and figures, and never a token.

use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime};

/// Where an engine gets the time from.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Time since some fixed moment; never goes back.
    fn elapsed(&self) -> Duration;

    /// The date, for chat templates that print it.
    fn date(&self) -> SystemTime;
}

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn date(&self) -> SystemTime {
        SystemTime::now()
    }
}
