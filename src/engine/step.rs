//! One step: admit, draft, plan, run the model, choose tokens, say what happened.

use super::answer::{guarded, Accepted, Answer, DraftState};
use super::output::Event;
use super::Engine;
use crate::cache::SequenceCache;
use crate::model::Span;
use crate::sample::Distribution;
use crate::schedule::{self, Pending, Share};
use crate::types::{FinishReason, SequenceId, TokenId};
use crate::{Error, ResourceError, Result};

/// What a computed row is for.
#[derive(Clone, Copy)]
enum Use {
    /// How probable this next token of the prompt is.
    Report(TokenId),
    /// The next token, or the next one along a draft.
    Choose,
}

/// A row whose logits somebody needs.
struct Wanted {
    /// Place of the answer among the running ones.
    index: usize,
    usage: Use,
}

/// The rows of a step.
struct Batch {
    /// Per share.
    tokens: Vec<Vec<TokenId>>,
    /// Rows whose logits are wanted, counted over all shares.
    rows: Vec<usize>,
    /// What each of them is for.
    wanted: Vec<Wanted>,
}

impl Batch {
    fn gather(running: &[Answer], shares: &[Share]) -> Batch {
        let mut batch = Batch { tokens: Vec::with_capacity(shares.len()), rows: Vec::new(), wanted: Vec::new() };
        let mut first_row = 0;
        for &Share { index, rows } in shares {
            let Answer { sequence, drafting, prompt_logprobs, limits, .. } = &running[index];
            let first = sequence.cache.len();
            let all = sequence.tokens[first..].iter().chain(drafting.verification.draft());
            batch.tokens.push(all.copied().take(rows).collect());
            for at in first..first + rows {
                let is_last = at + 1 >= sequence.tokens.len();
                let usage = if is_last && limits.max_tokens > 0 {
                    Use::Choose
                } else if !is_last && prompt_logprobs.is_some() && at + 1 < sequence.prompt_len {
                    Use::Report(sequence.tokens[at + 1])
                } else {
                    continue;
                };
                batch.rows.push(first_row + at - first);
                batch.wanted.push(Wanted { index, usage });
            }
            first_row += rows;
        }
        batch
    }
}

/// What became of an answer in a step.
struct Happened {
    id: SequenceId,
    result: Result<Accepted>,
}

/// What a step brings, while it runs.
#[derive(Default)]
struct Step {
    happened: Vec<Happened>,
    /// Answers that split off, with the place of the one that ran their prompt.
    born: Vec<(usize, Answer)>,
    /// Places of answers that failed, with their error: nothing splits off from them any more.
    broken: Vec<(usize, Error)>,
}

impl Step {
    /// Takes in the logits of one row.
    fn take(
        &mut self,
        answer: &mut Answer,
        wanted: &Wanted,
        logits: &mut [f32],
        distribution: &mut Distribution,
        next_id: &mut u64,
    ) {
        let Wanted { index, usage } = *wanted;
        if let Use::Report(token) = usage {
            self.broken.extend(answer.report(token, logits).err().map(|error| (index, error)));
            return;
        }
        if !answer.drafting.verification.is_open() || self.broken.iter().any(|(at, _)| *at == index) {
            return;
        }
        let siblings = std::mem::take(&mut answer.siblings);
        for (choice, session) in (1..).zip(siblings) {
            let mut sibling = answer.sibling(SequenceId(*next_id), choice, session);
            *next_id += 1;
            let result = sibling.choose(&mut logits.to_vec(), distribution);
            self.happened.push(Happened { id: sibling.id, result });
            self.born.push((index, sibling));
        }
        let result = answer.choose(logits, distribution);
        answer.follow(&result);
        self.happened.push(Happened { id: answer.id, result });
    }
}

impl Engine {
    pub(super) fn advance(&mut self, events: &mut Vec<Event>) {
        self.expire(events);
        self.admit();
        if let Some(drafting) = &mut self.drafting {
            drafting.propose(&mut self.running, &self.layout, self.step_tokens);
        }
        let shares = self.reserve(events);
        let happened = self.forward(&shares);
        let mut ended = Vec::new();
        for Happened { id, result } in happened {
            let Some(answer) = self.running.iter().find(|a| a.id == id) else { continue };
            match result {
                Ok((piece, reason)) => {
                    events.push(Event::Token { id: answer.request, piece });
                    ended.extend(reason.map(|reason| (id, reason, None)));
                }
                Err(error) => ended.push((id, FinishReason::Error, Some(error))),
            }
        }
        // A request for log-probabilities of its prompt alone ends with the prompt.
        let scored = |a: &&Answer| a.limits.max_tokens == 0 && a.sequence.pending() == 0;
        ended.extend(self.running.iter().filter(scored).map(|a| (a.id, FinishReason::Length, None)));
        for (id, reason, error) in ended {
            self.end(id, reason, error, events);
        }
    }

