//! Stop strings: ends an answer when one of them appears in its text, and never shows a part of one.
//!
//! Between the detokenizer and the host. Knows text only: no tokens, and stop tokens are not its matter.

use crate::error::{RequestError, Result};
use crate::tokenizer::chat::Literals;

/// Watches the text of one answer for stop strings, piece by piece.
///
/// Text is held back only as long as it may still become a stop string: the longest end of the text that is a proper
/// beginning of one. Where the pieces are cut does not matter: the concatenated output is the same for any split.
///
/// The stop string that is complete first wins; of several that end at the same character the longest, so that nothing
/// of it is shown. Stop strings consist of whole characters, so output never ends within one. The time is linear in
/// the text, the memory linear in the stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Literals,
    state: u32,
    /// Text not yet shown is `held[start..]`; the rest is dropped once it makes up half.
    held: String,
    start: usize,
    stopped: Option<usize>,
}

/// What one piece of text leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutcome {
    /// Text to show now.
    pub text: String,
    /// Index of the stop string that is complete; nothing is to be shown after it.
    pub stopped: Option<usize>,
}

impl StopMatcher {
    /// Watches for these strings; for none, text passes through.
    ///
    /// # Errors
    /// [`RequestError::InvalidParameter`] for an empty string, which would end every answer at once.
    pub fn new(stops: &[String]) -> Result<StopMatcher> {
        if stops.iter().any(String::is_empty) {
            let value = format!("{stops:?}");
            return Err(RequestError::InvalidParameter { name: "stop", value, range: "non-empty strings" }.into());
        }
        let stops = Literals::new(stops.iter().map(String::as_str));
        Ok(StopMatcher { stops, state: Literals::START, held: String::new(), start: 0, stopped: None })
    }

    /// Takes the next piece of the answer. After a stop nothing more is shown, and the outcome stays `stopped`.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        if self.stopped.is_some() {
            return StopOutcome { text: String::new(), stopped: self.stopped };
        }
        let known = self.held.len();
        self.held.push_str(piece);
        for (index, &byte) in piece.as_bytes().iter().enumerate() {
            self.state = self.stops.next(self.state, byte);
            if let Some(stop) = self.stops.longest_match(self.state) {
                let end = known + index + 1;
                let text = self.show(end - self.stops.len_of(stop));
                self.stopped = Some(stop);
                self.held = String::new();
                self.start = 0;
                return StopOutcome { text, stopped: self.stopped };
            }
        }
        let text = self.show(self.held.len() - self.stops.depth(self.state));
        StopOutcome { text, stopped: None }
    }

    /// The answer ended otherwise: returns what was held back, which did not become a stop string.
    pub fn finish(&mut self) -> String {
        self.state = Literals::START;
        self.show(self.held.len())
    }

    fn show(&mut self, until: usize) -> String {
        let text = self.held[self.start..until].to_owned();
        self.start = until;
        // Only then is the move paid for by the text that was shown.
        if self.start > self.held.len() / 2 {
            self.held.drain(..self.start);
            self.start = 0;
        }
        text
    }
}

#[cfg(test)]
#[path = "stop_tests.rs"]
mod tests;
