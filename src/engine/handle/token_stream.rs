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
    /// An answer has ended; so many of the same request are still to come.
    Finished {
        output: Box<Output>,
        error: Option<Error>,
        remaining: usize,
    },
    /// The engine failed; there is no output.
    Lost(Error),
}

/// The pieces of one request's answer, or of all its answers; see [`EngineHandle::submit`](super::EngineHandle::submit).
///
/// An [`Iterator`], which blocks, and a [`Stream`], which any executor can poll; both take from the same pieces. It ends
/// after the last piece; [`output`](TokenStream::output) then has the whole. The failure of an answer is an item too, the
/// last one of that answer. Dropping the stream earlier cancels the request and frees its memory.
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
    outputs: Vec<Output>,
}

impl TokenStream {
    pub(super) fn new(id: SequenceId, link: Arc<Link>, items: Receiver<Item>) -> TokenStream {
        TokenStream { id, link, items, ended: false, outputs: Vec::new() }
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

    /// The finished answer, of several the first, once the stream has ended; `None` before, and if the engine itself
    /// failed.
    pub fn output(&self) -> Option<&Output> {
        self.outputs().first()
    }

    /// The finished answers in the order of their choice index, once the stream has ended.
    pub fn outputs(&self) -> &[Output] {
        if self.ended {
            &self.outputs
        } else {
            &[]
        }
    }

    /// Waits for the end; of several answers the first.
    ///
    /// # Errors
    /// The first failure of an answer; [`Error::Unavailable`] if the engine failed.
    pub fn into_output(self) -> Result<Output> {
        // `into_outputs` gives at least one.
        self.into_outputs().map(|mut outputs| outputs.swap_remove(0))
    }

    /// Waits for the end of all answers, in the order of their choice index.
    ///
    /// # Errors
    /// As [`into_output`](TokenStream::into_output).
    pub fn into_outputs(mut self) -> Result<Vec<Output>> {
        for piece in &mut self {
            piece?;
        }
        match std::mem::take(&mut self.outputs) {
            // The engine's failure was taken from the stream before.
            outputs if outputs.is_empty() => Err(self.link.unavailable()),
            outputs => Ok(outputs),
        }
    }

    /// What an item means to the reader: something to yield, or `None` if there is nothing; `ended` says whether more
    /// can come. A queue that ends without a last item had its engine die.
    fn accept(&mut self, item: Option<Item>) -> Option<Result<Piece>> {
        match item {
            Some(Item::Piece(piece)) => Some(Ok(piece)),
            Some(Item::Finished { output, error, remaining }) => {
                self.outputs.push(*output);
                self.outputs.sort_by_key(|output| output.choice);
                self.ended = remaining == 0;
                error.map(Err)
            }
            Some(Item::Lost(error)) => {
                self.ended = true;
                Some(Err(error))
            }
            None => {
                self.ended = true;
                Some(Err(self.link.unavailable()))
            }
        }
    }
}

impl Iterator for TokenStream {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        while !self.ended {
            let item = self.items.recv();
            if let Some(item) = self.accept(item) {
                return Some(item);
            }
        }
        None
    }
}

impl Stream for TokenStream {
    type Item = Result<Piece>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Piece>>> {
        while !self.ended {
            match self.items.poll_recv(context) {
                Poll::Ready(item) => {
                    if let Some(item) = self.accept(item) {
                        return Poll::Ready(Some(item));
                    }
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(None)
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
