//! The arena's bookkeeping under random work, and what sliding layers free.

use std::sync::Arc;

use super::arena::OutOfBlocks;
use super::policy_tests::Scatter;
use super::*;
use crate::kernel::{KvFormat, KvShape, BLOCK_TOKENS};

fn arena(capacity: usize) -> BlockArena {
    BlockArena::new(KvFormat::F32, KvShape { kv_heads: 1, head_dim: 2 }, capacity)
}

fn check_all(layout: &CacheLayout, arena: &BlockArena, sequences: &[SequenceCache]) {
    sequences.iter().for_each(|s| s.check_integrity(layout).unwrap());
    check(arena, sequences);
}

fn check(arena: &BlockArena, sequences: &[SequenceCache]) {
    arena.check_integrity(sequences.iter().flat_map(SequenceCache::held)).unwrap();
}

#[test]
fn random_work_keeps_every_block_in_one_place() {
    let windows = || [None, Some(40), Some(40), None];
    let policy = |policy: Arc<dyn CachePolicy>| CacheLayout::with_policy(windows(), policy, 1 << 20).unwrap();
    for layout in [
        CacheLayout::new(windows()),
        policy(Arc::new(Window { size: 50, sinks: 5 })),
        policy(Arc::new(Window { size: 20, sinks: 33 })),
        policy(Arc::new(Scatter { interval: 7 })),
        policy(Arc::new(Scatter { interval: 33 })),
    ] {
        random_work(&layout);
    }
}

fn random_work(layout: &CacheLayout) {
    let mut arena = arena(150);
    let mut sequences: Vec<SequenceCache> = Vec::new();
    let mut seed = 1u64;
    let (mut refused, mut forked, mut cut, mut dropped) = (0, 0, 0, 0);
    for _ in 0..3000 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let r = (seed >> 33) as usize;
        let i = r / 7 % sequences.len().max(1);
        match r % 7 {
            0 => sequences.push(SequenceCache::new(layout)),
            _ if sequences.is_empty() => {}
            1 => sequences.swap_remove(i).clear(&mut arena),
            2 => match sequences[i].fork(layout, &mut arena) {
                Ok(twin) => {
                    sequences.push(twin);
                    forked += 1;
                }
                Err(error) => assert!(error.to_string().contains("memory"), "{error}"),
            },
            3 => {
                let len = sequences[i].len().saturating_sub(r / 64 % 40);
                let possible = sequences[i].can_truncate(len);
                assert_eq!(sequences[i].truncate(&mut arena, len), possible);
                cut += usize::from(possible);
            }
            _ => {
                let tokens = layout.runnable(sequences[i].len(), r / 64 % 50, 60);
                match sequences[i].reserve(&mut arena, tokens) {
                    Ok(()) => {
                        sequences[i].advance(layout, &mut arena, tokens);
                        let held = sequences[i].held().count();
                        sequences[i].act(layout, &mut arena, 60).unwrap();
                        dropped += held - sequences[i].held().count();
                        assert!(held <= layout.blocks_needed(sequences[i].len(), 50), "{layout:?}");
                    }
                    Err(OutOfBlocks) => refused += 1,
                }
            }
        }
        check_all(layout, &arena, &sequences);
    }
    assert!(refused > 0 && forked > 0 && cut > 0, "{refused} {forked} {cut}");
    assert_eq!(dropped > 0, layout.facts.acts != Acts::Never);
    sequences.iter_mut().for_each(|s| s.clear(&mut arena));
    assert_eq!(arena.used(), 0);
}

#[test]
fn a_refused_reservation_changes_nothing() {
    let layout = CacheLayout::new([None, None]);
    let mut arena = arena(5);
    let mut sequence = SequenceCache::new(&layout);
    sequence.reserve(&mut arena, 40).unwrap();
    assert_eq!(arena.used(), 4);
    assert_eq!(sequence.reserve(&mut arena, 100), Err(OutOfBlocks));
    assert_eq!(arena.used(), 4);
    check(&arena, &[sequence]);
}

#[test]
fn sliding_layers_hold_a_bounded_number_of_blocks() {
    let window = 100;
    let layout = CacheLayout::new([Some(window), None]);
    let mut arena = arena(1000);
    let mut sequence = SequenceCache::new(&layout);
    for step in [1usize, 7, 64] {
        for _ in 0..60 {
            sequence.reserve(&mut arena, step).unwrap();
            let bound = layout.blocks_needed(sequence.len() + step, step);
            assert!(sequence.held().count() <= bound, "{} > {bound}", sequence.held().count());
            sequence.advance(&layout, &mut arena, step);
            // All that the next query sees is still there.
            let first = (sequence.len() + 1).saturating_sub(window) / BLOCK_TOKENS;
            let last = sequence.len().div_ceil(BLOCK_TOKENS);
            assert!(sequence.table(0)[first..last].iter().all(|&b| b != u32::MAX));
        }
    }
    assert!(sequence.table(0).iter().filter(|&&b| b != u32::MAX).count() <= window / BLOCK_TOKENS + 3);
    check(&arena, &[sequence]);
}

