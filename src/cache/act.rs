//! A policy's turn: ask it what to drop, check its choice, clear lanes, free blocks that hold nothing any more.

use super::arena::BlockArena;
use super::layout::{CacheGroup, CacheLayout};
use super::table::{fork, guarded, SequenceCache, FREED};
use super::view::CacheView;
use super::{CacheSession, Kept, Visibility};
use crate::kernel::{LiveBlock, BLOCK_TOKENS};
use crate::{RequestError, Result};

impl CacheLayout {
    pub(crate) fn policy_name(&self) -> &str {
        self.policy.name()
    }

    /// Whether sequences under this policy can be forked; asks a session that is opened for the purpose.
    ///
    /// # Errors
    /// A policy that panics, or that says it can and does not.
    pub(crate) fn can_fork(&self) -> Result<bool> {
        if self.facts.acts == super::Acts::Never {
            return Ok(true);
        }
        guarded(&*self.policy, || {
            let session = self.policy.open();
            Ok(session.can_fork() && fork(&*session, &*self.policy).is_ok())
        })
    }
}

impl SequenceCache {
    /// Lets the policy drop positions, if it acts at the present length; without effect otherwise, and when called
    /// again. All written indices must be final ([`commit`](Self::commit)).
    ///
    /// # Errors
    /// A policy that fails, panics, drops what it may not or keeps more than it stated. The sequence must end then:
    /// some groups may have been served.
    pub(crate) fn act(&mut self, layout: &CacheLayout, arena: &mut BlockArena, prompt_len: usize) -> Result<()> {
        if self.acted == self.len || !layout.facts.acts_at(self.len, prompt_len) {
            return Ok(());
        }
        // What the policy drops is missing for every query before this place.
        (self.acted, self.oldest) = (self.len, self.len);
        let mut session = match self.session.take() {
            Some(session) => session,
            None => guarded(&*layout.policy, || Ok(layout.policy.open()))?,
        };
        for (index, group) in layout.groups.iter().enumerate() {
            let kept = self.choose(layout, &mut *session, index, group, prompt_len)?;
            let (gone, kept): (Vec<LiveBlock>, Vec<LiveBlock>) = kept.into_iter().partition(|b| b.lanes == 0);
            for block in &gone {
                for &layer in &group.layers {
                    let slot = &mut self.tables[layer][block.block as usize];
                    if *slot != FREED {
                        arena.release(std::mem::replace(slot, FREED));
                    }
                }
            }
            self.groups[index].live = Some(kept);
        }
        self.session = Some(session);
        Ok(())
    }

    /// The group's blocks with the lanes that the policy keeps; blocks may be left without lanes.
    fn choose(
        &self,
        layout: &CacheLayout,
        session: &mut dyn CacheSession,
        index: usize,
        group: &CacheGroup,
        prompt_len: usize,
    ) -> Result<Vec<LiveBlock>> {
        let policy = &*layout.policy;
        let invalid = |reason: String| -> crate::Error {
            RequestError::InvalidEviction { policy: policy.name().to_string(), position: self.len, reason }.into()
        };
        let mut kept = self.groups[index].live.clone().unwrap_or_default();
        let live = kept.clone();
        let before = self.view(index, group, prompt_len, &live);
        let mut evicted = Vec::new();
        guarded(policy, || session.evict(&before, &mut evicted))?;
        for position in evicted {
            if !before.is_live(position) {
                return Err(invalid(format!("position {position} is not live")));
            }
            let promised = matches!(layout.facts.visibility, Visibility::Window { .. })
                && (position < before.sinks || before.window_range().contains(&position));
            if promised {
                return Err(invalid(format!("position {position} is inside the window that the policy promises")));
            }
            let (block, lane) = (position / BLOCK_TOKENS, 1 << (position % BLOCK_TOKENS));
            // A live position has a block.
            let Ok(at) = kept.binary_search_by_key(&block, |b| b.block as usize) else { continue };
            if kept[at].lanes & lane == 0 {
                return Err(invalid(format!("position {position} is dropped twice")));
            }
            kept[at].lanes &= !lane;
        }
        if let Some(bound) = layout.facts.bound(self.len, prompt_len) {
            let found = count(self.view(index, group, prompt_len, &kept).live());
            if found.positions > bound.positions || found.runs > bound.runs {
                let Kept { positions, runs } = bound;
                return Err(invalid(format!(
                    "it keeps {} positions in {} stretches, but states at most {positions} in {runs}",
                    found.positions, found.runs
                )));
            }
        }
        // Lanes out of the window are no part of the choice, and may have been the only ones of a block.
        let start = before.window_range().start;
        for block in &mut kept {
            let first = block.block as usize * BLOCK_TOKENS;
            for lane in 0..BLOCK_TOKENS {
                if first + lane < start && first + lane >= before.sinks {
                    block.lanes &= !(1 << lane);
                }
            }
        }
        Ok(kept)
    }

    fn view<'a>(&self, index: usize, group: &'a CacheGroup, prompt_len: usize, live: &'a [LiveBlock]) -> CacheView<'a> {
        CacheView {
            group: index,
            layers: &group.layers,
            window: group.visible.window,
            sinks: group.visible.sinks,
            position: self.len,
            prompt_len,
            live,
        }
    }
}

/// How many positions there are, and in how many stretches.
pub(crate) fn count(ascending: impl Iterator<Item = usize>) -> Kept {
    let (mut kept, mut next) = (Kept { positions: 0, runs: 0 }, None);
    for position in ascending {
        kept.positions += 1;
        kept.runs += usize::from(next != Some(position));
        next = Some(position + 1);
    }
    kept
}
