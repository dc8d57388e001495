//! How long a draft to ask for, per sequence, from what was accepted so far.

/// Rests at most this many steps before drafts are tried again.
const LONGEST_REST: usize = 16;

/// A draft's length: doubles while the model agrees with all of it, else falls back to one more than it agreed with.
/// After drafts that were wholly wrong it rests, longer each time. It depends on nothing but the sequence itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftLength {
    max: usize,
    length: usize,
    misses: u32,
    rest: usize,
}

impl DraftLength {
    pub(crate) fn new(max: usize) -> DraftLength {
        DraftLength { max, length: max, misses: 0, rest: 0 }
    }

    /// Length of the next draft; 0 while resting. Counts the step.
    pub(crate) fn next(&mut self) -> usize {
        if self.rest > 0 {
            self.rest -= 1;
            return 0;
        }
        self.length
    }

    /// What became of a draft of `drafted` tokens, at least one.
    pub(crate) fn verified(&mut self, drafted: usize, accepted: usize) {
        if accepted == 0 {
            self.misses = (self.misses + 1).min(LONGEST_REST.ilog2() + 1);
            self.rest = (1 << (self.misses - 1)) - 1;
        } else {
            self.misses = 0;
        }
        self.length = if accepted == drafted { self.length * 2 } else { accepted + 1 }.min(self.max);
    }
}
