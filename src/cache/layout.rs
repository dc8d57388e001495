//! How a model's layers are grouped under a policy, and how many blocks a sequence may come to hold.

use std::fmt;
use std::sync::Arc;

use super::policy::{Facts, Kept, Visibility};
use super::{CacheBounds, CachePolicy};
use crate::kernel::BLOCK_TOKENS;
use crate::BuildError;

/// What a query of a layer sees by position: the last keys, its own included (`None`: all), and the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visible {
    pub(crate) window: Option<usize>,
    pub(crate) sinks: usize,
}

/// A layer's place.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheLayer {
    pub(super) group: usize,
    pub(super) visible: Visible,
}

/// Layers that retain alike.
#[derive(Clone, Debug)]
pub(super) struct CacheGroup {
    pub(super) visible: Visible,
    /// The layers' numbers, ascending.
    pub(super) layers: Vec<usize>,
}

/// How a model's layers are grouped, and the policy that they are kept by.
#[derive(Clone)]
pub(crate) struct CacheLayout {
    pub(super) groups: Vec<CacheGroup>,
    pub(super) layers: Arc<[CacheLayer]>,
    pub(super) policy: Arc<dyn CachePolicy>,
    pub(super) facts: Facts,
}

impl fmt::Debug for CacheLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheLayout").field("groups", &self.groups).field("policy", &self.policy).finish()
    }
}

impl CacheLayout {
    /// Groups layers by their own windows; everything that these show is kept.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn new(windows: impl IntoIterator<Item = Option<usize>>) -> CacheLayout {
        let facts = Facts { visibility: Visibility::All, acts: super::Acts::Never, bounds: CacheBounds::NONE };
        CacheLayout::grouped(windows, Arc::new(super::Full), facts)
    }

    /// Groups layers by what the policy lets them see.
    ///
    /// # Errors
    /// A policy whose answers contradict each other, or that keeps more than the model's context of `context` tokens.
    pub(crate) fn with_policy(
        windows: impl IntoIterator<Item = Option<usize>>,
        policy: Arc<dyn CachePolicy>,
        context: usize,
    ) -> Result<CacheLayout, BuildError> {
        let facts = Facts::of(&*policy, context)?;
        Ok(CacheLayout::grouped(windows, policy, facts))
    }

    fn grouped(
        windows: impl IntoIterator<Item = Option<usize>>,
        policy: Arc<dyn CachePolicy>,
        facts: Facts,
    ) -> CacheLayout {
        let mut groups: Vec<CacheGroup> = Vec::new();
        let place = |(layer, own): (usize, Option<usize>)| {
            let visible = visible(own, facts.visibility);
            let group = groups.iter().position(|g| g.visible == visible).unwrap_or(groups.len());
            if group == groups.len() {
                groups.push(CacheGroup { visible, layers: Vec::new() });
            }
            groups[group].layers.push(layer);
            CacheLayer { group, visible }
        };
        let layers = windows.into_iter().enumerate().map(place).collect();
        CacheLayout { groups, layers, policy, facts }
    }

    /// Whether what a sequence holds stops growing by the policy, so that it may outgrow the model's context.
    pub(crate) fn is_bounded(&self) -> bool {
        self.facts.is_bounded()
    }

    /// How many of the next `rows` tokens of a sequence of `len` may run before the policy acts.
    pub(crate) fn runnable(&self, len: usize, rows: usize, prompt_len: usize) -> usize {
        let until = self.facts.next_action(len, prompt_len).map_or(usize::MAX, |next| next - len);
        rows.min(until)
    }

    /// The most blocks that a sequence of `tokens` holds at once when it is run in steps of at most `step` tokens.
    pub(crate) fn blocks_needed(&self, tokens: usize, step: usize) -> usize {
        let all = tokens.div_ceil(BLOCK_TOKENS);
        let needed = self.groups.iter().map(|group| {
            // A step's first query still sees a whole window.
            let Visible { window, sinks } = group.visible;
            let seen = window.map_or(all, |window| {
                let positions = window.saturating_add(sinks).saturating_add(step);
                blocks(Kept { positions, runs: 1 + usize::from(sinks > 0) })
            });
            all.min(seen).min(self.blocks_between_actions().unwrap_or(all)).saturating_mul(group.layers.len())
        });
        needed.fold(0, usize::saturating_add)
    }

    /// Blocks of a layer that hold `tokens` positions and no bound at all.
    pub(crate) fn blocks_of(&self, tokens: usize) -> usize {
        tokens.div_ceil(BLOCK_TOKENS).saturating_mul(self.layers.len())
    }

    /// Blocks of a layer right before the policy acts, if it acts again and again and has bounds.
    fn blocks_between_actions(&self) -> Option<usize> {
        let super::Acts::Every(interval) = self.facts.acts else { return None };
        let CacheBounds { prefill: Some(prefill), decode: Some(decode) } = self.facts.bounds else { return None };
        let grown = |kept: Kept| {
            blocks(Kept { positions: kept.positions.saturating_add(interval), runs: kept.runs.saturating_add(1) })
        };
        Some(grown(prefill).max(grown(decode)))
    }
}

/// What a layer sees that has a window of its own, or none, under a policy.
fn visible(own: Option<usize>, rule: Visibility) -> Visible {
    match (own, rule) {
        // What the layer keeps anyway is no more than the policy would keep, and it was trained to see no beginning.
        (Some(own), Visibility::Window { size, sinks }) if own <= size.saturating_add(sinks) => {
            Visible { window: Some(own), sinks: 0 }
        }
        (_, Visibility::Window { size, sinks }) => Visible { window: Some(size), sinks },
        (own, Visibility::All) => Visible { window: own, sinks: 0 },
    }
}

/// The most blocks that hold so many positions: both ends of each run may lie inside a block.
fn blocks(kept: Kept) -> usize {
    let slack = kept.runs.saturating_mul(2 * BLOCK_TOKENS - 2);
    (kept.positions.saturating_add(slack) / BLOCK_TOKENS).min(kept.positions)
}
