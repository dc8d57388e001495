//! A sliding window over any model, with attention sinks.

use super::{Acts, CacheBounds, CachePolicy, CacheSession, Stateless, Visibility};

/// Every query sees the first `sinks` positions and the last `size` (StreamingLLM, arXiv 2309.17453): memory stays
/// constant however long a sequence grows, also beyond the model's context.
///
/// Models that were trained with full attention put much of their attention on the first few tokens, whatever those
/// are; without them (`sinks` 0) most such models produce nonsense once the beginning leaves the window. Four are
/// enough. `size + sinks` may not exceed the model's context. While nothing has left the window, results are bitwise
/// those of [`Full`](super::Full).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The last positions that a query sees, its own included.
    pub size: usize,
    /// The first positions, which every query sees.
    pub sinks: usize,
}

impl CachePolicy for Window {
    fn name(&self) -> &str {
        "window"
    }

    fn visibility(&self) -> Visibility {
        Visibility::Window { size: self.size, sinks: self.sinks }
    }

    fn acts(&self) -> Acts {
        Acts::Never
    }

    fn bounds(&self) -> CacheBounds {
        CacheBounds::always(self.size.saturating_add(self.sinks), 2)
    }

    fn recomputable(&self) -> bool {
        true
    }

    fn open(&self) -> Box<dyn CacheSession> {
        Box::new(Stateless::new(|_, _| {}))
    }
}
