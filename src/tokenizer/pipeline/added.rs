//! Cuts added tokens out of text with the flags that `tokenizer.json` gives them.
//!
//! Runs twice: over raw text for tokens that are not normalized, and over normalized text for those that are. Leftmost,
//! longest at that place, in one pass.

use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex::Regex;

use super::json::AddedToken;
use crate::tokenizer::special::Scope;
use crate::{Result, TokenId, TokenizerError};

/// Some of the added tokens, ready to be found.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    all: Option<Matcher>,
    user_defined: Option<Matcher>,
    word: Regex,
}

#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    tokens: Vec<AddedToken>,
}

impl AddedTokens {
    /// From tokens with the text to look for. `is_control` says which of them text of users must not become.
    pub(crate) fn new(
        tokens: Vec<(String, AddedToken)>,
        is_control: impl Fn(&AddedToken) -> bool,
    ) -> Result<AddedTokens> {
        let user_defined = tokens.iter().filter(|(_, token)| !is_control(token)).cloned().collect();
        let word = Regex::new(r"\w").map_err(cannot_match)?;
        Ok(AddedTokens { user_defined: matcher(user_defined)?, all: matcher(tokens)?, word })
    }

    /// Whether there is a control token among them.
    pub(crate) fn has_control(&self) -> bool {
        let count = |matcher: &Option<Matcher>| matcher.as_ref().map_or(0, |matcher| matcher.tokens.len());
        count(&self.all) > count(&self.user_defined)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_none()
    }

    /// Hands the parts of `text` to `emit`, in order; parts without an id are never empty.
    pub(crate) fn cut(
        &self,
        text: &str,
        scope: Scope,
        emit: &mut dyn FnMut(Option<TokenId>, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let matcher = match scope {
            Scope::UserDefined => &self.user_defined,
            Scope::All => &self.all,
        };
        let mut at = 0;
        if let Some(matcher) = matcher {
            for found in matcher.automaton.find_iter(text) {
                let token = &matcher.tokens[found.pattern().as_usize()];
                let (mut start, mut end) = (found.start(), found.end());
                // A strip may have moved past the start of a token that is itself white space.
                if start < at || (token.single_word && !self.stands_alone(text, start, end)) {
                    continue;
                }
                if token.lstrip {
                    start = at + text[at..start].trim_end().len();
                }
                if token.rstrip {
                    end = text.len() - text[end..].trim_start().len();
                }
                if at < start {
                    emit(None, at..start)?;
                }
                emit(Some(token.id), start..end)?;
                at = end;
            }
        }
        if at < text.len() {
            emit(None, at..text.len())?;
        }
        Ok(())
    }

    fn stands_alone(&self, text: &str, start: usize, end: usize) -> bool {
        let is_word = |c: Option<char>| c.is_some_and(|c| self.word.is_match(c.encode_utf8(&mut [0; 4])));
        !is_word(text[..start].chars().next_back()) && !is_word(text[end..].chars().next())
    }
}

fn matcher(tokens: Vec<(String, AddedToken)>) -> Result<Option<Matcher>> {
    let tokens: Vec<_> = tokens.into_iter().filter(|(pattern, _)| !pattern.is_empty()).collect();
    if tokens.is_empty() {
        return Ok(None);
    }
    // A DFA would take a thousand times the memory of long texts.
    let automaton = AhoCorasick::builder()
        .kind(Some(AhoCorasickKind::ContiguousNFA))
        .match_kind(MatchKind::LeftmostLongest)
        .build(tokens.iter().map(|(pattern, _)| pattern))
        .map_err(cannot_match)?;
    Ok(Some(Matcher { automaton, tokens: tokens.into_iter().map(|(_, token)| token).collect() }))
}

fn cannot_match(error: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Matcher { what: "the added tokens", reason: error.to_string() }
}
