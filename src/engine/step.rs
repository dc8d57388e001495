//! One step: admit, plan, run the model, choose tokens, say what happened.

use super::answer::{Choice, Sampling};
use super::output::Event;
use super::Engine;
use crate::model::Span;
use crate::schedule::{self, Sequence};
use crate::types::{FinishReason, SequenceId};
use crate::{Error, ResourceError, Result};

impl Engine {
    pub(super) fn advance(&mut self, events: &mut Vec<Event>) {
        self.expire(events);
        self.admit();
        let shares = self.reserve(events);
        let choices = self.forward(&shares);
        let now = self.clock.elapsed();
        let mut ended = Vec::new();
        for (id, choice) in choices {
            let Some(answer) = self.running.iter_mut().find(|a| a.id == id) else { continue };
            match choice {
                Ok(choice) => {
                    let (piece, reason) = answer.accept(choice, &self.tokenizer, now);
                    events.push(Event::Token { id, piece });
                    ended.extend(reason.map(|reason| (id, reason, None)));
                }
                Err(error) => ended.push((id, FinishReason::Error, Some(error))),
            }
        }
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

    /// Starts waiting requests in order of arrival, as long as all blocks that they may need are there.
    fn admit(&mut self) {
        while self.running.len() < self.max_sequences {
            let Some(next) = self.waiting.front() else { return };
            if self.committed + next.sequence.blocks > self.arena.capacity() {
                return;
            }
            let Some(mut answer) = self.waiting.pop_front() else { return };
            answer.times.started = Some(self.clock.elapsed());
            self.committed += answer.sequence.blocks;
            self.running.push(answer);
        }
    }

    /// Plans the step and takes its blocks. A request that the system has no memory for ends.
    fn reserve(&mut self, events: &mut Vec<Event>) -> Vec<(SequenceId, usize)> {
        // No step goes past a place where the cache policy acts.
        let runnable = |s: &Sequence| self.layout.runnable(s.cache.len(), s.pending(), s.prompt_len);
        let pending: Vec<usize> = self.running.iter().map(|a| runnable(&a.sequence)).collect();
        let (mut shares, mut failed) = (Vec::new(), Vec::new());
        for share in schedule::plan(&pending, self.step_tokens) {
            let answer = &mut self.running[share.index];
            match answer.sequence.cache.reserve(&mut self.arena, share.rows) {
                Ok(()) => shares.push((answer.id, share.rows)),
                Err(_) => failed.push(answer.id),
            }
        }
        for id in failed {
            self.end(id, FinishReason::Error, Some(ResourceError::OutOfMemory.into()), events);
        }
        shares
    }

    /// Runs the model on each share's rows; sequences that have no token left to run get a new one.
    fn forward(&mut self, shares: &[(SequenceId, usize)]) -> Vec<(SequenceId, Result<Choice>)> {
        let Engine { running, decoder, arena, masked, distribution, layout, .. } = self;
        let mut spans = Vec::with_capacity(shares.len());
        let mut choosers: Vec<(SequenceId, &Sequence, &mut Sampling)> = Vec::new();
        let mut wanted = Vec::new();
        let mut row = 0;
        // Shares are in the order of the running requests.
        let mut remaining = shares.iter().peekable();
        for answer in running.iter_mut() {
            let Some(&(_, rows)) = remaining.next_if(|(id, _)| *id == answer.id) else { continue };
            let sequence = &answer.sequence;
            spans.push(Span { tokens: sequence.next(rows), cache: &sequence.cache });
            row += rows;
            if rows == sequence.pending() {
                wanted.push(row - 1);
                choosers.push((answer.id, sequence, &mut answer.sampling));
            }
        }
        let vocab = decoder.spec().vocab_size;
        let mut choices = Vec::with_capacity(choosers.len());
        decoder.forward(arena, &spans, &wanted, &mut |first, logits| {
            for ((id, sequence, sampling), logits) in choosers[first..].iter_mut().zip(logits.chunks_exact_mut(vocab)) {
                choices.push((*id, sampling.choose(sequence, logits, masked, distribution)));
            }
        });
        for (id, rows) in shares {
            if let Some(answer) = running.iter_mut().find(|a| a.id == *id) {
                let Sequence { cache, prompt_len, .. } = &mut answer.sequence;
                cache.advance(layout, arena, *rows);
                choices.extend(cache.act(layout, arena, *prompt_len).err().map(|error| (*id, Err(error))));
            }
        }
        choices
    }

    /// Takes a request out, frees its blocks and reports its end; `false` if there is none of this name.
    pub(super) fn end(
        &mut self,
        id: SequenceId,
        reason: FinishReason,
        error: Option<Error>,
        events: &mut Vec<Event>,
    ) -> bool {
        let mut answer = if let Some(at) = self.running.iter().position(|a| a.id == id) {
            let answer = self.running.remove(at);
            self.committed -= answer.sequence.blocks;
            answer
        } else if let Some(answer) = self.waiting.iter().position(|a| a.id == id).and_then(|at| self.waiting.remove(at))
        {
            answer
        } else {
            return false;
        };
        answer.sequence.cache.clear(&mut self.arena);
        if let Some(piece) = answer.release() {
            events.push(Event::Token { id, piece });
        }
        events.push(Event::Finished { id, output: answer.into_output(reason), error });
        true
    }
}
