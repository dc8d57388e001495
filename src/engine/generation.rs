//! One request as an iterator.

use std::collections::VecDeque;

use super::output::{Event, Output, Piece};
use super::Engine;
use crate::types::{FinishReason, SequenceId};
use crate::Result;

/// The pieces of one request's answer, or of all its answers; see [`Engine::generate`].
///
/// The iterator ends after the last piece; [`output`](Generation::output) then has the whole. The failure of an answer
/// is an item too, the last one of that answer. Dropping the iterator earlier cancels the request.
#[derive(Debug)]
pub struct Generation<'a> {
    engine: &'a mut Engine,
    id: SequenceId,
    ready: VecDeque<Result<Piece>>,
    outputs: Vec<Output>,
    ended: bool,
}

impl<'a> Generation<'a> {
    pub(super) fn new(engine: &'a mut Engine, id: SequenceId) -> Generation<'a> {
        Generation { engine, id, ready: VecDeque::new(), outputs: Vec::new(), ended: false }
    }

    /// The request.
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// The finished answer, once the iterator has ended; of several the first.
    pub fn output(&self) -> Option<&Output> {
        self.outputs().first()
    }

    /// The finished answers in the order of their choice index, once the iterator has ended.
    pub fn outputs(&self) -> &[Output] {
        if self.ended && self.ready.is_empty() {
            &self.outputs
        } else {
            &[]
        }
    }

    /// Runs to the end; of several answers the first.
    ///
    /// # Errors
    /// The first failure of an answer.
    pub fn into_output(self) -> Result<Output> {
        let mut outputs = self.into_outputs()?;
        // The iterator ends only with the request's last `Finished` event.
        Ok(outputs.swap_remove(0))
    }

    /// Runs to the end of all answers, in the order of their choice index.
    ///
    /// # Errors
    /// The first failure of an answer.
    pub fn into_outputs(mut self) -> Result<Vec<Output>> {
        for piece in &mut self {
            piece?;
        }
        Ok(std::mem::take(&mut self.outputs))
    }

    /// Takes this request's events out of `events`; the others wait for the host's next step.
    fn sort(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Token { id, piece } if id == self.id => self.ready.push_back(Ok(piece)),
                Event::Finished { id, remaining, output, error } if id == self.id => {
                    self.outputs.push(output);
                    self.outputs.sort_by_key(|output| output.choice);
                    self.ready.extend(error.map(Err));
                    self.ended = remaining == 0;
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
        if !self.ended && self.ready.is_empty() {
            let events = std::mem::take(&mut self.engine.events);
            self.sort(events);
        }
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(piece);
            }
            if self.ended {
                return None;
            }
            let mut events = Vec::new();
            self.engine.advance(&mut events);
            self.sort(events);
        }
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // Nobody is left to hear of this request.
            self.engine.end_request(self.id, FinishReason::Cancelled, &mut Vec::new());
            self.engine.events.retain(|event| event.id() != self.id);
        }
    }
}
