//! The engine's thread: takes commands between steps, steps while there is work, passes events to their streams.
//!
//! A panic that the engine did not catch itself ends the thread in order: every stream hears why. Whatever happens, the
//! senders of all streams are dropped when the thread ends, so that no reader waits for it.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{mpsc, Arc, OnceLock};

use super::token_stream::{Item, TokenStream};
use super::Link;
use crate::engine::output::Event;
use crate::engine::request::Request;
use crate::engine::Engine;
use crate::stream::{channel, Sender};
use crate::types::SequenceId;
use crate::{Error, Result};

/// Commands that are worked off between two steps at most.
const COMMANDS_PER_STEP: usize = 64;

/// What the front asks of the thread.
pub(super) enum Command {
    Submit {
        request: Box<Request>,
        link: Arc<Link>,
        answer: Sender<Result<TokenStream>>,
    },
    /// The stream stays and hears of the end.
    Cancel(SequenceId),
    /// The stream is gone.
    Abandon(SequenceId),
    Inspect(Box<dyn FnOnce(&Engine) + Send>),
    /// The last handle is gone.
    Close,
    Shutdown,
}

/// Whether the thread goes on.
enum Life {
    Goes,
    /// Nobody is left who could want the engine.
    Closes,
    ShutsDown,
    /// The engine failed; its state may be half changed if it panicked.
    Fails {
        reason: String,
        panicked: bool,
    },
}

pub(super) struct Actor<S> {
    engine: Engine,
    step: S,
    inbox: mpsc::Receiver<Command>,
    reason: Arc<OnceLock<String>>,
    streams: HashMap<SequenceId, Sender<Item>>,
    /// The first request that came through the front; ids grow, so those before it are the host's own.
    first: Option<SequenceId>,
    /// Events of requests that were submitted before there was a thread.
    unclaimed: Vec<Event>,
    closed: bool,
}

impl<S: FnMut(&mut Engine) -> Result<Vec<Event>>> Actor<S> {
    pub(super) fn new(
        engine: Engine,
        inbox: mpsc::Receiver<Command>,
        reason: Arc<OnceLock<String>>,
        step: S,
    ) -> Actor<S> {
        let (streams, unclaimed) = (HashMap::new(), Vec::new());
        Actor { engine, step, inbox, reason, streams, first: None, unclaimed, closed: false }
    }

    /// The thread's life; answers the engine if it can still be used.
    pub(super) fn run(mut self) -> Option<Engine> {
        loop {
            let turn = AssertUnwindSafe(|| match self.take_commands() {
                Life::Goes => self.advance(),
                other => other,
            });
            // The engine catches what a request's own parts do; a panic that comes through leaves it half changed.
            let life = catch_unwind(turn).unwrap_or_else(|panic| Life::Fails {
                reason: format!("its thread panicked: {}", message(&*panic)),
                panicked: true,
            });
            match life {
                Life::Goes => {}
                Life::Closes => {
                    self.say_why("its last handle is gone");
                    return None;
                }
                Life::ShutsDown => {
                    self.say_why("it was shut down");
                    return self.wind_down(None);
                }
                Life::Fails { reason, panicked } => {
                    self.say_why(&reason);
                    let engine = self.wind_down(Some(&reason));
                    return engine.filter(|_| !panicked);
                }
            }
        }
    }

