//! Keeps everything: the default policy.

use super::{Acts, CacheBounds, CachePolicy, CacheSession, Stateless, Visibility};

/// Every query sees every position before it, as far as the layer's own window reaches. An answer ends when prompt
/// and answer fill the model's context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Full;

impl CachePolicy for Full {
    fn name(&self) -> &str {
        "full"
    }

    fn visibility(&self) -> Visibility {
        Visibility::All
    }

    fn acts(&self) -> Acts {
        Acts::Never
    }

    fn bounds(&self) -> CacheBounds {
        CacheBounds::NONE
    }

    fn recomputable(&self) -> bool {
        true
    }

    fn open(&self) -> Box<dyn CacheSession> {
        Box::new(Stateless::new(|_, _| {}))
    }
}
