//! One request on its way: its sequence, how its tokens are chosen, its text, its bill.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use super::mask::TokenSet;
use super::output::{Output, Piece, Usage};
use crate::cache::SequenceCache;
use crate::draft::{DraftLength, Verification};
use crate::sample::{
    draw, log_probs, processed_log_probs, Distribution, LogProbs, LogprobsMode, NoiseKey, SampleContext, SamplerSession,
};
use crate::schedule::Sequence;
use crate::stream::StopMatcher;
use crate::tokenizer::Detokenizer;
use crate::types::{FinishReason, SequenceId, TokenId};
use crate::{Error, RequestError, Result};

/// One choice of a request that was accepted.
pub(super) struct Answer {
    /// Names this choice inside the engine and to the drafter; the first choice has its request's name.
    pub(super) id: SequenceId,
    /// The request.
    pub(super) request: SequenceId,
    pub(super) choice: u32,
    /// Sessions of the choices that split off as soon as the prompt has run.
    pub(super) siblings: Vec<Box<dyn SamplerSession>>,
    pub(super) sequence: Sequence,
    pub(super) sampling: Sampling,
    pub(super) limits: Limits,
    pub(super) text: Text,
    pub(super) logprobs: Vec<LogProbs>,
    /// Alternatives to report for each prompt token, and what has been reported.
    pub(super) prompt_logprobs: Option<(usize, Vec<LogProbs>)>,
    pub(super) drafting: DraftState,
    pub(super) times: Times,
}

/// When an answer ends.
#[derive(Clone)]
pub(super) struct Limits {
    pub(super) max_tokens: usize,
    pub(super) min_tokens: usize,
    pub(super) deadline: Option<Duration>,
    /// Tokens that end the answer, ascending.
    pub(super) ends: Arc<[TokenId]>,
}

/// How tokens are chosen.
pub(super) struct Sampling {
    pub(super) name: String,
    pub(super) session: Box<dyn SamplerSession>,
    pub(super) seed: u64,
    /// How many alternatives to report, and of which probabilities; `None` reports nothing.
    pub(super) logprobs: Option<(usize, LogprobsMode)>,
    /// Tokens that may be chosen.
    pub(super) legal: Arc<TokenSet>,
}

/// Tokens become text, and text meets stop strings.
#[derive(Clone)]
pub(super) struct Text {
    /// The prompt's text, to be emitted first.
    pub(super) echo: Option<String>,
    pub(super) detokenizer: Detokenizer,
    pub(super) stop: StopMatcher,
    pub(super) stopped: bool,
    /// All that was emitted.
    pub(super) emitted: String,
}

/// An answer's drafts.
pub(super) struct DraftState {
    /// Whether the drafter knows the sequence and has not failed on it.
    pub(super) enabled: bool,
    pub(super) length: DraftLength,
    /// The draft of the running step.
    pub(super) verification: Verification,
    pub(super) drafted: usize,
    pub(super) accepted: usize,
    pub(super) errors: usize,
}

impl DraftState {
    pub(super) fn new(max_tokens: usize) -> DraftState {
        DraftState {
            enabled: false,
            length: DraftLength::new(max_tokens),
            verification: Verification::default(),
            drafted: 0,
            accepted: 0,
            errors: 0,
        }
    }
}

/// When things happened, on the engine's clock.
#[derive(Clone, Default)]
pub(super) struct Times {
    pub(super) submitted: Duration,
    pub(super) started: Option<Duration>,
    pub(super) first_token: Option<Duration>,
    pub(super) last_token: Duration,
}

/// What a step gives an answer: a piece, and why it ends if it does.
pub(super) type Accepted = (Piece, Option<FinishReason>);

