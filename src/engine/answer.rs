//! One request on its way: its sequence, how its tokens are chosen, its text, its bill.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use super::output::{Output, Piece, Usage};
use crate::sample::{draw, log_probs, Distribution, LogProbs, NoiseKey, SampleContext, SamplerSession};
use crate::schedule::Sequence;
use crate::stream::StopMatcher;
use crate::tokenizer::{Detokenizer, Tokenizer};
use crate::types::{FinishReason, SequenceId, TokenId};
use crate::{Error, RequestError, Result};

/// A request that was accepted.
pub(super) struct Answer {
    pub(super) id: SequenceId,
    pub(super) sequence: Sequence,
    pub(super) sampling: Sampling,
    pub(super) limits: Limits,
    pub(super) text: Text,
    pub(super) logprobs: Vec<LogProbs>,
    pub(super) times: Times,
}

/// When an answer ends.
pub(super) struct Limits {
    pub(super) max_tokens: usize,
    pub(super) deadline: Option<Duration>,
    pub(super) ignore_eos: bool,
    pub(super) stop_tokens: Vec<TokenId>,
}

/// How tokens are chosen.
pub(super) struct Sampling {
    pub(super) name: String,
    pub(super) session: Box<dyn SamplerSession>,
    pub(super) seed: u64,
    /// How many alternatives to report; `None` reports nothing.
    pub(super) logprobs: Option<usize>,
}

/// Tokens become text, and text meets stop strings.
pub(super) struct Text {
    pub(super) detokenizer: Detokenizer,
    pub(super) stop: StopMatcher,
    pub(super) stopped: bool,
    /// All that was emitted.
    pub(super) emitted: String,
}

/// When things happened, on the engine's clock.
#[derive(Default)]
pub(super) struct Times {
    pub(super) submitted: Duration,
    pub(super) started: Option<Duration>,
    pub(super) first_token: Option<Duration>,
    pub(super) last_token: Duration,
}

/// A chosen token, with the model's log-probabilities if asked for.
pub(super) type Choice = (TokenId, Option<LogProbs>);

impl Sampling {
    /// Chooses the token after `sequence` from the model's logits. `masked` tokens are never chosen.
    ///
    /// A panicking sampler fails its request only.
    pub(super) fn choose(
        &mut self,
        sequence: &Sequence,
        logits: &mut [f32],
        masked: &[TokenId],
        distribution: &mut Distribution,
    ) -> Result<Choice> {
        // Which token is chosen is not known yet, and its own value needs the untouched logits.
        let raw = self.logprobs.map(|top| (top, logits.to_vec()));
        for &token in masked {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let Sampling { name, session, seed, .. } = self;
        let position = sequence.tokens.len();
        let noise = NoiseKey { seed: *seed, choice: 0, position: position as u64 };
        let context = SampleContext { prompt: sequence.prompt(), generated: sequence.generated(), position, noise };
        let vocab_size = logits.len();
        let token = guarded(name, || {
            session.distribution(&context, logits, distribution)?;
            distribution.validate(name, vocab_size)?;
            let illegal = |c: &&crate::sample::Candidate| c.probability > 0.0 && masked.binary_search(&c.token).is_ok();
            if let Some(candidate) = distribution.candidates().iter().find(illegal) {
                let reason = format!("token {} has probability, but it is not allowed here", candidate.token);
                return Err(RequestError::InvalidDistribution { sampler: name.clone(), reason }.into());
            }
            let token = draw(distribution, &noise)?;
            session.observe(token);
            Ok(token)
        })?;
        let report = raw.map(|(top, raw)| log_probs(&raw, token, top)).transpose()?;
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
    /// Takes a chosen token in: its text, and whether it ends the answer.
    pub(super) fn accept(
        &mut self,
        choice: Choice,
        tokenizer: &Tokenizer,
        now: Duration,
    ) -> (Piece, Option<FinishReason>) {
        let (token, logprobs) = choice;
        self.sequence.tokens.push(token);
        self.times.first_token.get_or_insert(now);
        self.times.last_token = now;
        self.logprobs.extend(logprobs.clone());
        let mut piece = Piece { text: String::new(), token: Some(token), logprobs };
        let Limits { max_tokens, ignore_eos, stop_tokens, .. } = &self.limits;
        let ends = (!ignore_eos && tokenizer.is_end_of_generation(token)) || stop_tokens.contains(&token);
        let reason = if ends || self.text.push(token, &mut piece.text) {
            Some(FinishReason::Stop)
        } else if self.sequence.generated().len() >= *max_tokens {
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

    /// Text that was held back, when the answer is cut off.
    pub(super) fn release(&mut self) -> Option<Piece> {
        let mut text = String::new();
        self.text.finish(&mut text);
        self.text.emitted.push_str(&text);
        (!text.is_empty()).then(|| Piece { text, ..Piece::default() })
    }

    pub(super) fn into_output(self, finish_reason: FinishReason) -> Output {
        let Times { submitted, started, first_token, last_token } = self.times;
        let Sequence { tokens: mut prompt_ids, prompt_len, .. } = self.sequence;
        let token_ids = prompt_ids.split_off(prompt_len);
        let usage = Usage {
            prompt_tokens: prompt_len,
            completion_tokens: token_ids.len(),
            ttft: first_token.map_or(Duration::ZERO, |t| t.saturating_sub(submitted)),
            prefill: first_token.zip(started).map_or(Duration::ZERO, |(t, s)| t.saturating_sub(s)),
            decode: first_token.map_or(Duration::ZERO, |t| last_token.saturating_sub(t)),
            ..Usage::default()
        };
        Output {
            text: self.text.emitted,
            token_ids,
            prompt_ids,
            finish_reason,
            logprobs: self.sampling.logprobs.map(|_| self.logprobs),
            seed: self.sampling.seed,
            usage,
        }
    }
}

/// Runs a sampler's code; a panic becomes an error that names the sampler.
pub(super) fn guarded<T>(name: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    // What a panic may leave broken is the session's own state, and its request ends with the error.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let message = match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(other) => other.downcast_ref::<&str>().map_or("no message".to_string(), |s| s.to_string()),
        };
        Err(Error::Extension { room: "sample", name: name.to_string(), message })
    })
}
