//! What a host gets back.

use std::time::Duration;

use crate::sample::LogProbs;
use crate::types::{FinishReason, SequenceId, TokenId};

/// The next bit of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Piece {
    /// Text that is now certain; may be empty, and never ends inside a character or inside a stop string.
    pub text: String,
    /// Which of the request's answers this belongs to, from 0; see [`Request::n`](crate::Request::n).
    pub choice: u32,
    /// The token that was generated; absent when only held-back text is released.
    pub token: Option<TokenId>,
    /// The model's own log-probabilities (no sampling parameter applied), if the request asked for them.
    pub logprobs: Option<LogProbs>,
}

/// A request's bill.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt; several answers to one prompt share its computation.
    pub prompt_tokens: usize,
    /// Prompt tokens that were found in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens generated, an end token included.
    pub completion_tokens: usize,
    /// Tokens that a drafter proposed.
    pub drafted_tokens: usize,
    /// Of those, how many the model agreed with.
    pub accepted_tokens: usize,
    /// Failures of the drafter; after one the sequence runs without drafts.
    pub draft_errors: usize,
    /// From submit to the first token; zero if there was none.
    pub ttft: Duration,
    /// From the first row computed to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// A finished request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Output {
    /// Which of the request's answers this is, from 0.
    pub choice: u32,
    /// The whole text: equal to the pieces joined.
    pub text: String,
    /// The tokens generated, an end token included.
    pub token_ids: Vec<TokenId>,
    /// The tokens of the prompt.
    pub prompt_ids: Vec<TokenId>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// One entry per generated token, if asked for.
    pub logprobs: Option<Vec<LogProbs>>,
    /// One entry per prompt token from the second on, if asked for: how probable it was after those before it.
    pub prompt_logprobs: Option<Vec<LogProbs>>,
    /// The seed of the draws.
    pub seed: u64,
    /// The bill.
    pub usage: Usage,
}

/// What happened in a step.
// An event is moved once, from the step to the host: boxing the rarer, larger variant would only burden its users.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A request has a new piece.
    Token {
        /// The request.
        id: SequenceId,
        /// The piece.
        piece: Piece,
    },
    /// An answer of a request has ended. A request that ends before its first token has one such event, whatever
    /// number of answers it asked for.
    Finished {
        /// The request.
        id: SequenceId,
        /// Answers of the same request that are still to come; at 0 nothing more will be heard of it.
        remaining: usize,
        /// All that was produced.
        output: Output,
        /// What went wrong, if the reason is [`FinishReason::Error`].
        error: Option<crate::Error>,
    },
}

impl Event {
    /// The request that the event is about.
    pub fn id(&self) -> SequenceId {
        match self {
            Event::Token { id, .. } | Event::Finished { id, .. } => *id,
        }
    }
}

/// How well the model predicts given tokens.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Score {
    /// `log_probs[i]` is the natural log-probability of token `first + i` given all tokens before it.
    pub log_probs: Vec<f32>,
    /// `best[i]` is the most probable token at the same place, ties to the lower id.
    pub best: Vec<TokenId>,
    /// The logits after the last token.
    pub last_logits: Vec<f32>,
}
