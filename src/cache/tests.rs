//! The arena's bookkeeping under random work, and what sliding layers free.

use super::arena::OutOfBlocks;
use super::*;
use crate::kernel::{KvFormat, KvShape, BLOCK_TOKENS};

fn arena(capacity: usize) -> BlockArena {
    BlockArena::new(KvFormat::F32, KvShape { kv_heads: 1, head_dim: 2 }, capacity)
}

fn check(arena: &BlockArena, sequences: &[SequenceCache]) {
    arena.check_integrity(sequences.iter().flat_map(SequenceCache::held)).unwrap();
}

#[test]
fn random_work_keeps_every_block_in_one_place() {
    let layout = CacheLayout::new([None, Some(40), Some(40), None]);
    let mut arena = arena(150);
    let mut sequences: Vec<SequenceCache> = Vec::new();
    let mut seed = 1u64;
    let mut refused = 0;
    for _ in 0..3000 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let r = (seed >> 33) as usize;
        match r % 5 {
            0 => sequences.push(SequenceCache::new(&layout)),
            1 if !sequences.is_empty() => {
                let mut gone = sequences.swap_remove(r / 5 % sequences.len());
                gone.clear(&mut arena);
            }
            _ if !sequences.is_empty() => {
                let i = r / 5 % sequences.len();
                let tokens = r / 64 % 50;
                match sequences[i].reserve(&mut arena, tokens) {
                    Ok(()) => sequences[i].advance(&layout, &mut arena, tokens),
                    Err(OutOfBlocks) => refused += 1,
                }
            }
            _ => {}
        }
        check(&arena, &sequences);
    }
    assert!(refused > 0);
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
