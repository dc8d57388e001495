//! Cuts text into the pieces that byte-pair merging works on.
//!
//! Follows the cutting of special tokens and comes before the merges; knows nothing of the vocabulary. Every rule
//! takes time in proportion to the text. Text that no pattern of a rule matches is a piece of its own.

mod families;

#[cfg(test)]
mod tests;

pub(crate) use families::{family, Family, Writing, GPT2_PATTERN};

use regex::{Regex, RegexBuilder};

use crate::{Result, TokenizerError};

/// One step of a splitting rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// Every match is a piece.
    Isolate(&'static str),
    /// As `Isolate`, where the pattern's last alternative is `\s+` with a rule for runs before text.
    Words { pattern: &'static str, whitespace: Whitespace },
    /// Digit runs are cut in threes, counted from their end.
    Cut(DigitCut),
}

/// What becomes of a whitespace run that `\s+` matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whitespace {
    /// A run of several characters before text gives its last one back, to be matched again.
    GiveBack,
    /// So it does, unless it ends in a line break: then an earlier alternative took it.
    NewlinesFirst,
    /// As `NewlinesFirst`, and what remains is cut into 512, 256, ... 4 and at last 2 or 1 characters.
    Halving,
}

/// Where digit runs are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigitCut {
    /// The run is cut out and divided.
    Threes,
    /// So it is, but only if no word character follows the run.
    ThreesAtWordEnd,
    /// Cuts only before each full three; the text around stays joined.
    BeforeThrees,
}

#[derive(Debug)]
enum Stage {
    Isolate(Regex),
    Words(Regex, Whitespace),
    Cut { run: Regex, word: Regex, cut: DigitCut },
}

/// A splitting rule, ready to use.
#[derive(Debug)]
pub(crate) struct Splitter {
    stages: Vec<Stage>,
}

type Emit<'e, 't> = &'e mut dyn FnMut(&'t str) -> Result<()>;

impl Splitter {
    pub(crate) fn new(rules: &[Rule]) -> Result<Splitter> {
        let stages = rules.iter().map(|rule| {
            Ok(match *rule {
                Rule::Isolate(pattern) => Stage::Isolate(compile(pattern)?),
                Rule::Words { pattern, whitespace } => Stage::Words(compile(pattern)?, whitespace),
                Rule::Cut(cut) => Stage::Cut {
                    run: compile(if cut == DigitCut::Threes { r"\p{N}+" } else { r"\d+" })?,
                    word: compile(r"^\w")?,
                    cut,
                },
            })
        });
        Ok(Splitter { stages: stages.collect::<Result<_>>()? })
    }

    /// A splitter that splits nothing.
    pub(crate) fn whole() -> Splitter {
        Splitter { stages: Vec::new() }
    }

    /// Adds a step whose pattern comes from a file: every match is a piece, and `whitespace` is as in [`Rule::Words`].
    ///
    /// `None` if the pattern needs more than linear time (it looks around or back), is too large, or no pattern.
    pub(crate) fn then(mut self, pattern: &str, whitespace: Option<Whitespace>) -> Option<Splitter> {
        let pattern = RegexBuilder::new(pattern).size_limit(1 << 24).dfa_size_limit(1 << 24).build().ok()?;
        self.stages.push(match whitespace {
            None => Stage::Isolate(pattern),
            Some(whitespace) => Stage::Words(pattern, whitespace),
        });
        Some(self)
    }

    /// Hands the pieces of `text` to `emit`, in order; together they are `text`, and none is empty.
    pub(crate) fn split<'t>(&self, text: &'t str, emit: Emit<'_, 't>) -> Result<()> {
        run(&self.stages, text, emit)
    }
}

fn compile(pattern: &str) -> Result<Regex> {
    // Large classes repeated several times pass the default limit; the patterns are our own, not input.
    RegexBuilder::new(pattern)
        .size_limit(1 << 26)
        .dfa_size_limit(1 << 24)
        .build()
        .map_err(|error| TokenizerError::Matcher { what: "the splitting rule", reason: error.to_string() }.into())
}

fn run<'t>(stages: &[Stage], text: &'t str, emit: Emit<'_, 't>) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let Some((stage, rest)) = stages.split_first() else { return emit(text) };
    match stage {
        Stage::Isolate(pattern) => {
            let mut at = 0;
            for found in pattern.find_iter(text) {
                run(rest, &text[at..found.start()], emit)?;
                run(rest, found.as_str(), emit)?;
                at = found.end();
            }
            run(rest, &text[at..], emit)
        }
        Stage::Words(pattern, whitespace) => words(pattern, *whitespace, rest, text, emit),
        Stage::Cut { run: digits, word, cut } => cut_digits(digits, word, *cut, rest, text, emit),
    }
}

fn words<'t>(pattern: &Regex, whitespace: Whitespace, rest: &[Stage], text: &'t str, emit: Emit<'_, 't>) -> Result<()> {
    let mut at = 0;
    while let Some(found) = pattern.find_at(text, at) {
        if found.is_empty() {
            break;
        }
        run(rest, &text[at..found.start()], emit)?;
        let piece = found.as_str();
        at = found.end();
        let Some(last) = piece.chars().next_back().filter(|last| last.is_whitespace()) else {
            run(rest, piece, emit)?;
            continue;
        };
        let newlines_first = whitespace != Whitespace::GiveBack;
        if (newlines_first && matches!(last, '\r' | '\n')) || !piece.chars().all(char::is_whitespace) {
            run(rest, piece, emit)?;
            continue;
        }
        // The match took all whitespace there is: what follows is text or the end.
        let kept =
            if at < text.len() && piece.len() > last.len_utf8() { piece.len() - last.len_utf8() } else { piece.len() };
        at = found.start() + kept;
        if whitespace == Whitespace::Halving {
            halve(&piece[..kept], rest, emit)?;
        } else {
            run(rest, &piece[..kept], emit)?;
        }
    }
    run(rest, &text[at..], emit)
}

fn halve<'t>(mut run_of_space: &'t str, rest: &[Stage], emit: Emit<'_, 't>) -> Result<()> {
    let mut remaining = run_of_space.chars().count();
    while remaining > 0 {
        let size = [512, 256, 128, 64, 32, 16, 8, 4, 2].into_iter().find(|&size| size <= remaining).unwrap_or(1);
        let end = run_of_space.char_indices().nth(size).map_or(run_of_space.len(), |(end, _)| end);
        run(rest, &run_of_space[..end], emit)?;
        run_of_space = &run_of_space[end..];
        remaining -= size;
    }
    Ok(())
}

fn cut_digits<'t>(
    digits: &Regex,
    word: &Regex,
    cut: DigitCut,
    rest: &[Stage],
    text: &'t str,
    emit: Emit<'_, 't>,
) -> Result<()> {
    let mut at = 0;
    for found in digits.find_iter(text) {
        if cut == DigitCut::ThreesAtWordEnd && word.is_match(&text[found.end()..]) {
            continue;
        }
        let isolate = cut != DigitCut::BeforeThrees;
        if isolate {
            run(rest, &text[at..found.start()], emit)?;
            at = found.start();
        }
        let lead = found.as_str().chars().count() % 3;
        for (index, (offset, _)) in found.as_str().char_indices().enumerate() {
            if index % 3 == lead {
                run(rest, &text[at..found.start() + offset], emit)?;
                at = found.start() + offset;
            }
        }
        if isolate {
            run(rest, &text[at..found.end()], emit)?;
            at = found.end();
        }
    }
    run(rest, &text[at..], emit)
}
