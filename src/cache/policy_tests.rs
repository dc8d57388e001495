//! Policies good and broken: what they may say, what they may drop, and what the suite notices.

use std::sync::Arc;

use super::*;
use crate::kernel::{KvFormat, KvShape, BLOCK_TOKENS};
use crate::testing::{check_cache_policy, splitmix64};
use crate::{BuildError, Error, RequestError};

/// Drops about two thirds of the live positions every `interval` positions, by a generator that is its state.
#[derive(Clone, Debug)]
pub(super) struct Scatter {
    pub(super) interval: usize,
}

#[derive(Clone, Debug, Default)]
struct ScatterSession {
    calls: u64,
}

impl CachePolicy for Scatter {
    fn name(&self) -> &str {
        "scatter"
    }
    fn visibility(&self) -> Visibility {
        Visibility::All
    }
    fn acts(&self) -> Acts {
        Acts::Every(self.interval)
    }
    fn bounds(&self) -> CacheBounds {
        CacheBounds::NONE
    }
    fn recomputable(&self) -> bool {
        true
    }
    fn open(&self) -> Box<dyn CacheSession> {
        Box::new(ScatterSession::default())
    }
}

impl CacheSession for ScatterSession {
    fn evict(&mut self, view: &CacheView<'_>, dropped: &mut Vec<usize>) -> Result<()> {
        self.calls += 1;
        dropped.extend(view.live().filter(|&p| !splitmix64(self.calls, p as u64).is_multiple_of(3)));
        dropped.reverse();
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
        Some(self.calls.to_le_bytes().to_vec())
    }
    fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        self.calls = bytes.try_into().map_or(0, u64::from_le_bytes);
        Ok(())
    }
}

/// A policy whose every answer a test can set.
#[derive(Clone, Debug)]
struct Odd {
    visibility: Visibility,
    acts: Acts,
    bounds: CacheBounds,
    fault: &'static str,
    calls: usize,
}

const SOUND: Odd = Odd {
    visibility: Visibility::All,
    acts: Acts::Every(8),
    bounds: CacheBounds {
        prefill: Some(Kept { positions: 20, runs: 1 }),
        decode: Some(Kept { positions: 20, runs: 1 }),
    },
    fault: "",
    calls: 0,
};

impl CachePolicy for Odd {
    fn name(&self) -> &str {
        "odd"
    }
    fn visibility(&self) -> Visibility {
        self.visibility
    }
    fn acts(&self) -> Acts {
        self.acts
    }
    fn bounds(&self) -> CacheBounds {
        self.bounds
    }
    fn recomputable(&self) -> bool {
        true
    }
    fn open(&self) -> Box<dyn CacheSession> {
        assert!(self.fault != "opens with a panic", "by design");
        Box::new(self.clone())
    }
}

impl CacheSession for Odd {
    fn evict(&mut self, view: &CacheView<'_>, dropped: &mut Vec<usize>) -> Result<()> {
        self.calls += 1;
        let old = |keep: usize| view.live().filter(move |p| p + keep < view.position());
        match self.fault {
            "keeps too much" => {}
            "keeps holes" => dropped.extend(old(20).chain(view.live().filter(|p| p + 5 == view.position()))),
            "drops unwritten" => dropped.push(view.position()),
            "drops far off" => dropped.push(usize::MAX),
            "drops twice" => dropped.extend(old(20).chain(old(20))),
            "drops again" => dropped.extend((0..view.position()).filter(|p| p + 20 < view.position())),
            "drops sinks" => dropped.extend(view.live().filter(|&p| p == 0)),
            "drops the window" => dropped.extend(view.live().filter(|&p| p + 1 == view.position())),
            "forgets" | "forks badly" if self.calls > 10 => dropped.extend(old(5)),
            "panics" => panic!("by design"),
            "fails" => return Err(RequestError::EmptyPrompt.into()),
            _ => dropped.extend(old(20)),
        }
        Ok(())
    }
    fn can_fork(&self) -> bool {
        self.fault != "cannot fork"
    }
    fn fork(&self) -> Option<Box<dyn CacheSession>> {
        let calls = if self.fault == "forks badly" { 0 } else { self.calls };
        (!["cannot fork", "does not fork"].contains(&self.fault)).then(|| Box::new(Odd { calls, ..self.clone() }) as _)
    }
    fn can_save(&self) -> bool {
        self.fault != "cannot save"
    }
    fn save(&self) -> Option<Vec<u8>> {
        let calls = if self.fault == "forgets" { 0 } else { self.calls };
        (self.fault != "cannot save").then(|| calls.to_le_bytes().to_vec())
    }
    fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        self.calls = bytes.try_into().map_or(0, usize::from_le_bytes);
        Ok(())
    }
}

fn layout(windows: &[Option<usize>], policy: impl CachePolicy) -> CacheLayout {
    CacheLayout::with_policy(windows.iter().copied(), Arc::new(policy), 1 << 20).unwrap()
}