impl Sampling {
    /// Chooses the token after `sequence` from the model's logits. `forbidden` tokens are not chosen, nor are those
    /// outside the legal set.
    ///
    /// A panicking sampler fails its request only.
    fn choose(
        &mut self,
        sequence: &Sequence,
        choice: u32,
        forbidden: &[TokenId],
        logits: &mut [f32],
        distribution: &mut Distribution,
    ) -> Result<(TokenId, Option<LogProbs>)> {
        // Which token is chosen is not known yet, and its own value needs the untouched logits.
        let raw = self.logprobs.filter(|(_, mode)| *mode == LogprobsMode::Raw).map(|(top, _)| (top, logits.to_vec()));
        self.legal.apply(logits);
        for &token in forbidden {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let Sampling { name, session, seed, legal, .. } = self;
        let position = sequence.tokens.len();
        let noise = NoiseKey { seed: *seed, choice, position: position as u64 };
        let context = SampleContext { prompt: sequence.prompt(), generated: sequence.generated(), position, noise };
        let vocab_size = logits.len();
        let token = guarded("sample", name, || {
            session.distribution(&context, logits, distribution)?;
            distribution.validate(name, vocab_size)?;
            let illegal = |c: &&crate::sample::Candidate| {
                c.probability > 0.0 && (!legal.contains(c.token) || forbidden.contains(&c.token))
            };
            if let Some(candidate) = distribution.candidates().iter().find(illegal) {
                let reason = format!("token {} has probability, but it is not allowed here", candidate.token);
                return Err(RequestError::InvalidDistribution { sampler: name.clone(), reason }.into());
            }
            let token = draw(distribution, &noise)?;
            session.observe(token);
            Ok(token)
        })?;
        let report = match (raw, self.logprobs) {
            (Some((top, raw)), _) => Some(log_probs(&raw, token, top)?),
            (None, Some((top, _))) => Some(processed_log_probs(distribution, token, top)?),
            (None, None) => None,
        };
        Ok((token, report))
    }
}

impl Text {
    /// Adds a token's text; whether a stop string is complete.
    fn push(&mut self, token: TokenId, out: &mut String) -> bool {
        let text = self.detokenizer.push(token);
        self.pass(&text, out)
    }

    fn pass(&mut self, text: &str, out: &mut String) -> bool {
        if !self.stopped {
            let outcome = self.stop.push(text);
            out.push_str(&outcome.text);
            self.stopped = outcome.stopped.is_some();
        }
        self.stopped
    }

    /// Releases what was held back, once nothing more will come.
    fn finish(&mut self, out: &mut String) {
        let rest = self.detokenizer.finish();
        if !self.pass(&rest, out) {
            out.push_str(&self.stop.finish());
        }
    }
}

impl Answer {
    /// Blocks that this answer and those that will split off may come to hold.
    pub(super) fn claimed(&self) -> usize {
        self.sequence.blocks * (1 + self.siblings.len())
    }

    /// Tokens that a draft may have now: the token after the draft must still fit.
    pub(super) fn draft_room(&self) -> usize {
        let Answer { drafting, sequence, limits, .. } = self;
        if !drafting.enabled || !sequence.decodes() || sequence.generated().is_empty() {
            return 0;
        }
        limits.max_tokens.saturating_sub(sequence.generated().len() + 1)
    }

    /// Takes in the logits after the last token: chooses the next one and makes text of it.
    pub(super) fn choose(&mut self, logits: &mut [f32], distribution: &mut Distribution) -> Result<Accepted> {
        let Answer { sampling, sequence, limits, choice, .. } = self;
        let too_early = sequence.generated().len() < limits.min_tokens;
        let forbidden = if too_early { &limits.ends[..] } else { &[] };
        let (token, logprobs) = sampling.choose(sequence, *choice, forbidden, logits, distribution)?;
        Ok(self.accept(token, logprobs))
    }

    /// The walk along the draft goes on if the model chose as drafted.
    pub(super) fn follow(&mut self, result: &Result<Accepted>) {
        match result {
            Ok((piece, reason)) => {
                // A chosen token always comes with its piece.
                piece.token.iter().for_each(|&token| self.drafting.verification.chose(token, reason.is_some()));
            }
            Err(_) => self.drafting.verification.stop(),
        }
    }

    /// Notes how probable the prompt's next token was.
    pub(super) fn report(&mut self, token: TokenId, logits: &[f32]) -> Result<()> {
        if let Some((top, reports)) = &mut self.prompt_logprobs {
            reports.push(log_probs(logits, token, *top)?);
        }
        Ok(())
    }

