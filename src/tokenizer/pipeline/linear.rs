//! Normalizers and pre-tokenizers of known shape, run by our own code: linear time, no copies with offsets.
//!
//! Which shapes: what byte-level vocabularies of language models use (a splitting pattern without look-around, except
//! for the usual end "white space that no text follows"), and SentencePiece's marking of spaces. Everything else goes
//! through the `tokenizers` crate (`foreign`), whose results these equal.

use std::borrow::Cow;

use serde_json::Value;
use tokenizers::NormalizedString;

use super::foreign::MAX_STEPS;
use crate::tokenizer::pre::{Splitter, Whitespace, Writing, GPT2_PATTERN};
use crate::tokenizer::spm::SPACE;

/// Where a mark is put before text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepend {
    Never,
    /// Whatever the text begins with.
    Blindly,
    /// Unless the text begins with one.
    Always,
    /// As `Always`, at the start of the whole text only.
    First,
}

/// Spaces become U+2581, and perhaps one is put before the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marking(pub(crate) Prepend);

impl Marking {
    /// `at_start`: the text is the beginning of the whole text.
    pub(crate) fn apply<'t>(self, text: &'t str, at_start: bool) -> Cow<'t, str> {
        let first = text.chars().next();
        let is_marked = matches!(first, None | Some(SPACE | ' '));
        let prefix = match self.0 {
            Prepend::Never => false,
            Prepend::Blindly => first.is_some(),
            Prepend::Always => !is_marked,
            Prepend::First => !is_marked && at_start,
        };
        if !prefix && !text.contains(' ') {
            return Cow::Borrowed(text);
        }
        let mut marked = String::with_capacity(text.len() + text.len() / 2 + 3);
        if prefix {
            marked.push(SPACE);
        }
        marked.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        Cow::Owned(marked)
    }
}

/// What stands between added tokens and the model.
#[derive(Debug)]
pub(crate) struct Linear {
    /// Composes characters (NFC).
    pub(crate) composes: bool,
    /// Before added tokens of the normalized kind are looked for.
    pub(crate) marking: Option<Marking>,
    /// After that.
    pub(crate) metaspace: Option<Marking>,
    pub(crate) writing: Writing,
}

impl Linear {
    /// The text as the normalizer writes it.
    pub(crate) fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if let Some(marking) = self.marking {
            // Whether the text is at the start matters only to the other markings.
            return marking.apply(text, false);
        }
        // ASCII is composed, and most text is ASCII.
        if self.composes && !text.is_ascii() {
            let mut string = NormalizedString::from(text);
            string.nfc();
            return Cow::Owned(string.get().to_string());
        }
        Cow::Borrowed(text)
    }
}

