//! The conformance suite of cache policies: plays sequences of many lengths through a policy and checks every choice.
//!
//! Keeps its own books (plain sets of positions), so that it does not share a mistake with the cache's tables.

use std::collections::BTreeSet;

use crate::cache::{count, guarded, Acts, CachePolicy, CacheSession, CacheView, Facts, Kept, Visibility};
use crate::kernel::{LiveBlock, BLOCK_TOKENS};

/// Checks that a policy keeps its contract: answers that agree and do not change; at the positions that it declares,
/// choices that are live, named once, outside the window that it promises, and that leave no more than its bounds;
/// equal choices for equal sequences, and for forked and restored sessions.
///
/// Sequences of up to 20,000 positions are played, in a few groups of layers: with full attention, and with small
/// windows of their own.
///
/// # Errors
/// What the policy did wrong, with the position at which it did.
pub fn check_cache_policy(policy: &dyn CachePolicy) -> Result<(), String> {
    let facts = Facts::of(policy, usize::MAX).map_err(|error| error.to_string())?;
    let answers = || (policy.visibility(), policy.acts(), policy.bounds(), policy.recomputable());
    if answers() != answers() || policy.name().is_empty() {
        return Err("its answers about itself change, or it has no name".to_string());
    }
    silent_unless_declared(policy, facts)?;
    let interval = if let Acts::Every(interval) = facts.acts { interval } else { 0 };
    let bounds = [facts.bounds.prefill, facts.bounds.decode].into_iter().flatten();
    let kept = bounds.map(|bound| bound.positions).max().unwrap_or(0);
    let long = kept.saturating_mul(2).saturating_add(interval.saturating_mul(3)).saturating_add(70).min(20_000);
    for (prompt, total) in [(1, 1), (1, 70), (32, 100), (100, 300), (257, 400), (600, 700), (long / 3 + 1, long)] {
        let play = || Play::new(policy, facts, prompt);
        let mut whole = play();
        whole.run(total)?;
        let mut again = play();
        again.run(total)?;
        if again.choices != whole.choices {
            return Err(format!("two equal sequences of {total} positions were served differently"));
        }
        for cut in [0, 1, prompt, total / 2, total - total / 5] {
            let mut first = play();
            first.run(cut.min(total))?;
            let mut second = first.forked()?;
            let mut third = first.restored()?;
            first.run(total)?;
            for (what, other) in [("forked", &mut second), ("restored", &mut third)] {
                let Some(other) = other else { continue };
                other.run(total)?;
                if other.choices != whole.choices {
                    return Err(format!("a session {what} at position {cut} chose differently from the original"));
                }
            }
        }
    }
    Ok(())
}

/// A policy that declares no action must drop nothing if it is asked all the same.
fn silent_unless_declared(policy: &dyn CachePolicy, facts: Facts) -> Result<(), String> {
    if facts.acts != Acts::Never {
        return Ok(());
    }
    let mut play = Play::new(policy, facts, 50);
    play.run(300)?;
    let live = play.groups[0].blocks(300);
    let mut dropped = Vec::new();
    let mut session = policy.open();
    session.evict(&play.groups[0].view(0, 300, 50, &live), &mut dropped).map_err(|error| error.to_string())?;
    match dropped.first() {
        Some(position) => Err(format!("it declares that it never acts, but drops position {position}")),
        None => Ok(()),
    }
}

/// Layers that retain alike, and what they hold.
#[derive(Clone)]
struct Group {
    layers: Vec<usize>,
    window: Option<usize>,
    sinks: usize,
    live: BTreeSet<usize>,
}

impl Group {
    fn blocks(&self, len: usize) -> Vec<LiveBlock> {
        let mut blocks: Vec<LiveBlock> = Vec::new();
        // Lanes that are not written yet are set, as in the cache.
        for position in self.live.iter().copied().chain(len..len.next_multiple_of(BLOCK_TOKENS)) {
            let (block, lane) = ((position / BLOCK_TOKENS) as u32, 1 << (position % BLOCK_TOKENS));
            match blocks.last_mut().filter(|last| last.block == block) {
                Some(last) => last.lanes |= lane,
                None => blocks.push(LiveBlock { block, lanes: lane }),
            }
        }
        blocks
    }

    fn view<'a>(&'a self, group: usize, position: usize, prompt_len: usize, live: &'a [LiveBlock]) -> CacheView<'a> {
        let Group { layers, window, sinks, .. } = self;
        CacheView { group, layers, window: *window, sinks: *sinks, position, prompt_len, live }
    }
}