    /// Works off the commands that are there, and waits for one while there is nothing else to do.
    fn take_commands(&mut self) -> Life {
        // A flood of commands must not keep the engine from its steps.
        for _ in 0..COMMANDS_PER_STEP {
            if self.closed && self.streams.is_empty() {
                return Life::Closes;
            }
            let command = if self.engine.is_idle() {
                self.lose_forgotten_streams();
                // Without senders there is no handle and no stream.
                match self.inbox.recv() {
                    Ok(command) => command,
                    Err(mpsc::RecvError) => return Life::Closes,
                }
            } else {
                match self.inbox.try_recv() {
                    Ok(command) => command,
                    Err(_) => return Life::Goes,
                }
            };
            match command {
                Command::Submit { request, link, answer } => self.submit(*request, link, &answer),
                Command::Cancel(id) => {
                    self.engine.cancel(id);
                }
                Command::Abandon(id) => {
                    // Its last events find no stream.
                    self.streams.remove(&id);
                    self.engine.cancel(id);
                }
                Command::Inspect(look) => {
                    // What it found may be dropped here, if nobody waits for it any more.
                    let _ = catch_unwind(AssertUnwindSafe(|| look(&self.engine)));
                }
                Command::Close => self.closed = true,
                Command::Shutdown => return Life::ShutsDown,
            }
        }
        Life::Goes
    }

    fn submit(&mut self, request: Request, link: Arc<Link>, answer: &Sender<Result<TokenStream>>) {
        // Templates, samplers and the request's own values may be foreign code. Until a request is accepted, the
        // engine has not changed.
        let submitted = catch_unwind(AssertUnwindSafe(|| self.engine.submit(request))).unwrap_or_else(|panic| {
            Err(Error::Extension { room: "engine", name: "submit".to_string(), message: message(&*panic) })
        });
        let stream = submitted.map(|id| {
            self.first.get_or_insert(id);
            let (sender, items) = channel();
            self.streams.insert(id, sender);
            TokenStream::new(id, link, items)
        });
        // If nobody waits any more, the stream is dropped with the answer, and abandons the request.
        let _ = answer.send(stream);
    }

    fn advance(&mut self) -> Life {
        match (self.step)(&mut self.engine) {
            Ok(events) => self.dispatch(events),
            Err(error) => return Life::Fails { reason: format!("a step failed: {error}"), panicked: false },
        }
        Life::Goes
    }

    fn dispatch(&mut self, events: Vec<Event>) {
        for event in events {
            let id = event.id();
            if self.first.is_none_or(|first| id < first) {
                self.unclaimed.push(event);
                continue;
            }
            let (item, goes_on) = match event {
                Event::Token { piece, .. } => (Item::Piece(piece), true),
                Event::Finished { remaining, output, error, .. } => {
                    (Item::Finished { output: Box::new(output), error, remaining }, remaining > 0)
                }
            };
            let stream = if goes_on { self.streams.get(&id) } else { None };
            // A reader that is gone has sent its `Abandon`.
            match stream {
                Some(stream) => drop(stream.send(item)),
                None => drop(self.streams.remove(&id).map(|stream| stream.send(item))),
            }
        }
    }

    /// An idle engine owes nothing to any stream; should it have lost a request, its reader must not wait.
    fn lose_forgotten_streams(&mut self) {
        for (id, stream) in self.streams.drain() {
            let reason = format!("it ended {id} without a word");
            let _ = stream.send(Item::Lost(Error::Unavailable { reason }));
        }
    }

    /// Ends all streams: with what the engine has for them, or with the failure. The engine keeps the host's own
    /// requests, and reports their events at its next step.
    fn wind_down(mut self, failure: Option<&str>) -> Option<Engine> {
        let cancelled = catch_unwind(AssertUnwindSafe(|| {
            for &id in self.streams.keys() {
                self.engine.cancel(id);
            }
            std::mem::take(&mut self.engine.events)
        }));
        let usable = cancelled.is_ok();
        match failure {
            Some(reason) => {
                for (_, stream) in self.streams.drain() {
                    let _ = stream.send(Item::Lost(Error::Unavailable { reason: reason.to_string() }));
                }
                // Of the events, those of the host's own requests are kept.
                self.dispatch(cancelled.unwrap_or_default());
            }
            None => {
                self.dispatch(cancelled.unwrap_or_default());
                self.lose_forgotten_streams();
            }
        }
        self.engine.events = self.unclaimed;
        usable.then_some(self.engine)
    }

    fn say_why(&self, reason: &str) {
        let _ = self.reason.set(reason.to_string());
    }
}

/// The words of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_string()
}
