//! Keeps everything: the default policy.

use super::{Acts, CacheBounds, CachePolicy, CacheSession, CacheView, Visibility};
use crate::Result;

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
        Box::new(KeepAll)
    }
}

/// A session without state that drops nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeepAll;

impl CacheSession for KeepAll {
    fn evict(&mut self, _: &CacheView<'_>, _: &mut Vec<usize>) -> Result<()> {
        Ok(())
    }

    fn can_fork(&self) -> bool {
        true
    }

    fn fork(&self) -> Option<Box<dyn CacheSession>> {
        Some(Box::new(KeepAll))
    }

    fn can_save(&self) -> bool {
        true
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(Vec::new())
    }

    fn restore(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
}