/// One sequence.
struct Play<'a> {
    policy: &'a dyn CachePolicy,
    facts: Facts,
    prompt: usize,
    groups: Vec<Group>,
    len: usize,
    session: Option<Box<dyn CacheSession>>,
    /// (position, group, dropped positions ascending).
    choices: Vec<(usize, usize, Vec<usize>)>,
}

impl<'a> Play<'a> {
    fn new(policy: &'a dyn CachePolicy, facts: Facts, prompt: usize) -> Play<'a> {
        let (window, sinks) = match facts.visibility {
            Visibility::Window { size, sinks } => (Some(size), sinks),
            Visibility::All => (None, 0),
        };
        let own = |layers: &[usize], own: usize| match window {
            Some(size) if size.saturating_add(sinks) < own => (layers.to_vec(), window, sinks),
            _ => (layers.to_vec(), Some(own), 0),
        };
        let groups = [(vec![0, 3], window, sinks), own(&[1, 2], 1), own(&[4], 37)];
        let groups = groups.map(|(layers, window, sinks)| Group { layers, window, sinks, live: BTreeSet::new() });
        Play { policy, facts, prompt, groups: groups.to_vec(), len: 0, session: None, choices: Vec::new() }
    }

    fn run(&mut self, total: usize) -> Result<(), String> {
        while self.len < total {
            for group in &mut self.groups {
                group.live.insert(self.len);
                let start = group.window.map_or(0, |window| (self.len + 2).saturating_sub(window));
                // One position leaves the window per step.
                if start > group.sinks {
                    group.live.remove(&(start - 1));
                }
            }
            self.len += 1;
            if self.facts.acts_at(self.len, self.prompt) {
                self.act().map_err(|error| format!("position {}: {error}", self.len))?;
            }
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), String> {
        let policy = self.policy;
        let mut session = match self.session.take() {
            Some(session) => session,
            None => guarded(policy, || Ok(policy.open())).map_err(|error| error.to_string())?,
        };
        for index in 0..self.groups.len() {
            let live = self.groups[index].blocks(self.len);
            let view = self.groups[index].view(index, self.len, self.prompt, &live);
            let mut dropped = Vec::new();
            guarded(policy, || session.evict(&view, &mut dropped)).map_err(|error| error.to_string())?;
            dropped.sort_unstable();
            let group = &mut self.groups[index];
            for position in &dropped {
                let seen = group.window.is_none_or(|window| position + window > self.len) || *position < group.sinks;
                if matches!(self.facts.visibility, Visibility::Window { .. }) && seen && *position < self.len {
                    return Err(format!("it drops position {position}, which its window promises"));
                }
                if !group.live.remove(position) {
                    return Err(format!("it drops position {position}, which is not live"));
                }
            }
            if let Some(bound) = self.facts.bound(self.len, self.prompt) {
                let Kept { positions, runs } = count(group.live.iter().copied());
                if positions > bound.positions || runs > bound.runs {
                    return Err(format!(
                        "it keeps {positions} positions in {runs} stretches, but states at most {} in {}",
                        bound.positions, bound.runs
                    ));
                }
            }
            self.choices.push((self.len, index, dropped));
        }
        self.session = Some(session);
        Ok(())
    }

    fn with(&self, session: Option<Box<dyn CacheSession>>) -> Play<'a> {
        Play { groups: self.groups.clone(), choices: self.choices.clone(), session, ..*self }
    }

    /// A copy of the sequence; `None` where sessions cannot be forked.
    fn forked(&self) -> Result<Option<Play<'a>>, String> {
        let Some(session) = &self.session else { return Ok(Some(self.with(None))) };
        match (session.can_fork(), session.fork()) {
            (true, Some(copy)) => Ok(Some(self.with(Some(copy)))),
            (false, None) => Ok(None),
            (can, copy) => Err(format!("can_fork is {can}, but fork gives a copy: {}", copy.is_some())),
        }
    }

    /// The sequence with a new session that took on the saved state; `None` where sessions cannot be saved.
    fn restored(&self) -> Result<Option<Play<'a>>, String> {
        let Some(session) = &self.session else { return Ok(Some(self.with(None))) };
        match (session.can_save(), session.save()) {
            (true, Some(bytes)) => {
                let mut copy = self.policy.open();
                copy.restore(&bytes).map_err(|error| format!("restoring a saved state fails: {error}"))?;
                if copy.save().as_ref() != Some(&bytes) {
                    return Err("a restored session saves other bytes than those it was given".to_string());
                }
                Ok(Some(self.with(Some(copy))))
            }
            (false, None) => Ok(None),
            (can, bytes) => Err(format!("can_save is {can}, but save gives bytes: {}", bytes.is_some())),
        }
    }
}
