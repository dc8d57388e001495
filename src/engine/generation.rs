//! One request as an iterator.

use std::collections::VecDeque;

use super::output::{Event, Output, Piece};
use super::Engine;
use crate::types::{FinishReason, SequenceId};
use crate::{Error, Result};

/// The pieces of one answer; see [`Engine::generate`].
///
/// The iterator ends after the last piece; [`output`](Generation::output) then has the whole. A failed request
/// yields its error as the last item. Dropping it earlier cancels the request.
#[derive(Debug)]
pub struct Generation<'a> {
    engine: &'a mut Engine,
    id: SequenceId,
    ready: VecDeque<Piece>,
    error: Option<Error>,
    output: Option<Output>,
}

impl<'a> Generation<'a> {
    pub(super) fn new(engine: &'a mut Engine, id: SequenceId) -> Generation<'a> {
        Generation { engine, id, ready: VecDeque::new(), error: None, output: None }
    }

    /// The request.
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// The finished request, once the iterator has ended.
    pub fn output(&self) -> Option<&Output> {
        self.output.as_ref().filter(|_| self.ready.is_empty() && self.error.is_none())
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// The request's own failure.
    pub fn into_output(mut self) -> Result<Output> {
        for piece in &mut self {
            piece?;
        }
        // The iterator ends only after the `Finished` event, or with an error, which was returned above.
        Ok(self.output.take().expect("an ended generation has its output"))
    }

    /// Takes this request's events out of `events`; the others wait for the host's next step.
    fn sort(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Token { id, piece } if id == self.id => self.ready.push_back(piece),
                Event::Finished { id, output, error } if id == self.id => {
                    self.output = Some(output);
                    self.error = error;
                }
                other => self.engine.events.push(other),
            }
        }
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        // The request may have ended at submit.
        if self.output.is_none() && self.ready.is_empty() {
            let events = std::mem::take(&mut self.engine.events);
            self.sort(events);
        }
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(Ok(piece));
            }
            if self.output.is_some() {
                return self.error.take().map(Err);
            }
            let mut events = Vec::new();
            self.engine.advance(&mut events);
            self.sort(events);
        }
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if self.output.is_none() {
            // Nobody is left to hear of this request.
            self.engine.end(self.id, FinishReason::Cancelled, None, &mut Vec::new());
            self.engine.events.retain(|event| event.id() != self.id);
        }
    }
}
