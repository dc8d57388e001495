//! What the reader of one request holds: its pieces, as an iterator and as a stream.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::stream::FusedStream;
use futures_core::Stream;

use super::actor::Command;
use super::Link;
use crate::engine::output::{Output, Piece};
use crate::stream::Receiver;
use crate::types::SequenceId;
use crate::{Error, Result};

/// What comes from the engine's thread.
pub(super) enum Item {
    Piece(Piece),
    Finished(Box<Output>, Option<Error>),
    /// The engine failed; there is no output.
    Lost(Error),
}

/// The pieces of one answer; see [`EngineHandle::submit`](super::EngineHandle::submit).
///
/// An [`Iterator`], which blocks, and a [`Stream`], which any executor can poll; both take from the same pieces. It ends
/// after the last piece; [`output`](TokenStream::output) then has the whole. A failed request yields its error as the
/// last item. Dropping the stream earlier cancels the request and frees its memory.
///
/// A slow reader holds nobody up: pieces wait for it, each whole, with its token. What waits is bounded by what the
/// request may generate ([`Request::max_tokens`](crate::Request::max_tokens)), and takes about as much memory as the
/// output does.
///
/// Where another crate's combinators for streams are in scope, `next` belongs to both traits and has to be named:
/// `StreamExt::next(&mut stream).await`. From inside the engine's own thread (a sampler, say), waiting for a piece waits
/// forever.
pub struct TokenStream {
    id: SequenceId,
    link: Arc<Link>,
    items: Receiver<Item>,
    /// Whether the last item was taken from the queue.
    ended: bool,
    /// The failure, until it was yielded.
    error: Option<Error>,
    output: Option<Output>,
}

impl TokenStream {
    pub(super) fn new(id: SequenceId, link: Arc<Link>, items: Receiver<Item>) -> TokenStream {
        TokenStream { id, link, items, ended: false, error: None, output: None }
    }

    /// The request.
    pub fn id(&self) -> SequenceId {
        self.id
    }

    /// Ends the request. What it has produced still comes, then the stream ends, and the output says
    /// [`FinishReason::Cancelled`](crate::FinishReason::Cancelled) unless the request had ended before.
    pub fn cancel(&self) {
        self.link.send(Command::Cancel(self.id));
    }

    /// The finished request, once the stream has ended; `None` before, and if the engine itself failed.
    pub fn output(&self) -> Option<&Output> {
        self.output.as_ref().filter(|_| self.error.is_none())
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The request's own failure; [`Error::Unavailable`] if the engine failed.
    pub fn into_output(mut self) -> Result<Output> {
        for piece in &mut self {
            piece?;
        }
        // Missing if the error was taken from the stream before.
        self.output.take().ok_or_else(|| self.link.unavailable())
    }

    /// What an item means to the reader; a queue that ends without a last item had its engine die.
    fn accept(&mut self, item: Option<Item>) -> Option<Result<Piece>> {
        match item {
            Some(Item::Piece(piece)) => return Some(Ok(piece)),
            Some(Item::Finished(output, error)) => (self.output, self.error) = (Some(*output), error),
            Some(Item::Lost(error)) => self.error = Some(error),
            None => self.error = Some(self.link.unavailable()),
        }
        self.ended = true;
        self.error.take().map(Err)
    }
}

impl Iterator for TokenStream {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        if self.ended {
            return None;
        }
        let item = self.items.recv();
        self.accept(item)
    }
}

impl Stream for TokenStream {
    type Item = Result<Piece>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Piece>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.items.poll_recv(context).map(|item| self.accept(item))
    }
}

impl FusedStream for TokenStream {
    fn is_terminated(&self) -> bool {
        self.ended
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if !self.ended {
            self.link.send(Command::Abandon(self.id));
        }
    }
}

impl fmt::Debug for TokenStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenStream")
            .field("id", &self.id)
            .field("items", &self.items)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
