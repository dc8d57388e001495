//! Sessions of policies whose choice depends on nothing but the view.

use std::fmt;

use super::{CacheSession, CacheView};
use crate::Result;

/// A session without state: a function that appends to its second argument what is to be dropped.
#[derive(Clone)]
pub struct Stateless<F>(F);

impl<F> Stateless<F>
where
    F: Fn(&CacheView<'_>, &mut Vec<usize>) + Clone + Send + 'static,
{
    /// A session that chooses by `choose`.
    pub fn new(choose: F) -> Stateless<F> {
        Stateless(choose)
    }
}

impl<F> fmt::Debug for Stateless<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stateless").finish_non_exhaustive()
    }
}

impl<F> CacheSession for Stateless<F>
where
    F: Fn(&CacheView<'_>, &mut Vec<usize>) + Clone + Send + 'static,
{
    fn evict(&mut self, view: &CacheView<'_>, dropped: &mut Vec<usize>) -> Result<()> {
        (self.0)(view, dropped);
        Ok(())
    }

    fn can_fork(&self) -> bool {
        true
    }

    fn fork(&self) -> Option<Box<dyn CacheSession>> {
        Some(Box::new(self.clone()))
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
