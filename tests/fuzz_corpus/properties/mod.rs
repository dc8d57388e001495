//! What must hold for any input: one function per kind of hostile input, each over plain bytes.
//!
//! Shared by the fuzz targets, which look for bytes that break them, and by the test that replays the corpus. They panic
//! where a property does not hold. Only the public interface is used.

pub(crate) mod chat;
pub(crate) mod gguf;
pub(crate) mod safetensors;
mod source;
pub(crate) mod stop;
pub(crate) mod tokenizer;

/// Errors name what is wrong, in words that fit on a screen.
pub(crate) fn check_error(error: &candlewick::Error) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() < 4_000, "an error of {} bytes: {text:.200}", text.len());
}

/// Takes bytes apart into the values that a property needs. What is not there is 0 or empty, so all bytes are an input.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// A number under `limit`, which is from 1 to 256.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    /// The next bit of luck.
    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// At most `most` bytes, their number first.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let len = self.below(most + 1).min(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    /// A text of at most `most` bytes before what is no UTF-8 in it was replaced.
    pub(crate) fn text(&mut self, most: usize) -> String {
        String::from_utf8_lossy(self.bytes(most)).into_owned()
    }

    /// All that is left, as text.
    pub(crate) fn rest(&mut self) -> String {
        String::from_utf8_lossy(std::mem::take(&mut self.0)).into_owned()
    }
}
