//! The adapter for drafters that look at each sequence by itself.

use std::collections::HashMap;
use std::fmt;

use super::{DraftBatch, DraftJob, DraftSession};
use crate::types::{SequenceId, TokenId};
use crate::Result;

/// Keeps one [`DraftSession`] per sequence; `open` makes it from the sequence's first tokens.
pub struct PerSequence<S, F> {
    open: F,
    sessions: HashMap<SequenceId, S>,
    draft: Vec<TokenId>,
}

impl<S, F> PerSequence<S, F>
where
    S: DraftSession,
    F: FnMut(&[TokenId]) -> S + Send,
{
    /// No sequence yet.
    pub fn new(open: F) -> PerSequence<S, F> {
        PerSequence { open, sessions: HashMap::new(), draft: Vec::new() }
    }
}

impl<S, F> fmt::Debug for PerSequence<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerSequence").field("sequences", &self.sessions.len()).finish_non_exhaustive()
    }
}

impl<S, F> DraftBatch for PerSequence<S, F>
where
    S: DraftSession,
    F: FnMut(&[TokenId]) -> S + Send,
{
    fn add(&mut self, sequence: SequenceId, tokens: &[TokenId]) -> Result<()> {
        self.sessions.insert(sequence, (self.open)(tokens));
        Ok(())
    }

    fn propose(&mut self, jobs: &mut [DraftJob<'_>]) -> Result<()> {
        for job in jobs {
            let Some(session) = self.sessions.get_mut(&job.sequence()) else { continue };
            self.draft.clear();
            session.propose(job.tokens(), job.max_tokens(), &mut self.draft)?;
            for &token in &self.draft {
                job.push(token);
            }
        }
        Ok(())
    }

    fn verified(&mut self, sequence: SequenceId, tokens: &[TokenId], accepted: usize) {
        if let Some(session) = self.sessions.get_mut(&sequence) {
            session.verified(tokens, accepted);
        }
    }

    fn remove(&mut self, sequence: SequenceId) {
        self.sessions.remove(&sequence);
    }
}