fn arena(blocks: usize) -> BlockArena {
    BlockArena::new(KvFormat::F32, KvShape { kv_heads: 1, head_dim: 2 }, blocks)
}

#[test]
fn provided_and_sound_policies_pass_the_suite() {
    check_cache_policy(&Full).unwrap();
    for (size, sinks) in [(1, 0), (1, 1), (31, 4), (64, 40), (300, 0), (1024, 4)] {
        check_cache_policy(&Window { size, sinks }).unwrap();
    }
    for interval in [1, 7, 64] {
        check_cache_policy(&Scatter { interval }).unwrap();
    }
    check_cache_policy(&SOUND).unwrap();
    // What cannot be copied or saved is no fault.
    for fault in ["cannot fork", "cannot save"] {
        check_cache_policy(&Odd { fault, ..SOUND }).unwrap();
    }
    let once = CacheBounds { prefill: None, decode: SOUND.bounds.decode };
    check_cache_policy(&Odd { acts: Acts::AtPromptEnd, bounds: once, ..SOUND }).unwrap();
}

#[test]
fn the_suite_notices_broken_policies() {
    let window = Odd {
        visibility: Visibility::Window { size: 10, sinks: 3 },
        bounds: CacheBounds::always(60, 2),
        fault: "keeps too much",
        ..SOUND
    };
    check_cache_policy(&window).unwrap();
    let never = Odd { acts: Acts::Never, bounds: CacheBounds::NONE, ..SOUND };
    for (policy, words) in [
        (Odd { fault: "keeps too much", ..SOUND }, "keeps 24 positions"),
        (Odd { fault: "keeps holes", ..SOUND }, "in 2 stretches"),
        (Odd { fault: "drops unwritten", ..SOUND }, "position 8: it drops position 8, which is not live"),
        (Odd { fault: "drops far off", ..SOUND }, "not live"),
        (Odd { fault: "drops twice", ..SOUND }, "not live"),
        (Odd { fault: "drops again", ..SOUND }, "not live"),
        (Odd { fault: "drops sinks", ..window.clone() }, "position 0, which its window promises"),
        (Odd { fault: "drops the window", ..window }, "which its window promises"),
        (Odd { fault: "forgets", ..SOUND }, "restored"),
        (Odd { fault: "forks badly", ..SOUND }, "forked"),
        (Odd { fault: "does not fork", ..SOUND }, "can_fork is true"),
        (Odd { fault: "panics", ..SOUND }, "panicked: by design"),
        (Odd { fault: "opens with a panic", ..SOUND }, "panicked: by design"),
        (Odd { fault: "fails", ..SOUND }, "empty"),
        (never, "never acts, but drops position 0"),
    ] {
        let found = check_cache_policy(&policy).expect_err(policy.fault);
        assert!(found.contains(words), "{}: {found}", policy.fault);
    }
}

#[test]
fn contradictions_and_misfits_are_build_errors() {
    let refused = |policy: Odd| match CacheLayout::with_policy([None], Arc::new(policy), 100).unwrap_err() {
        error @ (BuildError::InvalidCachePolicy { .. } | BuildError::CachePolicyContext { .. }) => error.to_string(),
        other => panic!("{other}"),
    };
    let window = |size, sinks| Odd {
        visibility: Visibility::Window { size, sinks },
        acts: Acts::Never,
        bounds: CacheBounds::always(usize::MAX, 2),
        ..SOUND
    };
    assert!(refused(window(0, 4)).contains("size of at least 1"));
    let narrow = Odd { bounds: CacheBounds::always(13, 1), ..window(10, 4) };
    assert!(refused(narrow).contains("whole window"));
    assert!(refused(Odd { bounds: CacheBounds::NONE, ..window(10, 4) }).contains("whole window"));
    assert!(refused(Odd { acts: Acts::Never, ..SOUND }).contains("drops nothing"));
    assert!(refused(Odd { acts: Acts::AtPromptEnd, ..SOUND }).contains("drops nothing"));
    assert!(refused(Odd { acts: Acts::Every(0), ..SOUND }).contains("every 0"));
    assert!(refused(Odd { bounds: CacheBounds::always(10, 0), ..SOUND }).contains("stretch"));
    for (size, sinks) in [(97, 4), (100, usize::MAX), (usize::MAX, 4)] {
        let policy = Arc::new(Window { size, sinks });
        let error = CacheLayout::with_policy([None], policy, 100).unwrap_err().to_string();
        assert!(error.contains("`window`") && error.contains("context has 100"), "{error}");
    }
    assert!(CacheLayout::with_policy([None], Arc::new(Window { size: 96, sinks: 4 }), 100).is_ok());
}

