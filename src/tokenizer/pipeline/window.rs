//! Incremental decoding where a token's text depends on its neighbours.
//!
//! The last few tokens are decoded with and without the new one; what the second text has more is the new one's. Each
//! token costs the decoding of a bounded window.

use super::foreign::ForeignDecoder;

/// Tokens before the new one that its text may depend on.
const CONTEXT: usize = 4;

/// Tokens that wait for the rest of a character at most.
const MOST_WAITING: usize = 32;

/// The end of a sequence of tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    tokens: Vec<String>,
    /// Tokens whose text was given.
    settled: usize,
}

impl Window {
    /// Adds a token by its entry's text, and gives the text that is complete by then.
    pub(crate) fn push(&mut self, decoder: &ForeignDecoder, token: String) -> String {
        self.tokens.push(token);
        let waiting = self.tokens.len() - self.settled;
        let text = self.unsettled(decoder);
        if text.ends_with(char::REPLACEMENT_CHARACTER) && waiting < MOST_WAITING {
            return String::new();
        }
        self.settled = self.tokens.len();
        let excess = self.tokens.len().saturating_sub(CONTEXT);
        self.tokens.drain(..excess);
        self.settled -= excess;
        text
    }

    /// Gives what is left; the window is at a start again.
    pub(crate) fn finish(&mut self, decoder: &ForeignDecoder) -> String {
        let text = self.unsettled(decoder);
        *self = Window::default();
        text
    }

    /// Tokens whose text is held back.
    pub(crate) fn waiting(&self) -> usize {
        self.tokens.len() - self.settled
    }

    fn unsettled(&self, decoder: &ForeignDecoder) -> String {
        let before = decoder.decode(&self.tokens[..self.settled]);
        let all = decoder.decode(&self.tokens);
        // A decoder may change what it said before; that cannot be taken back.
        let same =
            before.chars().zip(all.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum::<usize>();
        all[same..].to_string()
    }
}
