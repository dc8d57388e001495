//! Drafts: cheap guesses at the next tokens, which the model then checks all at once.
//!
//! Between sampling and the engine in the flow. A drafter proposes, the engine runs the proposal's rows in one step, and
//! `verify` walks along it: at each position the model's own token is drawn as if there were no draft, and the walk ends
//! at the first difference. So a drafter changes how fast an answer comes, never the answer. Knows token ids; must not
//! know text, models or requests.

mod length;
mod ngram;
mod per_sequence;
mod verify;

use std::fmt::Debug;

pub(crate) use length::DraftLength;
pub use ngram::Ngram;
pub use per_sequence::PerSequence;
pub(crate) use verify::Verification;

use crate::types::{SequenceId, TokenId};
use crate::Result;

/// A way to guess tokens: immutable and shared, it opens one batch of state per engine.
///
/// # Contract
/// Proposals may be anything; only tokens of the vocabulary are used. What is proposed must depend on nothing but the
/// sequences that were added and their tokens. It costs time when it is wrong and saves time when it is right.
///
/// # When it is called
/// [`start`](Drafter::start) while the engine is built, and again after the batch panicked. The batch then hears of
/// every sequence that begins ([`add`](DraftBatch::add)) and ends ([`remove`](DraftBatch::remove)); before a step,
/// [`propose`](DraftBatch::propose) is asked once for all sequences that decode, and after it
/// [`verified`](DraftBatch::verified) says how much of each draft the model agreed with.
///
/// # Provided implementations
/// [`Ngram`].
///
/// # Implementing your own
/// A drafter that repeats the last token, through the adapter [`PerSequence`]:
///
/// ```
/// use candlewick::draft::{DraftBatch, DraftContext, DraftSession, Drafter, PerSequence};
/// use candlewick::{Result, TokenId};
///
/// #[derive(Debug)]
/// struct Repeat;
///
/// impl Drafter for Repeat {
///     fn name(&self) -> &str {
///         "repeat"
///     }
///     fn start(&self, _: &DraftContext) -> Result<Box<dyn DraftBatch>> {
///         Ok(Box::new(PerSequence::new(|_: &[TokenId]| Repeat)))
///     }
/// }
///
/// impl DraftSession for Repeat {
///     fn propose(&mut self, tokens: &[TokenId], max_tokens: usize, draft: &mut Vec<TokenId>) -> Result<()> {
///         let last = tokens.last().copied();
///         draft.extend(last.into_iter().cycle().take(max_tokens.min(4)));
///         Ok(())
///     }
/// }
///
/// # #[cfg(feature = "testing")]
/// candlewick::testing::check_drafter(&Repeat).unwrap();
/// ```
///
/// # Errors
/// An error or a panic of the batch switches drafting off for the sequences concerned and is counted in their bill
/// ([`Usage::draft_errors`](crate::Usage::draft_errors)); the requests go on.
pub trait Drafter: Debug + Send + Sync + 'static {
    /// Name for error messages.
    fn name(&self) -> &str;

    /// Opens the state for the sequences of one engine.
    ///
    /// # Errors
    /// Options out of range, or a drafter that does not fit the model; the engine is not built then.
    fn start(&self, context: &DraftContext) -> Result<Box<dyn DraftBatch>>;
}

/// What a drafter may know of its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DraftContext {
    /// Tokens of the model's vocabulary; ids are below.
    pub vocab_size: usize,
    /// The longest draft that will be asked for.
    pub max_tokens: usize,
}

impl DraftContext {
    /// For a vocabulary and the longest draft.
    pub fn new(vocab_size: usize, max_tokens: usize) -> DraftContext {
        DraftContext { vocab_size, max_tokens }
    }
}

/// A drafter's private state of all sequences of one engine. See [`Drafter`].
pub trait DraftBatch: Send {
    /// A sequence begins with these tokens: the prompt, and what has been generated already.
    ///
    /// # Errors
    /// The sequence runs without drafts.
    fn add(&mut self, sequence: SequenceId, tokens: &[TokenId]) -> Result<()>;

    /// Proposes tokens for each job; a job without proposal decodes one token as usual.
    ///
    /// # Errors
    /// All sequences of the jobs run without drafts from then on.
    fn propose(&mut self, jobs: &mut [DraftJob<'_>]) -> Result<()>;

    /// The sequence's last draft was checked and the sequence goes on: `tokens` is all of it, of which the model took `accepted` tokens
    /// from the draft and chose one more itself.
    fn verified(&mut self, sequence: SequenceId, tokens: &[TokenId], accepted: usize);

    /// The sequence has ended.
    fn remove(&mut self, sequence: SequenceId);
}

/// The state of a drafter that looks at each sequence by itself; [`PerSequence`] makes a [`DraftBatch`] of it.
pub trait DraftSession: Send {
    /// Appends up to `max_tokens` guesses at what follows `tokens` to the empty `draft`; more are cut off.
    ///
    /// # Errors
    /// The sequence runs without drafts from then on, and so do those that were asked in the same call.
    fn propose(&mut self, tokens: &[TokenId], max_tokens: usize, draft: &mut Vec<TokenId>) -> Result<()>;

    /// As [`DraftBatch::verified`]; nothing by default.
    fn verified(&mut self, _tokens: &[TokenId], _accepted: usize) {}
}

/// One sequence that waits for its next token.
#[derive(Debug)]
pub struct DraftJob<'a> {
    sequence: SequenceId,
    tokens: &'a [TokenId],
    max_tokens: usize,
    draft: Vec<TokenId>,
}

impl<'a> DraftJob<'a> {
    pub(crate) fn new(sequence: SequenceId, tokens: &'a [TokenId], max_tokens: usize) -> DraftJob<'a> {
        DraftJob { sequence, tokens, max_tokens, draft: Vec::new() }
    }

    /// The sequence.
    pub fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Its tokens so far, prompt and answer.
    pub fn tokens(&self) -> &'a [TokenId] {
        self.tokens
    }

    /// Tokens that may be proposed; at least 1.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Proposes the next token; `false`, and nothing is added, if the draft is full.
    pub fn push(&mut self, token: TokenId) -> bool {
        let room = self.draft.len() < self.max_tokens;
        if room {
            self.draft.push(token);
        }
        room
    }

    /// What has been proposed so far.
    pub fn draft(&self) -> &[TokenId] {
        &self.draft
    }

    pub(crate) fn into_draft(self) -> Vec<TokenId> {
        self.draft
    }
}

#[cfg(test)]
mod tests;