#[test]
fn a_block_in_two_tables_is_noticed() {
    let mut arena = arena(4);
    let a = arena.allocate().unwrap();
    let b = arena.allocate().unwrap();
    assert!(arena.check_integrity([a, b].into_iter()).is_ok());
    assert!(arena.check_integrity([a, a].into_iter()).is_err());
    assert!(arena.check_integrity([a].into_iter()).is_err());
    assert!(arena.check_integrity([a, b, 99].into_iter()).is_err());
}

#[test]
fn truncation_is_possible_exactly_while_all_that_its_query_sees_is_stored() {
    let layouts = [vec![None], vec![Some(1)], vec![Some(40), None], vec![Some(33), Some(64), Some(100)]];
    for windows in layouts {
        let layout = CacheLayout::new(windows.clone());
        for (written, drafted) in [(10, 3), (64, 40), (95, 1), (200, 33), (257, 64)] {
            let mut arena = arena(200);
            let mut sequence = SequenceCache::new(&layout);
            sequence.reserve(&mut arena, written + drafted).unwrap();
            sequence.extend(written);
            sequence.commit(&layout, &mut arena);
            sequence.extend(drafted);
            for len in 0..=written + drafted + 1 {
                // A query at `len` sees its window, and is written itself.
                let stored = |(layer, window): (usize, &Option<usize>)| {
                    let first = window.map_or(0, |w| (len + 1).saturating_sub(w));
                    (first..=len).all(|i| sequence.table(layer).get(i / BLOCK_TOKENS) != Some(&u32::MAX))
                };
                let possible = len <= written + drafted && windows.iter().enumerate().all(stored);
                assert_eq!(sequence.can_truncate(len), possible, "{windows:?} {written} {drafted} {len}");
                assert!(possible || !(written..=written + drafted).contains(&len));
            }
            assert!(!sequence.truncate(&mut arena, written + drafted + 1));
            assert!(sequence.truncate(&mut arena, written + 1));
            assert_eq!(sequence.len(), written + 1);
            check(&arena, std::slice::from_ref(&sequence));
            // What was taken back can be written again.
            sequence.reserve(&mut arena, drafted).unwrap();
            sequence.advance(&layout, &mut arena, drafted);
            sequence.clear(&mut arena);
            assert_eq!(arena.used(), 0);
        }
    }
}

#[test]
fn forks_have_the_same_content_and_go_their_own_way() {
    let layout = CacheLayout::new([Some(40), None]);
    for &format in KvFormat::ALL {
        let shape = KvShape { kv_heads: 1, head_dim: 4 };
        let mut arena = BlockArena::new(format, shape, 40);
        let mut sequence = SequenceCache::new(&layout);
        let grow = |arena: &mut BlockArena, sequence: &mut SequenceCache, tokens: usize, sign: f32| {
            sequence.reserve(arena, tokens).unwrap();
            for index in sequence.len()..sequence.len() + tokens {
                for layer in 0..2 {
                    let key: Vec<f32> = (0..4).map(|d| sign * (index * 8 + layer * 4 + d) as f32).collect();
                    let value: Vec<f32> = key.iter().map(|k| k + 0.5).collect();
                    let block = sequence.table(layer)[index / BLOCK_TOKENS];
                    arena.blocks_mut().write(block, index % BLOCK_TOKENS, &key, &value);
                }
            }
            sequence.advance(&layout, arena, tokens);
        };
        let outcome = |arena: &BlockArena, sequence: &SequenceCache| -> Vec<Vec<f32>> {
            use crate::kernel::{attention, AttentionShape, AttentionSpan, Cpu};
            let run = |layer: usize| {
                let window = [Some(40), None][layer];
                let shape = AttentionShape { heads: 1, scale: 1e-3, softcap: None, window, sinks: 0 };
                let (table, first_index) = (sequence.table(layer), sequence.len() - 1);
                let span = AttentionSpan { first_row: 0, rows: 1, first_index, table, live: None };
                let mut out = vec![0.0; 4];
                attention(
                    &Cpu::new(1).unwrap(),
                    &shape,
                    arena.blocks(),
                    &[span],
                    &[0.1, 0.2, -0.3, 0.4],
                    None,
                    &mut out,
                );
                out
            };
            vec![run(0), run(1)]
        };
        grow(&mut arena, &mut sequence, 100, 1.0);
        let before = outcome(&arena, &sequence);
        let mut twin = sequence.fork(&layout, &mut arena).unwrap();
        assert_eq!(outcome(&arena, &twin), before);
        grow(&mut arena, &mut twin, 2, -1.0);
        assert_eq!(outcome(&arena, &sequence), before);
        assert_ne!(outcome(&arena, &twin), before);
        // Both go on alike from the same place.
        assert!(twin.truncate(&mut arena, 100));
        grow(&mut arena, &mut twin, 7, 1.0);
        grow(&mut arena, &mut sequence, 7, 1.0);
        assert_eq!(outcome(&arena, &twin), outcome(&arena, &sequence));
        arena.check_integrity(sequence.held().chain(twin.held())).unwrap();
        assert!(twin.held().all(|b| sequence.held().all(|o| o != b)));
    }
}
