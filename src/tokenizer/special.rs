//! Cuts special tokens out of text, before the vocabulary's algorithm sees the rest.
//!
//! Matches leftmost, and longest at that place, in one pass whatever the number of tokens. This is how the reference
//! tokenizers cut; a rule that places the longest token of the whole text first gives the same result unless a
//! longer token starts inside a shorter one, and cannot be done in one pass.

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use super::vocabulary::{TokenKind, Vocabulary};
use crate::{Result, TokenId, TokenizerError};

/// Which tokens may be cut out of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// User-defined tokens only: what holds for text of users.
    UserDefined,
    /// Control and unknown tokens too: for text that the host or a template wrote.
    All,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    /// A special token.
    Token(TokenId),
    /// Text between special tokens, never empty.
    Text(&'t str),
}

#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    ids: Vec<TokenId>,
}

/// The special tokens of a vocabulary, ready to be found.
#[derive(Debug)]
pub(crate) struct SpecialTokens {
    user_defined: Option<Matcher>,
    all: Option<Matcher>,
    /// Tokens that swallow the whitespace to their right, sorted.
    stripping: Vec<TokenId>,
}

impl SpecialTokens {
    /// `strips(text)` says whether a control token swallows the whitespace to its right.
    pub(crate) fn new(vocabulary: &Vocabulary, strips: impl Fn(&str) -> bool) -> Result<SpecialTokens> {
        let mut user_defined = Vec::new();
        let mut all = Vec::new();
        let mut stripping = Vec::new();
        for (id, text, kind) in vocabulary.iter() {
            if text.is_empty() || !matches!(kind, TokenKind::UserDefined | TokenKind::Control | TokenKind::Unknown) {
                continue;
            }
            // Of two tokens with one text the lower id is found.
            if vocabulary.id(text) != Some(id) {
                continue;
            }
            if kind == TokenKind::UserDefined {
                user_defined.push((id, text));
            }
            all.push((id, text));
            if strips(text) {
                stripping.push(id);
            }
        }
        Ok(SpecialTokens { user_defined: matcher(&user_defined)?, all: matcher(&all)?, stripping })
    }

    /// Hands the parts of `text` to `emit`, in order.
    pub(crate) fn split<'t>(
        &self,
        text: &'t str,
        scope: Scope,
        emit: &mut dyn FnMut(Fragment<'t>) -> Result<()>,
    ) -> Result<()> {
        let matcher = match scope {
            Scope::UserDefined => &self.user_defined,
            Scope::All => &self.all,
        };
        let mut at = 0;
        if let Some(matcher) = matcher {
            for found in matcher.automaton.find_iter(text) {
                // A strip may have moved past the start of a token that is itself whitespace.
                if found.start() < at {
                    continue;
                }
                if at < found.start() {
                    emit(Fragment::Text(&text[at..found.start()]))?;
                }
                let id = matcher.ids[found.pattern().as_usize()];
                emit(Fragment::Token(id))?;
                at = found.end();
                if self.stripping.binary_search(&id).is_ok() {
                    at = text.len() - text[at..].trim_start().len();
                }
            }
        }
        if at < text.len() {
            emit(Fragment::Text(&text[at..]))?;
        }
        Ok(())
    }
}

fn matcher(tokens: &[(TokenId, &str)]) -> Result<Option<Matcher>> {
    if tokens.is_empty() {
        return Ok(None);
    }
    // A DFA would take a thousand times the memory of long texts.
    let automaton = AhoCorasick::builder()
        .kind(Some(AhoCorasickKind::ContiguousNFA))
        .match_kind(MatchKind::LeftmostLongest)
        .build(tokens.iter().map(|(_, text)| text))
        .map_err(|error| TokenizerError::Matcher { what: "the special tokens", reason: error.to_string() })?;
    Ok(Some(Matcher { automaton, ids: tokens.iter().map(|&(id, _)| id).collect() }))
}