    /// Ends requests whose deadline has passed.
    fn expire(&mut self, events: &mut Vec<Event>) {
        let now = self.clock.elapsed();
        let all = self.running.iter().chain(&self.waiting);
        let late: Vec<SequenceId> =
            all.filter(|a| a.limits.deadline.is_some_and(|deadline| now >= deadline)).map(|a| a.id).collect();
        for id in late {
            self.end(id, FinishReason::Deadline, None, events);
        }
    }

    /// Starts waiting requests in order of arrival, as long as there is room for all their answers and all blocks that
    /// they may need.
    fn admit(&mut self) {
        while let Some(next) = self.waiting.front() {
            let running: usize = self.running.iter().map(|a| 1 + a.siblings.len()).sum();
            if running + 1 + next.siblings.len() > self.max_sequences
                || self.committed + next.claimed() > self.arena.capacity()
            {
                return;
            }
            let Some(mut answer) = self.waiting.pop_front() else { return };
            answer.times.started = Some(self.clock.elapsed());
            self.committed += answer.claimed();
            if let Some(drafting) = &mut self.drafting {
                drafting.add(&mut answer);
            }
            self.running.push(answer);
        }
    }

    /// Plans the step and takes its blocks. A request that the system has no memory for ends.
    fn reserve(&mut self, events: &mut Vec<Event>) -> Vec<Share> {
        let pending: Vec<Pending> = self
            .running
            .iter()
            .map(|a| Pending {
                // No step goes past a place where the cache policy acts.
                rows: self.layout.runnable(
                    a.sequence.cache.len(),
                    a.sequence.pending() + a.drafting.verification.draft().len(),
                    a.sequence.prompt_len,
                ),
                decodes: a.sequence.decodes(),
            })
            .collect();
        let (mut shares, mut failed) = (Vec::new(), Vec::new());
        for share in schedule::plan(&pending, self.step_tokens) {
            let answer = &mut self.running[share.index];
            match answer.sequence.cache.reserve(&mut self.arena, share.rows) {
                Ok(()) => shares.push(share),
                Err(_) => failed.push(answer.id),
            }
        }
        for id in failed {
            // Shares name places among the running ones, which move up.
            if let Some(at) = self.running.iter().position(|a| a.id == id) {
                shares.iter_mut().filter(|s| s.index > at).for_each(|s| s.index -= 1);
            }
            self.end(id, FinishReason::Error, Some(ResourceError::OutOfMemory.into()), events);
        }
        shares
    }

    /// Runs the model on each share's rows, and chooses tokens for the sequences that have run all of theirs.
    fn forward(&mut self, shares: &[Share]) -> Vec<Happened> {
        let Engine { running, model, arena, distribution, layout, next_id, .. } = self;
        let vocab = model.vocab_size();
        let lengths: Vec<usize> = shares.iter().map(|share| running[share.index].sequence.tokens.len()).collect();
        let batch = Batch::gather(running, shares);
        // The caches leave their answers for the time of the forward, in which tokens are chosen already.
        let caches: Vec<SequenceCache> =
            shares.iter().map(|share| std::mem::take(&mut running[share.index].sequence.cache)).collect();
        let spans = batch.tokens.iter().zip(&caches).map(|(tokens, cache)| Span { tokens, cache });
        let spans: Vec<Span<'_>> = spans.collect();
        let mut step = Step::default();
        let computed = guarded("model", "matrix products", || {
            model.forward(arena, &spans, &batch.rows, &mut |first, logits| {
                for (wanted, logits) in batch.wanted[first..].iter().zip(logits.chunks_exact_mut(vocab)) {
                    step.take(&mut running[wanted.index], wanted, logits, distribution, next_id);
                }
            })?;
            Ok(())
        });
        drop(spans);
        for ((share, &before), mut cache) in shares.iter().zip(&lengths).zip(caches) {
            let sequence = &mut running[share.index].sequence;
            // The last chosen token has not run, and what followed it of a draft is taken back.
            let known = before.max(sequence.tokens.len().saturating_sub(1));
            let kept = known.min(cache.len() + share.rows);
            cache.extend(share.rows);
            // Always possible: nothing is freed between the two.
            let _ = cache.truncate(arena, kept);
            cache.commit(layout, arena);
            let acted = cache.act(layout, arena, sequence.prompt_len);
            step.broken.extend(acted.err().map(|error| (share.index, error)));
            sequence.cache = cache;
        }
        let now = self.clock.elapsed();
        for (share, before) in shares.iter().zip(lengths) {
            let answer = &mut self.running[share.index];
            if answer.sequence.tokens.len() > before {
                answer.mark(now);
            }
        }
        step.born.iter_mut().for_each(|(_, sibling)| sibling.mark(now));
        self.settle(shares, step, computed)
    }

