//! The KV cache: blocks of 32 tokens from one arena, tables per sequence and cache group, and the policy that says
//! which positions stay.
//!
//! A cache group is a set of layers that retain alike. Each group has its own table per sequence, so layers with a
//! sliding window free the blocks that no later query can see while the others keep theirs. Knows shapes and
//! indices; must not know models or requests.

mod act;
mod arena;
mod full;
mod layout;
mod policy;
mod stateless;
mod table;
mod view;
mod window;

use std::fmt::Debug;

#[cfg(any(test, feature = "testing"))]
pub(crate) use act::count;
pub(crate) use arena::BlockArena;
pub use full::Full;
pub(crate) use layout::CacheLayout;
#[cfg(any(test, feature = "testing"))]
pub(crate) use policy::Facts;
pub use policy::{Acts, CacheBounds, Kept, Visibility};
pub use stateless::Stateless;
#[cfg(any(test, feature = "testing"))]
pub(crate) use table::guarded;
pub(crate) use table::SequenceCache;
pub use view::CacheView;
pub use window::Window;

use crate::Result;

/// Which positions of a sequence the cache keeps: immutable and shared, it opens one session per sequence.
///
/// # Contract
/// A policy restricts what queries see by position ([`visibility`](Self::visibility)) and, at positions that it
/// declares ([`acts`](Self::acts)), drops positions for good ([`CacheSession::evict`]). It never touches tensors.
/// Its answers about itself never change. Choices are a function of what the view shows and of earlier choices, so
/// that a sequence's result does not depend on the batch, on how its prompt was cut or on the number of threads.
/// Dropped positions get no attention from then on; the others keep their original positions.
///
/// After it has acted, no more positions may be kept than [`bounds`](Self::bounds) states: requests are admitted by
/// these bounds, so that memory suffices. A policy that bounds the cache all the time (a window, or bounds for both
/// times and [`Acts::Every`]) lets a sequence outgrow the model's context.
///
/// # When it is called
/// The answers about itself are asked once, by [`build`](crate::EngineBuilder::build). `open` is called at a sequence's
/// first action, `evict` at every action, once per cache group in ascending order, when the layers of all earlier
/// positions are stored. Positions are final then: drafts are verified before.
///
/// # Provided implementations
/// [`Full`] (the default) and [`Window`]; [`Stateless`], the session of policies that need no state.
///
/// # Implementing your own
/// A policy that keeps the newest 64 positions by dropping older ones every 32 positions, in contrast to [`Window`]
/// for all layers alike and without a rule per query:
///
/// ```
/// use candlewick::cache::{Acts, CacheBounds, CachePolicy, CacheSession, Stateless, Visibility};
///
/// #[derive(Debug)]
/// struct Newest;
///
/// impl CachePolicy for Newest {
///     fn name(&self) -> &str {
///         "newest"
///     }
///     fn visibility(&self) -> Visibility {
///         Visibility::All
///     }
///     fn acts(&self) -> Acts {
///         Acts::Every(32)
///     }
///     fn bounds(&self) -> CacheBounds {
///         CacheBounds::always(64, 1)
///     }
///     fn recomputable(&self) -> bool {
///         true
///     }
///     fn open(&self) -> Box<dyn CacheSession> {
///         Box::new(Stateless::new(|view, dropped| {
///             dropped.extend(view.live().filter(|position| position + 64 < view.position()));
///         }))
///     }
/// }
///
/// # #[cfg(feature = "testing")]
/// candlewick::testing::check_cache_policy(&Newest).unwrap();
/// ```
///
/// # Errors
/// Answers that contradict each other or do not fit the model are a [`BuildError`](crate::BuildError) that names the
/// policy. A session that fails, panics, drops what it may not or keeps too much ends its request only.
pub trait CachePolicy: Debug + Send + Sync + 'static {
    /// Name for error messages.
    fn name(&self) -> &str;

    /// What a query sees by position alone. Positions out of sight are freed without being asked for.
    fn visibility(&self) -> Visibility;

    /// When it drops positions.
    fn acts(&self) -> Acts;

    /// What it keeps at most of one cache group.
    fn bounds(&self) -> CacheBounds;

    /// Whether a sequence whose tokens are run anew, in one go, comes to the same state and the same choices. If not,
    /// a sequence that has to give way must keep its blocks elsewhere.
    fn recomputable(&self) -> bool;

    /// Opens the state of one sequence.
    fn open(&self) -> Box<dyn CacheSession>;
}

/// A policy's private state of one sequence.
pub trait CacheSession: Debug + Send {
    /// Appends to `dropped` the positions of this group that no later query shall see, in any order. They must be live
    /// ([`CacheView::is_live`]), named once, and not inside the window that the policy promises.
    ///
    /// # Errors
    /// Whatever keeps the policy from choosing; ends the request only.
    fn evict(&mut self, view: &CacheView<'_>, dropped: &mut Vec<usize>) -> Result<()>;

    /// Whether [`fork`](Self::fork) gives a copy; a policy that cannot excludes several answers per request.
    fn can_fork(&self) -> bool;

    /// An independent copy of the state; `None` exactly if `can_fork` is false.
    fn fork(&self) -> Option<Box<dyn CacheSession>>;

    /// Whether [`save`](Self::save) gives the state.
    fn can_save(&self) -> bool;

    /// The state as bytes; `None` exactly if `can_save` is false.
    fn save(&self) -> Option<Vec<u8>>;

    /// Takes on a state that `save` of this policy's sessions gave.
    ///
    /// # Errors
    /// Bytes that are no such state.
    fn restore(&mut self, bytes: &[u8]) -> Result<()>;
}

#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod tests;
