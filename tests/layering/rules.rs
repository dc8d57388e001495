//! The rules, each over one file.

use super::text::{braced, code_only, is_word, words};

/// One file: its path from the crate's root, and its text.
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// The rooms in their order: a room may use those before it.
const ORDER: [&str; 12] = [
    "source",
    "tokenizer",
    "quant",
    "weights",
    "cache",
    "model",
    "schedule",
    "sample",
    "constrain",
    "draft",
    "stream",
    "engine",
];

/// Rooms that every other may use.
const COMMON: [&str; 3] = ["error", "types", "kernel"];

/// Names at the crate's root and the room each comes from, where using them is an arrow.
const ROOT_NAMES: [(&str, &str); 14] = [
    ("Engine", "engine"),
    ("EngineBuilder", "engine"),
    ("Request", "engine"),
    ("Output", "engine"),
    ("Usage", "engine"),
    ("Generation", "engine"),
    ("Event", "stream"),
    ("Piece", "stream"),
    ("Sampler", "sample"),
    ("Drafter", "draft"),
    ("CachePolicy", "cache"),
    ("Quantizer", "quant"),
    ("Tokenizer", "tokenizer"),
    ("WeightSource", "source"),
];

/// Lines that a file may have.
const MAX_LINES: usize = 600;

/// Everything that is wrong with a file, each with its path.
pub(crate) fn check(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    if source.name.ends_with(".rs") {
        let code = code_only(&source.text);
        edges(source, &code, &mut found);
        unsafe_code(source, &code, &mut found);
        public_traits(source, &code, &mut found);
        let lines = source.text.lines().count();
        if lines > MAX_LINES {
            found.push(format!("{}: {lines} lines; at most {MAX_LINES}", source.name));
        }
    }
    machine_paths(source, &mut found);
    found
}

/// The room of a file below `src`; none for the root files.
fn room(name: &str) -> Option<&str> {
    let inner = name.strip_prefix("src/")?;
    let room = inner.split('/').next()?.trim_end_matches(".rs");
    (room != "lib").then_some(room)
}

/// A complaint about a file whose room is not in the order.
pub(crate) fn unplaced(name: &str) -> Option<String> {
    let room = room(name)?;
    let known = ORDER.contains(&room) || COMMON.contains(&room) || room == "testing";
    (!known).then(|| format!("{name}: the room `{room}` has no place in the order of the rooms"))
}

fn may_use(from: &str, to: &str, item: Option<&str>) -> bool {
    let place = |room: &str| ORDER.iter().position(|known| *known == room);
    if from == to || from == "testing" || to == "error" || to == "types" {
        return true;
    }
    if from == "kernel" {
        return to == "source" && item == Some("Dtype");
    }
    if COMMON.contains(&to) {
        return true;
    }
    match (place(from), place(to)) {
        (Some(from), Some(to)) => to < from,
        _ => false,
    }
}

fn edges(source: &Source, code: &str, found: &mut Vec<String>) {
    let Some(from) = room(&source.name) else { return };
    if source.name.ends_with("tests.rs") || source.name.contains("/tests/") {
        return;
    }
    let code = without_tests(code);
    for (line, target, item) in targets(&source.name, &code) {
        let known = ORDER.contains(&target.as_str()) || COMMON.contains(&target.as_str()) || target == "testing";
        if known && !may_use(from, &target, item.as_deref()) {
            found.push(format!("{}:{line}: `{from}` must not use `{target}`", source.name));
        }
    }
}

/// The code without modules that are compiled for tests only.
fn without_tests(code: &str) -> String {
    let mut out = code.to_string();
    while let Some(at) = out.find("#[cfg(test)]") {
        let rest = &out[at..];
        let brace = rest.find('{').unwrap_or(rest.len());
        let end = match rest.find(';') {
            Some(semicolon) if semicolon < brace => at + semicolon + 1,
            _ if brace < rest.len() => at + brace + braced(rest, brace).len() + 2,
            _ => out.len(),
        };
        let blank: String = out[at..end.min(out.len())].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        out.replace_range(at..end.min(out.len()), &blank);
    }
    out
}

