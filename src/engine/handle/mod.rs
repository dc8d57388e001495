//! The engine on a thread of its own: a front that threads and tasks share.
//!
//! Outermost part of the engine. `actor` is the thread: it owns the engine, takes commands between steps and passes
//! events on; `token_stream` is what a request's reader holds. Here is the front, which turns calls into commands.
//! Needs no asynchronous runtime, and must not know how a step works.

mod actor;
mod token_stream;

use std::fmt;
use std::future::Future;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{mpsc, Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::thread::{JoinHandle, ThreadId};

pub use token_stream::TokenStream;

use super::output::{Event, Output as Finished};
use super::request::Request;
use super::Engine;
use crate::stream::{channel, Receiver};
use crate::types::SequenceId;
use crate::{BuildError, Error, Result};
use actor::{Actor, Command};

/// The front of an [`Engine`] that runs on its own thread; see [`Engine::spawn`].
///
/// Clones lead to the same engine. Any number of threads and tasks may submit and read at once; the engine runs their
/// requests together.
///
/// ```
/// use candlewick::testing::TinyModel;
/// use candlewick::{Engine, Request};
///
/// # fn main() -> candlewick::Result<()> {
/// let handle = Engine::builder(TinyModel::llama().build()?).threads(1).build()?.spawn()?;
/// let answers: Vec<String> = std::thread::scope(|scope| {
///     let readers: Vec<_> = ["Once upon a time", "Hello"]
///         .into_iter()
///         .map(|prompt| {
///             let handle = handle.clone();
///             scope.spawn(move || -> candlewick::Result<String> {
///                 let mut text = String::new();
///                 for piece in handle.submit(Request::prompt(prompt).max_tokens(8))? {
///                     text.push_str(&piece?.text);
///                 }
///                 Ok(text)
///             })
///         })
///         .collect();
///     readers.into_iter().map(|reader| reader.join().expect("no reader panics")).collect::<candlewick::Result<_>>()
/// })?;
/// let mut engine = handle.shutdown()?;
/// assert_eq!(answers[1], engine.complete(Request::prompt("Hello").max_tokens(8))?.text);
/// # Ok(())
/// # }
/// ```
///
/// # When the thread ends
/// With [`shutdown`](EngineHandle::shutdown); when the last handle is gone and no stream is running; and when the engine
/// itself fails, which ends all streams with [`Error::Unavailable`]. Calls after that give the same error. Nothing waits
/// for a thread that is gone.
///
/// Calls wait for the step that is running, as commands are taken between steps. A call from the engine's own thread
/// (from inside a sampler, say) could only wait for itself, and is refused with [`Error::Unavailable`].
#[derive(Clone)]
pub struct EngineHandle(Arc<Front>);

/// What all clones of a handle share.
struct Front {
    link: Arc<Link>,
    thread: Mutex<Option<JoinHandle<Option<Engine>>>>,
}

/// The way to the thread; streams keep it beyond the handles.
struct Link {
    commands: mpsc::Sender<Command>,
    engine_thread: ThreadId,
    /// Why the thread has ended; written before it ends.
    reason: Arc<OnceLock<String>>,
}

impl Engine {
    /// Moves the engine to a thread of its own and answers the front to it.
    ///
    /// Requests that were submitted before go on there. Nobody streams them, so their events are kept, and the first
    /// [`step`](Engine::step) of the engine that [`shutdown`](EngineHandle::shutdown) gives back reports them. They do
    /// not keep the thread alive.
    ///
    /// # Errors
    /// [`BuildError::Threads`] if the system starts no thread; the engine is lost then.
    pub fn spawn(self) -> Result<EngineHandle> {
        EngineHandle::start(self, Engine::step)
    }
}

impl EngineHandle {
    /// `step` stands for [`Engine::step`], so that tests can make it fail.
    fn start(
        engine: Engine,
        step: impl FnMut(&mut Engine) -> Result<Vec<Event>> + Send + 'static,
    ) -> Result<EngineHandle> {
        let (commands, inbox) = mpsc::channel();
        let reason = Arc::new(OnceLock::new());
        let actor = Actor::new(engine, inbox, Arc::clone(&reason), step);
        let thread = std::thread::Builder::new()
            .name("candlewick-engine".to_string())
            .spawn(move || actor.run())
            .map_err(|error| BuildError::Threads { threads: 1, error })?;
        let link = Arc::new(Link { commands, engine_thread: thread.thread().id(), reason });
        Ok(EngineHandle(Arc::new(Front { link, thread: Mutex::new(Some(thread)) })))
    }

    /// Takes a request; its pieces come through the stream. Blocks until the engine has looked at it, which is after
    /// the step that is running; tasks use [`submit_async`](EngineHandle::submit_async).
    ///
    /// # Errors
    /// As [`Engine::submit`]; [`Error::Unavailable`] if the engine is gone.
    pub fn submit(&self, request: Request) -> Result<TokenStream> {
        let link = &self.0.link;
        link.refuse_own_thread()?;
        match link.submit(request).answer.recv() {
            Some(answer) => answer,
            None => Err(link.unavailable()),
        }
    }

    /// As [`submit`](EngineHandle::submit), without blocking: the request is on its way when this returns, and the
    /// future gives its stream. Dropping the future cancels the request.
    pub fn submit_async(&self, request: Request) -> Submission {
        self.0.link.submit(request)
    }

    /// Submits a request and waits for its end.
    ///
    /// # Errors
    /// As [`submit`](EngineHandle::submit), and the request's own failure.
    pub fn complete(&self, request: Request) -> Result<Finished> {
        self.submit(request)?.into_output()
    }

    /// Ends a request, as [`TokenStream::cancel`] does. Returns at once; nothing happens if it has ended already.
    pub fn cancel(&self, id: SequenceId) {
        self.0.link.send(Command::Cancel(id));
    }

    /// Runs `f` on the engine between two steps and answers what it says, such as
    /// [`kv_blocks_in_use`](Engine::kv_blocks_in_use) or the tokens that [`encode`](Engine::encode) makes of a request.
    /// All requests wait meanwhile.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the engine is gone.
    ///
    /// # Panics
    /// If `f` panics, the panic continues here; the engine goes on.
    pub fn inspect<T: Send + 'static>(&self, f: impl FnOnce(&Engine) -> T + Send + 'static) -> Result<T> {
        let link = &self.0.link;
        link.refuse_own_thread()?;
        let (answer, receiver) = channel();
        link.send(Command::Inspect(Box::new(move |engine| {
            // The panic is handed to the caller whole, and the engine was only looked at.
            let result = catch_unwind(AssertUnwindSafe(|| f(engine)));
            let _ = answer.send(result);
        })));
        match receiver.recv() {
            Some(Ok(value)) => Ok(value),
            Some(Err(panic)) => resume_unwind(panic),
            None => Err(link.unavailable()),
        }
    }

    /// Stops the thread after the step that is running and gives the engine back. Requests that are not done are
    /// cancelled: their streams get what was held back and end with [`FinishReason::Cancelled`].
    ///
    /// An engine whose step failed is given back too: what it can still do depends on the failure.
    ///
    /// [`FinishReason::Cancelled`]: crate::FinishReason::Cancelled
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the thread panicked or another handle was faster.
    pub fn shutdown(self) -> Result<Engine> {
        let link = &self.0.link;
        link.refuse_own_thread()?;
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = thread.ok_or_else(|| link.unavailable())?;
        link.send(Command::Shutdown);
        // The thread catches panics itself; one that escapes has the same meaning.
        thread.join().ok().flatten().ok_or_else(|| link.unavailable())
    }
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineHandle").field("stopped", &self.0.link.reason.get()).finish_non_exhaustive()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // Streams may still be running; the thread ends after the last of them.
        self.link.send(Command::Close);
    }
}

