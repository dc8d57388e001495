//! A queue from one thread to one reader, who waits for it as a blocked thread or as an asynchronous task.
//!
//! Between the engine's thread and the host. Needs no runtime: the reader leaves a [`Waker`] or blocks on a condition
//! variable. Must not know what goes through it.
//!
//! The queue has no bound of its own, so that a slow reader stops nobody; its users say what bounds it.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The end that items are put in; dropping it ends the queue once it is empty.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// The end that items are taken from.
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    has_sender: bool,
    has_receiver: bool,
    /// Of the task that found nothing last.
    waker: Option<Waker>,
}

/// A new queue.
pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State { items: VecDeque::new(), has_sender: true, has_receiver: true, waker: None };
    let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Shared<T> {
    /// Nothing that runs under the lock can leave the state half changed.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the reader, in whichever way it waits.
    fn notify(&self, waker: Option<Waker>) {
        self.changed.notify_one();
        if let Some(waker) = waker {
            // The waker is the host's code. Its panic must not become the sender's.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl<T> Sender<T> {
    /// Puts an item in; gives it back if nobody is left to take it.
    pub(crate) fn send(&self, item: T) -> Result<(), T> {
        let mut state = self.0.lock();
        if !state.has_receiver {
            return Err(item);
        }
        state.items.push_back(item);
        let waker = state.waker.take();
        drop(state);
        self.0.notify(waker);
        Ok(())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_sender = false;
        let waker = state.waker.take();
        drop(state);
        self.0.notify(waker);
    }
}

impl<T> Receiver<T> {
    /// Takes the next item, blocking this thread until there is one; `None` once the queue has ended.
    pub(crate) fn recv(&self) -> Option<T> {
        let mut state = self.0.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if !state.has_sender {
                return None;
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the next item, or has the task woken when there is one or the queue has ended.
    pub(crate) fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        if let Some(item) = state.items.pop_front() {
            return Poll::Ready(Some(item));
        }
        if !state.has_sender {
            return Poll::Ready(None);
        }
        // Cloning and dropping a waker runs the host's code, which must not find the lock taken.
        if !state.waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            drop(state);
            let new = context.waker().clone();
            let mut state = self.0.lock();
            if !state.items.is_empty() || !state.has_sender {
                let item = state.items.pop_front();
                drop(state);
                drop(new);
                return Poll::Ready(item);
            }
            let old = state.waker.replace(new);
            drop(state);
            drop(old);
        }
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_receiver = false;
        let (items, waker) = (std::mem::take(&mut state.items), state.waker.take());
        drop(state);
        drop((items, waker));
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.lock();
        f.debug_struct("Receiver")
            .field("waiting_items", &state.items.len())
            .field("has_sender", &state.has_sender)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