/// Every (line, room, item) that the code reaches through the crate's root.
fn targets(name: &str, code: &str) -> Vec<(usize, String, Option<String>)> {
    let mut found = Vec::new();
    let line = |at: usize| code[..at].matches('\n').count() + 1;
    for at in words(code, "crate") {
        // `pub(crate)` and `$crate` inside a macro: the former has no path behind it.
        if let Some(path) = after_colons(&code[at + "crate".len()..]) {
            first_parts(path, &mut |room, item| found.push((line(at), room, item)));
        }
    }
    // `super` often enough leads to the crate's root too.
    let inner = name.trim_start_matches("src/").trim_end_matches(".rs");
    let depth = inner.split('/').filter(|part| *part != "mod").count();
    for at in words(code, "super") {
        let is_first = !code[..at].trim_end().ends_with("::");
        let mut rest = &code[at + "super".len()..];
        let mut ups = 1;
        while let Some(path) = after_colons(rest) {
            match path.strip_prefix("super") {
                Some(next) if !next.bytes().next().is_some_and(is_word) => (ups, rest) = (ups + 1, next),
                _ => break,
            }
        }
        if let (true, true, Some(path)) = (is_first, ups == depth, after_colons(rest)) {
            first_parts(path, &mut |room, item| found.push((line(at), room, item)));
        }
    }
    found
}

fn after_colons(text: &str) -> Option<&str> {
    text.trim_start().strip_prefix("::").map(str::trim_start)
}

/// Calls `tell` with the first name of the path, or of each path in the braces that it starts with, and the name
/// behind it. A name that the root re-exports tells its room.
fn first_parts(path: &str, tell: &mut dyn FnMut(String, Option<String>)) {
    if path.starts_with('{') {
        for part in split_top(braced(path, 0)) {
            first_parts(part.trim_start(), tell);
        }
        return;
    }
    let first = word_of(path);
    let rest = after_colons(&path[first.len()..]);
    match (ROOT_NAMES.iter().find(|(name, _)| *name == first), rest) {
        (Some((_, room)), _) => tell(room.to_string(), Some(first.to_string())),
        (None, Some(rest)) if rest.starts_with('{') => {
            // Only one item matters to the rules: the one that is not allowed.
            let items: Vec<&str> =
                split_top(braced(rest, 0)).into_iter().map(|item| word_of(item.trim_start())).collect();
            let odd = items.iter().find(|item| **item != "Dtype").or(items.first());
            tell(first.to_string(), odd.map(|item| item.to_string()));
        }
        (None, rest) => tell(first.to_string(), rest.map(|rest| word_of(rest).to_string())),
    }
}

fn word_of(text: &str) -> &str {
    &text[..text.bytes().take_while(|&b| is_word(b)).count()]
}

/// The parts between commas outside braces.
fn split_top(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn unsafe_code(source: &Source, code: &str, found: &mut Vec<String>) {
    // A test may need an allocator of its own to count with; what is shipped or shown needs none.
    if source.name.starts_with("src/kernel/") || source.name.starts_with("tests/") {
        return;
    }
    for at in words(code, "unsafe") {
        let line = code[..at].matches('\n').count() + 1;
        found.push(format!("{}:{line}: `unsafe` outside src/kernel", source.name));
    }
}

fn public_traits(source: &Source, code: &str, found: &mut Vec<String>) {
    if !source.name.starts_with("src/") || source.name.ends_with("/mod.rs") {
        return;
    }
    for (number, line) in code.lines().enumerate() {
        if line.trim_start().starts_with("pub trait ") {
            found.push(format!("{}:{}: a public trait outside a mod.rs", source.name, number + 1));
        }
    }
}

fn machine_paths(source: &Source, found: &mut Vec<String>) {
    for folder in ["home", "tmp", "work", "root", "Users"] {
        let needle = format!("/{folder}/");
        for (number, line) in source.text.lines().enumerate() {
            let starts_path = |at: usize| match line[..at].chars().next_back() {
                None => true,
                Some(c) => !c.is_alphanumeric() && !matches!(c, '.' | '_' | '-' | '/' | '}' | '~'),
            };
            if line.match_indices(&needle).any(|(at, _)| starts_path(at)) {
                found.push(format!("{}:{}: a path of a machine", source.name, number + 1));
            }
        }
    }
}