/// The known shape that these parts of the file have, with the splitter of its pieces.
pub(crate) fn recognize(normalizer: &Value, pre_tokenizer: &Value) -> Option<(Linear, Splitter)> {
    let mut linear = Linear { composes: false, marking: None, metaspace: None, writing: Writing::Plain };
    let normalizers = steps(normalizer, "normalizers")?;
    match normalizers.iter().map(|step| kind(step)).collect::<Vec<_>>()[..] {
        [] => {}
        ["NFC"] => linear.composes = true,
        ["Replace"] if is_marking(normalizers[0]) => linear.marking = Some(Marking(Prepend::Never)),
        ["Prepend", "Replace"]
            if is_marking(normalizers[1])
                && normalizers[0].get("prepend").and_then(Value::as_str) == Some("\u{2581}") =>
        {
            linear.marking = Some(Marking(Prepend::Blindly));
        }
        _ => return None,
    }
    let steps = steps(pre_tokenizer, "pretokenizers").filter(|steps| steps.len() <= MAX_STEPS)?;
    let mut splitter = Splitter::whole();
    for (index, step) in steps.iter().enumerate() {
        let is_last = index + 1 == steps.len();
        match kind(step) {
            // Marking has left no space to split at.
            "Split"
                if linear.marking.is_some() && step.pointer("/pattern/String").and_then(Value::as_str) == Some(" ") => {
            }
            "Split" if linear.marking.is_none() => splitter = split(splitter, step)?,
            "Digits" if linear.marking.is_none() => {
                let single = step.get("individual_digits").and_then(Value::as_bool).unwrap_or(false);
                // The crate's digits are Rust's numeric characters.
                splitter = splitter.then(if single { r"\p{N}" } else { r"\p{N}+" }, None)?;
            }
            "ByteLevel" if is_last && linear.marking.is_none() => {
                if step.get("add_prefix_space").and_then(Value::as_bool) != Some(false) {
                    return None;
                }
                if step.get("use_regex").and_then(Value::as_bool).unwrap_or(true) {
                    splitter = splitter.then(GPT2_PATTERN, Some(Whitespace::GiveBack))?;
                }
                linear.writing = Writing::ByteLevel;
            }
            "Metaspace" if steps.len() == 1 && linear.marking.is_none() => {
                linear.metaspace = Some(metaspace(step)?);
                if step.get("split").and_then(Value::as_bool).unwrap_or(true) {
                    splitter = splitter.then("\u{2581}[^\u{2581}]*", None)?;
                }
            }
            _ => return None,
        }
    }
    Some((linear, splitter))
}

/// The steps of a part: of a sequence those in it, of anything else the part itself, of null none.
pub(crate) fn steps<'v>(part: &'v Value, list: &str) -> Option<Vec<&'v Value>> {
    if part.is_null() {
        return Some(Vec::new());
    }
    if kind(part) != "Sequence" {
        return Some(vec![part]);
    }
    let mut all = Vec::new();
    for step in part.get(list)?.as_array()? {
        all.extend(steps(step, list)?);
    }
    Some(all)
}

