//! Tokens back to text, one at a time, never half a character.
//!
//! Last user of the vocabulary in the flow. Knows nothing of stop strings or of what the text is for.

use std::sync::Arc;

use super::pipeline::Window;
use super::Tokenizer;
use crate::TokenId;

/// Turns a growing sequence of tokens into text: each call gives the characters that are complete by then.
///
/// The texts of all calls together, with [`Detokenizer::finish`], equal [`Tokenizer::decode`] of all tokens. Bytes
/// that cannot be part of a character become U+FFFD at once. A call costs time in the size of its token only.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    skip_control: bool,
    pending: Vec<u8>,
    /// In place of `pending` where text depends on neighbouring tokens.
    window: Window,
}

impl Detokenizer {
    /// A detokenizer at the start of a sequence; `skip_control` as in [`Tokenizer::decode`].
    pub fn new(tokenizer: Arc<Tokenizer>, skip_control: bool) -> Detokenizer {
        Detokenizer { tokenizer, skip_control, pending: Vec::new(), window: Window::default() }
    }

    /// Adds a token and gives the characters that are now complete, often none or several.
    pub fn push(&mut self, id: TokenId) -> String {
        if let Some(decoder) = self.tokenizer.foreign_decoder() {
            let token = self.tokenizer.shown_text(id, self.skip_control);
            return token.map_or(String::new(), |token| self.window.push(decoder, token.to_string()));
        }
        self.tokenizer.append_bytes(id, self.skip_control, &mut self.pending);
        let mut text = String::new();
        let mut kept = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                kept = chunk.invalid().len();
                text.push(char::REPLACEMENT_CHARACTER);
            } else {
                kept = 0;
            }
        }
        // Only the last chunk can be the start of a character that the next token completes.
        let tail = self.pending.len() - kept;
        if kept > 0 && is_unfinished(&self.pending[tail..]) {
            text.pop();
            self.pending.drain(..tail);
        } else {
            self.pending.clear();
        }
        text
    }

    /// Bytes of an unfinished character that are held back.
    pub fn pending_bytes(&self) -> usize {
        // A decoder of neighbours does not say how many; one token has one byte where it waits.
        self.pending.len() + self.window.waiting()
    }

    /// Ends the sequence: an unfinished character becomes U+FFFD. The detokenizer is then at a start again.
    pub fn finish(&mut self) -> String {
        if let Some(decoder) = self.tokenizer.foreign_decoder() {
            return self.window.finish(decoder);
        }
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// Whether these bytes are a proper prefix of some character.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}
