//! The engine's side of drafting: asks for drafts, and keeps a drafter's failure from touching any answer.

use std::sync::Arc;

use super::answer::{guarded, Answer};
use crate::cache::CacheLayout;
use crate::draft::{DraftBatch, DraftContext, DraftJob, Drafter, Verification};
use crate::types::SequenceId;
use crate::{ResourceError, Result};

/// A drafter at work.
pub(super) struct Drafting {
    drafter: Arc<dyn Drafter>,
    context: DraftContext,
    /// Absent if the drafter could not start again.
    batch: Option<Box<dyn DraftBatch>>,
    /// Whether the batch took the place of one that panicked, and has not heard of the running sequences.
    fresh: bool,
}

impl Drafting {
    pub(super) fn start(drafter: Arc<dyn Drafter>, context: DraftContext) -> Result<Drafting> {
        let batch = guarded("draft", drafter.name(), || drafter.start(&context))?;
        Ok(Drafting { drafter, context, batch: Some(batch), fresh: false })
    }

    /// The longest draft.
    pub(super) fn max_tokens(&self) -> usize {
        self.context.max_tokens
    }

    /// Calls the batch. After a panic its state may be anything: a fresh one takes its place.
    fn call<T>(&mut self, f: impl FnOnce(&mut dyn DraftBatch) -> Result<T>) -> Result<T> {
        let mut finished = false;
        let batch = &mut self.batch;
        let name = self.drafter.name();
        let result = guarded("draft", name, || {
            let batch = batch.as_deref_mut().ok_or(ResourceError::DrafterGone)?;
            let result = f(batch);
            finished = true;
            result
        });
        if !finished && self.batch.is_some() {
            let old = self.batch.take();
            // Dropping what panicked may panic too.
            let _ = guarded("draft", name, || {
                drop(old);
                Ok(())
            });
            self.batch = guarded("draft", name, || self.drafter.start(&self.context)).ok();
            self.fresh = true;
        }
        result
    }

    /// A sequence begins to run.
    pub(super) fn add(&mut self, answer: &mut Answer) {
        let result = self.call(|batch| batch.add(answer.id, &answer.sequence.tokens));
        answer.drafting.enabled = result.is_ok();
        answer.drafting.errors += usize::from(result.is_err());
    }

    /// A sequence has ended.
    pub(super) fn remove(&mut self, id: SequenceId) {
        // A failure concerns a sequence that is gone, and `call` has replaced a batch that panicked.
        let _ = self.call(|batch| {
            batch.remove(id);
            Ok(())
        });
    }

    /// Gives each answer that decodes a draft, within `budget` rows of the step.
    pub(super) fn propose(&mut self, running: &mut [Answer], layout: &CacheLayout, budget: usize) {
        if std::mem::take(&mut self.fresh) {
            running.iter_mut().filter(|answer| answer.drafting.enabled).for_each(|answer| self.add(answer));
        }
        let decoding = running.iter().filter(|a| a.sequence.decodes()).count();
        if decoding == 0 {
            return;
        }
        let share = budget.saturating_sub(decoding) / decoding;
        let mut jobs = Vec::new();
        for (index, answer) in running.iter_mut().enumerate() {
            // Rows behind a place where the cache policy acts would see what it is to drop.
            let (len, prompt_len) = (answer.sequence.cache.len(), answer.sequence.prompt_len);
            let uncut = layout.runnable(len, 1 + share, prompt_len).saturating_sub(1);
            let max_tokens = answer.draft_room().min(uncut);
            if max_tokens > 0 {
                jobs.push((index, answer.drafting.length.next().min(max_tokens)));
            }
        }
        jobs.retain(|(_, max_tokens)| *max_tokens > 0);
        let mut jobs: Vec<DraftJob<'_>> = jobs
            .into_iter()
            .map(|(index, max_tokens)| {
                let answer = &running[index];
                DraftJob::new(answer.id, &answer.sequence.tokens, max_tokens)
            })
            .collect();
        if jobs.is_empty() {
            return;
        }
        let result = self.call(|batch| batch.propose(&mut jobs));
        let drafts: Vec<(SequenceId, Vec<_>)> =
            jobs.into_iter().map(|job| (job.sequence(), job.into_draft())).collect();
        let vocab_size = self.context.vocab_size;
        for (id, mut draft) in drafts {
            let Some(answer) = running.iter_mut().find(|a| a.id == id) else { continue };
            let drafting = &mut answer.drafting;
            let legal = draft.iter().take_while(|&&token| (token as usize) < vocab_size).count();
            if result.is_err() || legal < draft.len() {
                drafting.enabled = false;
                drafting.errors += 1;
                draft.truncate(if result.is_err() { 0 } else { legal });
            }
            drafting.drafted += draft.len();
            drafting.verification = Verification::new(draft);
        }
    }

    /// Tells the bill, and unless the answer ended with it the drafter, what became of an answer's draft.
    pub(super) fn settle(&mut self, answer: &mut Answer) {
        let verification = std::mem::take(&mut answer.drafting.verification);
        let (drafted, accepted) = (verification.draft().len(), verification.accepted());
        if drafted == 0 {
            return;
        }
        answer.drafting.accepted += accepted;
        answer.drafting.length.verified(drafted, accepted);
        if verification.finished() {
            return;
        }
        let result = self.call(|batch| {
            batch.verified(answer.id, &answer.sequence.tokens, accepted);
            Ok(())
        });
        if result.is_err() {
            answer.drafting.enabled = false;
            answer.drafting.errors += 1;
        }
    }
}