pub(crate) fn kind(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn is_marking(step: &Value) -> bool {
    step.pointer("/pattern/String").and_then(Value::as_str) == Some(" ")
        && step.get("content").and_then(Value::as_str) == Some("\u{2581}")
}

/// The marking of a `Metaspace`, if it marks as SentencePiece does.
pub(crate) fn metaspace(step: &Value) -> Option<Marking> {
    if step.get("replacement").and_then(Value::as_str) != Some("\u{2581}") {
        return None;
    }
    // The older flag wins where it says no.
    if step.get("add_prefix_space").and_then(Value::as_bool) == Some(false) {
        return Some(Marking(Prepend::Never));
    }
    match step.get("prepend_scheme").map(Value::as_str) {
        None | Some(Some("always")) => Some(Marking(Prepend::Always)),
        Some(Some("first")) => Some(Marking(Prepend::First)),
        Some(Some("never")) => Some(Marking(Prepend::Never)),
        _ => None,
    }
}

fn split(splitter: Splitter, step: &Value) -> Option<Splitter> {
    if step.get("behavior").and_then(Value::as_str) != Some("Isolated")
        || step.get("invert").and_then(Value::as_bool) != Some(false)
    {
        return None;
    }
    if let Some(text) = step.pointer("/pattern/String").and_then(Value::as_str) {
        return splitter.then(&regex::escape(text), None);
    }
    let pattern = step.pointer("/pattern/Regex").and_then(Value::as_str)?;
    match pattern.strip_suffix(r"|\s+(?!\S)|\s+") {
        Some(head) => splitter.then(&format!(r"{head}|\s+"), Some(ending(head)?)),
        None => splitter.then(pattern, None),
    }
}

/// What becomes of white space that the pattern's end takes, if `head` is made of known alternatives only. Unknown ones
/// might match white space too, and then the end could not be told from them.
fn ending(head: &str) -> Option<Whitespace> {
    const NEWLINES: [&str; 2] = [r"\s*[\r\n]+", r"\s*[\r\n]"];
    let mut rule = Whitespace::GiveBack;
    for alternative in alternatives(head) {
        if NEWLINES.contains(&alternative) {
            rule = Whitespace::NewlinesFirst;
        } else if !needs_text(alternative) {
            return None;
        }
    }
    Some(rule)
}

/// Whether a match of this alternative certainly holds something else than white space.
fn needs_text(alternative: &str) -> bool {
    const CLASSES: [&str; 7] = [
        r"\p{L}+",
        r"\p{N}",
        r"[\p{L}\p{M}]+",
        r"[^\s\p{L}\p{N}]+",
        r"[^\s\p{L}\p{M}\p{N}]+",
        r"[\p{P}\p{S}]+",
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    ];
    const CASED: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+";
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '\'');
    if !alternative.is_empty() && plain(alternative) {
        return true;
    }
    if let Some(inner) = alternative.strip_prefix("(?i:").and_then(|rest| rest.strip_suffix(')')) {
        return inner.split('|').all(|text| !text.is_empty() && plain(text));
    }
    if alternative == r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"## {
        return true;
    }
    // An optional lead, then one of the classes, then whatever may follow it.
    let leads = [
        "",
        " ?",
        r"[^\r\n\p{L}\p{N}]?",
        r"[^\r\n\p{L}\p{P}\p{S}]?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*",
    ];
    let rests = ["", "+", "{1,3}", "{1,2}", r"[\r\n]*", r"[\r\n/]*", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"];
    let cased_rests = [r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"];
    leads.iter().filter_map(|lead| alternative.strip_prefix(lead)).any(|rest| {
        CLASSES.iter().filter_map(|class| rest.strip_prefix(class)).any(|rest| rests.contains(&rest))
            || rest.strip_prefix(CASED).is_some_and(|rest| cased_rests.contains(&rest))
    })
}

/// The alternatives of a pattern at its top level.
fn alternatives(pattern: &str) -> Vec<&str> {
    let (mut all, mut from, mut depth, mut class, mut escaped) = (Vec::new(), 0, 0usize, false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '[' => class = true,
            ']' => class = false,
            _ if class => {}
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => {
                all.push(&pattern[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    all.push(&pattern[from..]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_patterns_are_known() {
        let contractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
        let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
        let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
        let lead = r"[^\r\n\p{L}\p{N}]?";
        let heads = [
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+".to_string(),
            format!(r"{contractions}|{lead}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"),
            format!(r"{contractions}|{lead}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"),
            format!(r"{contractions}|{lead}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+"),
            format!(
                r"{lead}{upper}*{lower}+{contractions}?|{lead}{upper}+{lower}*{contractions}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+"
            ),
            format!(r"{lead}{upper}*{lower}+|{lead}{upper}+{lower}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+"),
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"##
                .to_string(),
        ];
        for head in &heads {
            assert!(ending(head).is_some(), "{head}");
        }
        assert_eq!(ending(&heads[0]), Some(Whitespace::GiveBack));
        assert_eq!(ending(&heads[1]), Some(Whitespace::NewlinesFirst));
        assert_eq!(ending(r"\t+|\p{L}+"), None);
        assert_eq!(ending(r" ?\p{L}*"), None);
    }

    #[test]
    fn marks_are_put_where_the_scheme_says() {
        for (prepend, text, at_start, expected) in [
            (Prepend::Never, "a b", true, "a▁b"),
            (Prepend::Blindly, " a", false, "▁▁a"),
            (Prepend::Blindly, "", true, ""),
            (Prepend::Always, " a", false, "▁a"),
            (Prepend::Always, "a", false, "▁a"),
            (Prepend::First, "a", false, "a"),
            (Prepend::First, "a", true, "▁a"),
        ] {
            assert_eq!(Marking(prepend).apply(text, at_start), expected, "{prepend:?} {text:?}");
        }
    }
}