impl Link {
    /// A thread that is gone takes no command: whoever waits for an answer finds the queue ended.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    fn submit(self: &Arc<Self>, request: Request) -> Submission {
        let (answer, receiver) = channel();
        self.send(Command::Submit { request: Box::new(request), link: Arc::clone(self), answer });
        Submission { link: Arc::clone(self), answer: receiver }
    }

    fn unavailable(&self) -> Error {
        let reason = self.reason.get().cloned().unwrap_or_else(|| "its thread has ended".to_string());
        Error::Unavailable { reason }
    }

    fn refuse_own_thread(&self) -> Result<()> {
        if std::thread::current().id() != self.engine_thread {
            return Ok(());
        }
        let reason = "the call comes from the engine's own thread, which would wait for itself".to_string();
        Err(Error::Unavailable { reason })
    }
}

/// A request on its way to the engine: a future that gives its stream; see [`EngineHandle::submit_async`].
///
/// # Errors
/// As [`EngineHandle::submit`]. Polled again after that, it says [`Error::Unavailable`].
#[must_use = "dropping it cancels the request"]
pub struct Submission {
    link: Arc<Link>,
    answer: Receiver<Result<TokenStream>>,
}

impl Future for Submission {
    type Output = Result<TokenStream>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<TokenStream>> {
        self.answer.poll_recv(context).map(|answer| answer.unwrap_or_else(|| Err(self.link.unavailable())))
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission").field("answer", &self.answer).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