    /// Another choice of the same request, with the prompt alone and no cache yet.
    pub(super) fn sibling(&self, id: SequenceId, choice: u32, session: Box<dyn SamplerSession>) -> Answer {
        let Sampling { name, seed, logprobs, legal, .. } = &self.sampling;
        Answer {
            id,
            request: self.request,
            choice,
            siblings: Vec::new(),
            sequence: Sequence {
                tokens: self.sequence.prompt().to_vec(),
                prompt_len: self.sequence.prompt_len,
                cache: SequenceCache::default(),
                blocks: self.sequence.blocks,
            },
            sampling: Sampling { name: name.clone(), session, seed: *seed, logprobs: *logprobs, legal: legal.clone() },
            limits: self.limits.clone(),
            text: self.text.clone(),
            logprobs: Vec::new(),
            prompt_logprobs: self.prompt_logprobs.clone(),
            drafting: DraftState::new(0),
            times: self.times.clone(),
        }
    }

    /// Takes a chosen token in: its text, and whether it ends the answer.
    fn accept(&mut self, token: TokenId, logprobs: Option<LogProbs>) -> Accepted {
        self.sequence.tokens.push(token);
        self.logprobs.extend(logprobs.clone());
        let mut piece = Piece { token: Some(token), logprobs, choice: self.choice, ..Piece::default() };
        piece.text = self.text.echo.take().unwrap_or_default();
        let reason = if self.limits.ends.binary_search(&token).is_ok() || self.text.push(token, &mut piece.text) {
            Some(FinishReason::Stop)
        } else if self.sequence.generated().len() >= self.limits.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        };
        if reason.is_some() {
            self.text.finish(&mut piece.text);
        }
        self.text.emitted.push_str(&piece.text);
        (piece, reason)
    }

    /// The step that brought tokens is over.
    pub(super) fn mark(&mut self, now: Duration) {
        self.times.first_token.get_or_insert(now);
        self.times.last_token = now;
    }

    /// Text that was held back, when the answer is cut off.
    pub(super) fn release(&mut self) -> Option<Piece> {
        let mut text = self.text.echo.take().unwrap_or_default();
        self.text.finish(&mut text);
        self.text.emitted.push_str(&text);
        (!text.is_empty()).then(|| Piece { text, choice: self.choice, ..Piece::default() })
    }

    pub(super) fn into_output(self, finish_reason: FinishReason) -> Output {
        let Times { submitted, started, first_token, last_token } = self.times;
        let Sequence { tokens: mut prompt_ids, prompt_len, .. } = self.sequence;
        let token_ids = prompt_ids.split_off(prompt_len);
        let usage = Usage {
            prompt_tokens: prompt_len,
            cached_tokens: 0,
            completion_tokens: token_ids.len(),
            drafted_tokens: self.drafting.drafted,
            accepted_tokens: self.drafting.accepted,
            draft_errors: self.drafting.errors,
            ttft: first_token.map_or(Duration::ZERO, |t| t.saturating_sub(submitted)),
            prefill: first_token.zip(started).map_or(Duration::ZERO, |(t, s)| t.saturating_sub(s)),
            decode: first_token.map_or(Duration::ZERO, |t| last_token.saturating_sub(t)),
        };
        Output {
            choice: self.choice,
            text: self.text.emitted,
            token_ids,
            prompt_ids,
            finish_reason,
            logprobs: self.sampling.logprobs.map(|_| self.logprobs),
            prompt_logprobs: self.prompt_logprobs.map(|(_, logprobs)| logprobs),
            seed: self.sampling.seed,
            usage,
        }
    }
}

/// Runs a foreign part's code; a panic becomes an error that names the part.
pub(super) fn guarded<T>(room: &'static str, name: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic may leave broken is the part's own state, and nobody asks it again.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let message = match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(other) => other.downcast_ref::<&str>().map_or("no message".to_string(), |s| s.to_string()),
        };
        Err(Error::Extension { room, name: name.to_string(), message })
    })
}