#[test]
fn layers_with_a_window_of_their_own_keep_the_smaller_one() {
    let windows = [None, Some(13), Some(15), Some(14), Some(100), None];
    let layout = layout(&windows, Window { size: 10, sinks: 4 });
    let sequence = SequenceCache::new(&layout);
    let seen = |layer| (sequence.visible(layer).window, sequence.visible(layer).sinks);
    assert_eq!([0, 2, 4, 5].map(seen), [(Some(10), 4); 4]);
    assert_eq!([1, 3].map(seen), [(Some(13), 0), (Some(14), 0)]);
    assert_eq!(layout.groups.len(), 3);
    assert_eq!(sequence.sink_position(), Some(13));
}

#[test]
fn choices_free_blocks_and_the_arena_agrees() {
    let layout = layout(&[None, Some(50)], SOUND);
    let mut arena = arena(100);
    let mut sequence = SequenceCache::new(&layout);
    while sequence.len() < 5000 {
        let rows = layout.runnable(sequence.len(), 100, 70);
        assert_eq!(rows, 8 - sequence.len() % 8);
        sequence.reserve(&mut arena, rows).unwrap();
        sequence.advance(&layout, &mut arena, rows);
        sequence.act(&layout, &mut arena, 70).unwrap();
        // A second call changes nothing, and going back before the choice is impossible.
        let held = sequence.held().count();
        sequence.act(&layout, &mut arena, 70).unwrap();
        assert_eq!(sequence.held().count(), held);
        assert!(sequence.can_truncate(sequence.len()) && !sequence.can_truncate(sequence.len() - 1));
        assert!(held <= layout.blocks_needed(usize::MAX, 100) && held <= 4, "{held}");
        sequence.check_integrity(&layout).unwrap();
        arena.check_integrity(sequence.held()).unwrap();
    }
    assert!(sequence.live(0).unwrap().len() <= 2 && sequence.table(0).len() == 5000_usize.div_ceil(BLOCK_TOKENS));
    let twin = sequence.fork(&layout, &mut arena).unwrap();
    assert_eq!(twin.live(1), sequence.live(1));
    arena.check_integrity(sequence.held().chain(twin.held())).unwrap();
}

#[test]
fn invalid_choices_end_the_sequence_with_an_error_that_names_the_policy() {
    for (fault, words) in [
        ("keeps too much", "keeps 24 positions"),
        ("keeps holes", "in 2 stretches"),
        ("drops unwritten", "position 8 is not live"),
        ("drops far off", "not live"),
        ("drops twice", "dropped twice"),
        ("drops again", "not live"),
        ("panics", "by design"),
        ("opens with a panic", "by design"),
        ("fails", "empty"),
    ] {
        let layout = layout(&[None], Odd { fault, ..SOUND });
        let (mut arena, mut sequence) = (arena(10), SequenceCache::new(&layout));
        let error = (0..6).find_map(|_| {
            sequence.reserve(&mut arena, 8).unwrap();
            sequence.advance(&layout, &mut arena, 8);
            sequence.act(&layout, &mut arena, 8).err()
        });
        let error = error.unwrap_or_else(|| panic!("{fault} went unnoticed"));
        assert!(error.to_string().contains(words), "{fault}: {error}");
        match error {
            Error::Request(RequestError::InvalidEviction { policy, .. }) => assert_eq!(policy, "odd"),
            Error::Extension { room, name, .. } => assert_eq!((room, name.as_str()), ("cache", "odd")),
            Error::Request(RequestError::EmptyPrompt) if fault == "fails" => {}
            other => panic!("{fault}: {other}"),
        }
        sequence.clear(&mut arena);
        arena.check_integrity(std::iter::empty()).unwrap();
    }
    let window =
        Odd { visibility: Visibility::Window { size: 10, sinks: 3 }, bounds: CacheBounds::always(60, 2), ..SOUND };
    for fault in ["drops sinks", "drops the window"] {
        let layout = layout(&[None], Odd { fault, ..window.clone() });
        let (mut arena, mut sequence) = (arena(10), SequenceCache::new(&layout));
        sequence.reserve(&mut arena, 8).unwrap();
        sequence.advance(&layout, &mut arena, 8);
        let error = sequence.act(&layout, &mut arena, 8).unwrap_err().to_string();
        assert!(error.contains("promises") && error.contains("`odd`"), "{error}");
    }
}

#[test]
fn a_policy_that_cannot_be_copied_makes_forks_an_error() {
    let (mut arena, plain) = (arena(20), layout(&[None], SOUND));
    assert!(plain.can_fork().unwrap());
    let layout = layout(&[None], Odd { fault: "cannot fork", ..SOUND });
    assert!(!layout.can_fork().unwrap());
    let mut sequence = SequenceCache::new(&layout);
    sequence.reserve(&mut arena, 8).unwrap();
    sequence.advance(&layout, &mut arena, 8);
    assert!(sequence.fork(&layout, &mut arena).is_ok());
    sequence.act(&layout, &mut arena, 4).unwrap();
    let error = sequence.fork(&layout, &mut arena).unwrap_err();
    assert!(matches!(&error, Error::Request(RequestError::CannotFork { part: "cache policy", name }) if name == "odd"));
}
