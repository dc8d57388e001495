//! Rust text without what only looks like code.

/// The text with comments and the contents of string and character literals replaced by spaces, line breaks kept.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        if end > at {
            out.extend(bytes[at..end].iter().map(|&b| if b == b'\n' { b'\n' } else { b' ' }));
            at = end;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    // Only whole literals were blanked, so what is left is still whole characters.
    String::from_utf8_lossy(&out).into_owned()
}

/// Where the comment or literal that starts at `at` ends; `at` if none does.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return block_comment_end(bytes, at);
    }
    let starts_word = at == 0 || !is_word(bytes[at - 1]);
    if starts_word && (rest.starts_with(b"r\"") || rest.starts_with(b"r#") || rest.starts_with(b"br")) {
        return raw_string_end(bytes, at);
    }
    match rest[0] {
        b'"' => quoted_end(bytes, at, b'"'),
        b'\'' => character_end(bytes, at),
        _ => at,
    }
}

fn block_comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// `r"…"`, `r#"…"#`, `br…`; a raw identifier such as `r#type` is none.
fn raw_string_end(bytes: &[u8], at: usize) -> usize {
    let open = at + if bytes[at] == b'b' { 2 } else { 1 };
    let hashes = bytes[open..].iter().take_while(|&&b| b == b'#').count();
    if bytes.get(open + hashes) != Some(&b'"') {
        return at;
    }
    let close = [&b"\""[..], &b"#".repeat(hashes)].concat();
    let body = open + hashes + 1;
    let found = bytes[body..].windows(close.len()).position(|window| window == close);
    found.map_or(bytes.len(), |position| body + position + close.len())
}

fn quoted_end(bytes: &[u8], at: usize, quote: u8) -> usize {
    let mut end = at + 1;
    while end < bytes.len() && bytes[end] != quote {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    (end + 1).min(bytes.len())
}

/// `'x'` or `'\n'`; a lifetime is none.
fn character_end(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at + 1) == Some(&b'\\') {
        return quoted_end(bytes, at, b'\'');
    }
    let width = match bytes.get(at + 1) {
        Some(byte) if *byte >= 0xf0 => 4,
        Some(byte) if *byte >= 0xe0 => 3,
        Some(byte) if *byte >= 0xc0 => 2,
        _ => 1,
    };
    if bytes.get(at + 1 + width) == Some(&b'\'') {
        at + width + 2
    } else {
        at
    }
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Where `word` stands in `text` as a whole word.
pub(crate) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let end = at + word.len();
        (at == 0 || !is_word(bytes[at - 1])) && (end == bytes.len() || !is_word(bytes[end]))
    })
}

/// The text from `open`, which is a brace, to its partner, both left out; to the end if there is none.
pub(crate) fn braced(text: &str, open: usize) -> &str {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[open + 1..at];
        }
    }
    &text[(open + 1).min(text.len())..]
}