    /// Brings a computed step to its end: answers that split off start to run, drafts are settled, failures are told.
    fn settle(&mut self, shares: &[Share], step: Step, computed: Result<()>) -> Vec<Happened> {
        let Step { mut happened, born, broken } = step;
        if let Err(error) = computed {
            // Who would have split off takes no part: its parent claims its blocks again, until it ends.
            for (index, sibling) in born {
                self.running[index].siblings.push(sibling.sampling.session);
            }
            let ids = shares.iter().map(|share| self.running[share.index].id);
            happened.extend(ids.map(|id| Happened { id, result: Err(again(&error)) }));
            return happened;
        }
        self.separate(born, &broken, &mut happened);
        let failures = broken.into_iter();
        happened.extend(failures.map(|(index, error)| Happened { id: self.running[index].id, result: Err(error) }));
        if let Some(drafting) = &mut self.drafting {
            shares.iter().for_each(|share| drafting.settle(&mut self.running[share.index]));
        } else {
            shares.iter().for_each(|share| self.running[share.index].drafting.verification = Default::default());
        }
        happened
    }

    /// Puts the choices that split off beside the one that ran their prompt. They fail with it.
    fn separate(&mut self, born: Vec<(usize, Answer)>, broken: &[(usize, Error)], happened: &mut Vec<Happened>) {
        for (index, mut answer) in born {
            let parent = &self.running[index].sequence.cache;
            let cache = match broken.iter().find(|(at, _)| *at == index) {
                Some((_, error)) => Err(again(error)),
                None => parent.fork(&self.layout, &mut self.arena),
            };
            match cache {
                Ok(cache) => answer.sequence.cache = cache,
                Err(error) => happened.push(Happened { id: answer.id, result: Err(error) }),
            }
            if let Some(drafting) = &mut self.drafting {
                answer.drafting = DraftState::new(drafting.max_tokens());
                drafting.add(&mut answer);
            }
            self.running.push(answer);
        }
    }

    /// Takes an answer out, frees its blocks and reports its end; `false` if there is none of this name.
    pub(super) fn end(
        &mut self,
        id: SequenceId,
        reason: FinishReason,
        error: Option<Error>,
        events: &mut Vec<Event>,
    ) -> bool {
        let mut answer = if let Some(at) = self.running.iter().position(|a| a.id == id) {
            let answer = self.running.remove(at);
            self.committed -= answer.claimed();
            if let Some(drafting) = &mut self.drafting {
                drafting.remove(id);
            }
            answer
        } else if let Some(answer) = self.waiting.iter().position(|a| a.id == id).and_then(|at| self.waiting.remove(at))
        {
            answer
        } else {
            return false;
        };
        answer.sequence.cache.clear(&mut self.arena);
        let request = answer.request;
        if let Some(piece) = answer.release() {
            events.push(Event::Token { id: request, piece });
        }
        let remaining = self.running.iter().filter(|a| a.request == request).count();
        events.push(Event::Finished { id: request, remaining, output: answer.into_output(reason), error });
        true
    }

    /// Ends all answers of a request; `false` if it has ended already.
    pub(super) fn end_request(&mut self, request: SequenceId, reason: FinishReason, events: &mut Vec<Event>) -> bool {
        let all = self.running.iter().chain(&self.waiting);
        let ids: Vec<SequenceId> = all.filter(|a| a.request == request).map(|a| a.id).collect();
        ids.iter().for_each(|&id| {
            self.end(id, reason, None, events);
        });
        !ids.is_empty()
    }
}

/// The same failure for another request.
fn again(error: &Error) -> Error {
    match error {
        Error::Matmul(error) => error.clone().into(),
        Error::Request(error) => error.clone().into(),
        Error::Resources(error) => error.clone().into(),
        Error::Extension { room, name, message } => {
            Error::Extension { room, name: name.clone(), message: message.clone() }
        }
        other => Error::Extension { room: "model", name: "forward".to_string(), message: other.to_string() },
    }
}
