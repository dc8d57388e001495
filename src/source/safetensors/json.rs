//! JSON read piece by piece, for headers and indices that may be large: what is not kept costs no memory.
//!
//! Recursion is bounded, numbers are checked, and every error names the file and the byte. Must not know what the text
//! means.

use crate::source::shown;
use crate::{Error, Result, SourceError};

/// Levels of values that are skipped.
const MAX_DEPTH: usize = 32;

/// A reader at some byte of a text.
pub(super) struct Json<'a> {
    source_name: &'a str,
    what: &'static str,
    text: &'a [u8],
    at: usize,
}

impl<'a> Json<'a> {
    /// Reads `text`, which is the part `what` of the file `source_name`.
    pub(super) fn new(source_name: &'a str, what: &'static str, text: &'a [u8]) -> Json<'a> {
        Json { source_name, what, text, at: 0 }
    }

    /// An error at the next byte.
    pub(super) fn unexpected(&self, expected: impl Into<String>) -> Error {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let found = match rest.first() {
            None => "the end".to_string(),
            Some(_) => format!("`{}`", shown(&String::from_utf8_lossy(&rest[..rest.len().min(16)]))),
        };
        SourceError::InvalidJson {
            source_name: self.source_name.to_string(),
            what: self.what,
            expected: expected.into(),
            found,
            at: self.at,
        }
        .into()
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn accept(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, name: &str) -> Result<()> {
        if self.accept(byte) {
            return Ok(());
        }
        Err(self.unexpected(name))
    }

    /// An object; `each` gets every key and must read its value.
    pub(super) fn object(&mut self, mut each: impl FnMut(&mut Self, String) -> Result<()>) -> Result<()> {
        self.expect(b'{', "an object")?;
        if self.accept(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':', "`:`")?;
            each(self, key)?;
            if self.accept(b'}') {
                return Ok(());
            }
            self.expect(b',', "`,` or `}`")?;
        }
    }

    /// An array; `each` must read one element.
    pub(super) fn array(&mut self, mut each: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.expect(b'[', "an array")?;
        if self.accept(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if self.accept(b']') {
                return Ok(());
            }
            self.expect(b',', "`,` or `]`")?;
        }
    }

    /// A string.
    pub(super) fn string(&mut self) -> Result<String> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("a string"));
        }
        let mut end = self.at + 1;
        loop {
            match self.text.get(end) {
                None => return Err(self.unexpected("a string that ends")),
                Some(b'"') => break,
                Some(b'\\') => end += 2,
                Some(_) => end += 1,
            }
        }
        // The escapes, surrogates and the encoding are checked there.
        let Ok(string) = serde_json::from_slice(&self.text[self.at..=end]) else {
            return Err(self.unexpected("a string of UTF-8 with valid escapes"));
        };
        self.at = end + 1;
        Ok(string)
    }

    /// A non-negative integer.
    pub(super) fn unsigned(&mut self) -> Result<u64> {
        const EXPECTED: &str = "a non-negative integer below 2^64";
        self.peek();
        let digits = self.scalar();
        let canonical = digits == b"0" || digits.first().is_some_and(|b| matches!(b, b'1'..=b'9'));
        let value = std::str::from_utf8(digits).ok().filter(|_| canonical).and_then(|text| text.parse().ok());
        let Some(value) = value else { return Err(self.unexpected(EXPECTED)) };
        self.at += digits.len();
        Ok(value)
    }

    /// The bytes of the number or word that comes.
    fn scalar(&self) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let len = rest.iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')).count();
        &rest[..len]
    }

    /// Any value, which is not kept.
    pub(super) fn skip(&mut self) -> Result<()> {
        self.skip_at(0)
    }

    fn skip_at(&mut self, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(self.unexpected(format!("values nested at most {MAX_DEPTH} levels deep")));
        }
        match self.peek() {
            Some(b'{') => self.object(|json, _| json.skip_at(depth + 1)),
            Some(b'[') => self.array(|json| json.skip_at(depth + 1)),
            Some(b'"') => self.string().map(drop),
            _ => {
                let scalar = self.scalar();
                if serde_json::from_slice::<serde_json::Value>(scalar).is_err() {
                    return Err(self.unexpected("a value"));
                }
                self.at += scalar.len();
                Ok(())
            }
        }
    }

    /// Nothing but white space is left.
    pub(super) fn end(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.unexpected("nothing more")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json<'_> {
        Json::new("file", "the test", text.as_bytes())
    }

    #[test]
    fn reads_what_it_is_asked_for() {
        let mut found = Vec::new();
        let mut text = json(" { \"a\\u00e9\\\"\" : [1, 0,\t18446744073709551615 ] , \"b\":[] }\n ");
        text.object(|json, key| {
            json.array(|json| {
                found.push((key.clone(), json.unsigned()?));
                Ok(())
            })
        })
        .unwrap();
        text.end().unwrap();
        assert_eq!(found, [("aé\"", 1), ("aé\"", 0), ("aé\"", u64::MAX)].map(|(k, v)| (k.to_string(), v)));
        let mut rest = json(r#"{"x": [null, true, -1.5e3, {"y": "z"}, {}]} "#);
        rest.skip().unwrap();
        rest.end().unwrap();
    }

    #[test]
    fn refuses_what_is_not_json() {
        for text in [
            "",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1,}",
            "[1,]",
            "[1 2]",
            "\"abc",
            "\"\\",
            "\"\\ud800\"",
            "nul",
            "1.2.3",
        ] {
            let error = json(text).skip().unwrap_err().to_string();
            assert!(error.contains("file: the test: expected"), "{text}: {error}");
        }
        for text in ["-1", "1.0", "1e3", "01", "18446744073709551616", "", "\"1\"", "+1"] {
            assert!(json(text).unsigned().is_err(), "{text}");
        }
        assert!(Json::new("f", "t", b"\"\xFF\"").string().is_err());
        assert!(json("\"a\nb\"").string().is_err());
        let mut trailing = json("1 x");
        trailing.unsigned().unwrap();
        assert!(trailing.end().is_err());
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        json(&nested(32)).skip().unwrap();
        for n in [34, 1_000_000] {
            let error = json(&nested(n)).skip().unwrap_err().to_string();
            assert!(error.contains("32 levels"), "{error}");
        }
        let open = "{\"a\":".repeat(100_000);
        assert!(json(&open).skip().is_err());
    }
}
