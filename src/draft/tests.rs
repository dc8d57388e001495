//! Drafts by hand-made cases.

use super::*;

fn proposed(ngram: Ngram, tokens: &[TokenId], max_tokens: usize) -> Vec<TokenId> {
    let mut draft = Vec::new();
    let mut session = ngram;
    session.propose(tokens, max_tokens, &mut draft).unwrap();
    draft
}

#[test]
fn the_longest_ending_wins_and_then_the_most_recent_place() {
    let ngram = Ngram::new(1, 3);
    // "1 2 3" stands at the start; the later "3" alone and "9 3" are shorter.
    assert_eq!(proposed(ngram, &[1, 2, 3, 40, 41, 9, 3, 50, 1, 2, 3], 2), [40, 41]);
    // Two places of the same length: the later one.
    assert_eq!(proposed(ngram, &[1, 2, 10, 1, 2, 20, 1, 2], 1), [20]);
    // Longer than `max` does not matter.
    assert_eq!(proposed(Ngram::new(1, 1), &[1, 2, 3, 10, 9, 3, 20, 1, 2, 3], 1), [20]);
    // Shorter than `min` does not count.
    assert!(proposed(Ngram::new(2, 3), &[3, 10, 9, 3], 4).is_empty());
    // A continuation may be short, and may run over into the ending itself.
    assert_eq!(proposed(ngram, &[5, 5], 4), [5]);
    assert_eq!(proposed(ngram, &[7, 8, 7, 8], 9), [7, 8]);
    assert!(proposed(ngram, &[1, 2, 3], 9).is_empty());
    assert!(proposed(ngram, &[1], 9).is_empty());
    assert!(proposed(ngram, &[], 9).is_empty());
}

#[test]
fn lengths_out_of_range_are_refused_when_the_engine_is_built() {
    let context = DraftContext::new(100, 8);
    for (min, max) in [(0, 3), (4, 3), (1, 65)] {
        let error = Ngram::new(min, max).start(&context).err().unwrap().to_string();
        assert!(error.contains("ngram") && error.contains("64"), "{error}");
    }
    assert!(Ngram::new(64, 64).start(&context).is_ok());
}

#[test]
fn a_walk_ends_where_the_model_differs() {
    let walk = |draft: &[TokenId], chosen: &[TokenId]| {
        let mut walk = Verification::new(draft.to_vec());
        let mut rows = 0;
        for &token in chosen {
            if !walk.is_open() {
                break;
            }
            walk.chose(token, false);
            rows += 1;
        }
        (rows, walk.accepted(), walk.is_open())
    };
    // Without a draft one token is chosen.
    assert_eq!(walk(&[], &[4, 5]), (1, 0, false));
    assert_eq!(walk(&[4, 5, 6], &[4, 5, 6, 7, 8]), (4, 3, false));
    assert_eq!(walk(&[4, 5, 6], &[4, 9, 6]), (2, 1, false));
    assert_eq!(walk(&[4, 5, 6], &[9, 5, 6]), (1, 0, false));
    assert_eq!(walk(&[4, 5, 6], &[4, 5]), (2, 2, true));
    // An answer that ends inside the draft ends the walk.
    let mut walk = Verification::new(vec![1, 2]);
    walk.chose(1, true);
    assert_eq!((walk.accepted(), walk.is_open()), (1, false));
}

#[test]
fn lengths_follow_what_was_accepted() {
    let mut length = DraftLength::new(8);
    assert_eq!(length.next(), 8);
    length.verified(8, 2);
    assert_eq!(length.next(), 3);
    length.verified(3, 3);
    assert_eq!(length.next(), 6);
    length.verified(6, 6);
    assert_eq!(length.next(), 8);
    // Wholly wrong: 0, 1, 3, 7, 15 steps of rest, and no more than that.
    for rest in [0, 1, 3, 7, 15, 15] {
        length.verified(1, 0);
        for _ in 0..rest {
            assert_eq!(length.next(), 0);
        }
        assert_eq!(length.next(), 1);
    }
    length.verified(1, 1);
    assert_eq!(length.next(), 2);
}

#[test]
fn a_job_takes_no_more_than_was_asked_for() {
    let mut batch = PerSequence::new(|_: &[TokenId]| Ngram::default());
    batch.add(SequenceId(3), &[1]).unwrap();
    let tokens = [1, 2, 3, 4, 5, 1];
    let mut jobs = [DraftJob::new(SequenceId(3), &tokens, 2), DraftJob::new(SequenceId(4), &tokens, 2)];
    batch.propose(&mut jobs).unwrap();
    assert_eq!(jobs[0].draft(), [2, 3]);
    assert!(!jobs[0].push(9), "the draft is full");
    assert!(jobs[1].draft().is_empty(), "a sequence that was not added");
    batch.remove(SequenceId(3));
    let mut jobs = [DraftJob::new(SequenceId(3), &tokens, 2)];
    batch.propose(&mut jobs).unwrap();
    assert!(jobs[0].draft().is_empty());
}
