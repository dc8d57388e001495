//! Marks texts of a conversation so that none of them can be taken for a control token.
//!
//! A guard is a Unicode noncharacter that occurs nowhere in the request. It is put into every control token's text that
//! a message contains. The tokenizer finds control tokens with the guards in place, and then removes the guards: the
//! model sees exactly the text that the user wrote, as plain text.

use std::borrow::Cow;

use super::Literals;
use crate::error::TemplateError;

/// The control tokens of a vocabulary, prepared for finding them in texts.
///
/// Made once per vocabulary: the time to guard a text is linear in the text.
#[derive(Clone, Debug, Default)]
pub struct ControlTokens {
    /// The tokens in lower case, forwards and backwards: templates may change the case of what they are given.
    forward: Literals,
    backward: Literals,
    /// All of them, with a separator that none contains.
    joined: String,
    longest: usize,
    /// Noncharacters that occur in tokens: no guards.
    excluded: Vec<char>,
}

/// How a text takes part in the prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TextKind {
    /// What is said. Also guarded if it is a middle part of a control token.
    Content,
    /// Roles, names, keys and the like, which templates compare and put between parts of control tokens on purpose.
    Field,
}

impl ControlTokens {
    /// From the texts of all control tokens; empty ones are ignored.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> ControlTokens {
        let texts: Vec<String> =
            texts.into_iter().filter(|text| !text.is_empty()).map(str::to_ascii_lowercase).collect();
        let reversed: Vec<String> = texts.iter().map(|text| text.chars().rev().collect()).collect();
        ControlTokens {
            forward: Literals::new(texts.iter().map(String::as_str)),
            backward: Literals::new(reversed.iter().map(String::as_str)),
            longest: texts.iter().map(String::len).max().unwrap_or(0),
            excluded: texts.iter().flat_map(|text| text.chars()).filter(|&c| may_be_guard(c)).collect(),
            joined: texts.join("\0"),
        }
    }

    /// Inserts guards such that
    /// * every occurrence of a control token, in upper or lower case, overlapping ones too, has a guard inside,
    /// * a beginning of a control token at the end of the text is followed by one, and an end of a control token at the
    ///   start is preceded by one, also where white space around the text may be cut off.
    ///
    /// Without the guards the text is what it was. `field` names the text in errors.
    pub(super) fn guard<'t>(
        &self,
        text: &'t str,
        guard: char,
        kind: TextKind,
        field: &str,
    ) -> Result<Cow<'t, str>, TemplateError> {
        if text.is_empty() || self.longest == 0 {
            return Ok(Cow::Borrowed(text));
        }
        let mut at = self.at_start(text, kind);
        let trimmed_end = text.trim_end_matches(is_white_space).len();
        let mut state = Literals::START;
        // The last guard that may lie inside of occurrences still to come; position 0 is inside of none.
        let mut last_inside = 0;
        for (start, c) in text.char_indices() {
            let end = start + c.len_utf8();
            for byte in &text.as_bytes()[start..end] {
                state = self.forward.next(state, byte.to_ascii_lowercase());
            }
            if let Some(token) = self.forward.shortest_match(state) {
                // The shortest that ends here lies inside the others. A guard before its last character also serves
                // the most occurrences that follow.
                let begin = end - self.forward.len_of(token);
                if last_inside <= begin {
                    if start <= begin {
                        let token = text[begin..end].to_owned();
                        return Err(TemplateError::Unguardable { field: field.to_owned(), token });
                    }
                    at.push(start);
                    last_inside = start;
                }
            }
            if end >= trimmed_end && self.forward.depth(state) > 0 {
                at.push(end);
            }
        }
        if at.is_empty() {
            return Ok(Cow::Borrowed(text));
        }
        at.sort_unstable();
        at.dedup();
        let mut guarded = String::with_capacity(text.len() + at.len() * guard.len_utf8());
        let mut from = 0;
        for position in at {
            guarded.push_str(&text[from..position]);
            guarded.push(guard);
            from = position;
        }
        guarded.push_str(&text[from..]);
        Ok(Cow::Owned(guarded))
    }

    /// Positions of guards before the text or within the white space it starts with, ascending.
    fn at_start(&self, text: &str, kind: TextKind) -> Vec<usize> {
        let trimmed_start = text.len() - text.trim_start_matches(is_white_space).len();
        let trimmed = text.trim_matches(is_white_space);
        let mut at = Vec::new();
        if kind == TextKind::Content
            && !trimmed.is_empty()
            && trimmed.len() <= self.longest
            && self.joined.contains(&trimmed.to_ascii_lowercase())
        {
            at.push(trimmed_start);
        }
        // An end of a control token is no longer than one, so what lies further right does not matter.
        let reach = (trimmed_start + self.longest).min(text.len());
        let reach = (reach..=text.len()).find(|&index| text.is_char_boundary(index)).unwrap_or(text.len());
        let mut state = Literals::START;
        for (start, c) in text[..reach].char_indices().rev() {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                state = self.backward.next(state, byte.to_ascii_lowercase());
            }
            if start <= trimmed_start && self.backward.depth(state) > 0 {
                at.push(start);
            }
        }
        at.sort_unstable();
        at
    }

    /// A noncharacter that occurs neither in a control token nor in any of the texts.
    pub(super) fn choose_guard<'a>(&self, texts: impl Iterator<Item = &'a str> + Clone) -> Result<char, TemplateError> {
        guards()
            .filter(|guard| !self.excluded.contains(guard))
            .find(|&guard| texts.clone().all(|text| !text.contains(guard)))
            .ok_or(TemplateError::NoGuard)
    }
}

/// What `strip()` and `trim` cut off: white space of Unicode, and the four separators of ASCII, as in Python.
pub(super) fn is_white_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn guards() -> impl Iterator<Item = char> {
    ('\u{fdd0}'..='\u{fdef}').chain(
        (0..=16u32)
            .flat_map(|plane| [0xfffe, 0xffff].into_iter().filter_map(move |low| char::from_u32((plane << 16) | low))),
    )
}

/// Whether a character is one of the 66 Unicode noncharacters.
pub(super) fn may_be_guard(c: char) -> bool {
    ('\u{fdd0}'..='\u{fdef}').contains(&c) || (c as u32) & 0xfffe == 0xfffe
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
