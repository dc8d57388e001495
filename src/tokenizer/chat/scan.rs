//! Reads a template's source before it is compiled: refuses what would exhaust the stack, and rewrites the one tag that
//! Jinja does not know.
//!
//! The engine bounds nested brackets and statements, but not operators: `1+1+1...` becomes a tree as deep as it is long.
//! Namespaces are the only values that can contain themselves, and comparing or printing such a value does not end.
//! Both are refused here, at a point where the line is known.

use std::collections::HashSet;
use std::ops::Range;

use crate::error::TemplateError;

/// Operators, dots, calls, ... of one tag.
const MAX_OPERATORS_PER_TAG: usize = 400;
/// Every `elif` nests one level deeper than the one before.
const MAX_ELIFS: usize = 400;
/// The largest templates known have some tens of kilobytes.
const MAX_BYTES: usize = 1 << 20;

/// A tag's token; strings, numbers and all operators are told apart by their first byte.
struct Token<'s> {
    text: &'s str,
    at: Range<usize>,
    line: usize,
}

impl Token<'_> {
    fn is_name(&self) -> bool {
        self.text.starts_with(|c: char| c == '_' || c.is_alphabetic())
    }
}

/// The source to compile: `{% generation %}` blocks, which only mark text for training, become plain scopes.
pub(super) fn scan(source: &str) -> Result<String, TemplateError> {
    if source.len() > MAX_BYTES {
        return Err(refuse(0, format!("the template has {} bytes; accepted: {MAX_BYTES}", source.len())));
    }
    let tags = tags(source);
    let mut namespaces = HashSet::new();
    let mut elifs = 0;
    for tag in &tags {
        let operators = tag.iter().filter(|token| deepens(token.text)).count();
        let line = tag.first().map_or(0, |token| token.line);
        if operators > MAX_OPERATORS_PER_TAG {
            return Err(refuse(line, format!("a tag has {operators} operators; accepted: {MAX_OPERATORS_PER_TAG}")));
        }
        match tag.first().map(|token| token.text) {
            Some("elif") => elifs += 1,
            Some(name @ ("include" | "import" | "from" | "extends")) => {
                return Err(refuse(line, format!("`{name}` is not available: a chat template stands alone")));
            }
            _ => {}
        }
        if elifs > MAX_ELIFS {
            return Err(refuse(line, format!("more than {MAX_ELIFS} `elif` tags")));
        }
        for (index, token) in tag.iter().enumerate() {
            if token.text != "namespace" || previous(tag, index) == "." {
                continue;
            }
            let is_plain_set = index == 3
                && [tag[0].text, tag[2].text] == ["set", "="]
                && tag[1].is_name()
                && tag.get(4).is_some_and(|token| token.text == "(");
            if !is_plain_set {
                return Err(refuse(token.line, "`namespace` is only available as `set name = namespace(...)`".into()));
            }
            namespaces.insert(tag[1].text);
        }
    }
    for tag in &tags {
        for (index, token) in tag.iter().enumerate().filter(|(_, token)| namespaces.contains(token.text)) {
            let next = tag.get(index + 1).map_or("", |token| token.text);
            let is_part_of_it = matches!(next, "." | "[" | "is");
            let is_set = index == 1 && tag[0].text == "set" && next == "=";
            let is_other_name = previous(tag, index) == "." || (next == "=" && !is_set);
            if !(is_part_of_it || is_set || is_other_name) {
                let message =
                    format!("the namespace `{}` is used as a value; only its attributes are available", token.text);
                return Err(refuse(token.line, message));
            }
        }
    }
    let mut rewritten = String::with_capacity(source.len());
    let mut from = 0;
    for tag in &tags {
        let [token] = &tag[..] else { continue };
        let opening = source[..token.at.start].trim_end_matches(|c: char| c.is_ascii_whitespace());
        let replacement = match token.text {
            _ if !opening.trim_end_matches(['-', '+']).ends_with('%') => continue,
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        rewritten.push_str(&source[from..token.at.start]);
        rewritten.push_str(replacement);
        from = token.at.end;
    }
    rewritten.push_str(&source[from..]);
    Ok(rewritten)
}

fn refuse(line: usize, message: String) -> TemplateError {
    TemplateError::Syntax { line, message }
}

fn previous<'s>(tag: &[Token<'s>], index: usize) -> &'s str {
    index.checked_sub(1).map_or("", |index| tag[index].text)
}

fn deepens(token: &str) -> bool {
    match token.as_bytes()[0] {
        b',' | b':' | b')' | b']' | b'}' | b'\'' | b'"' | b'0'..=b'9' => false,
        byte if byte.is_ascii_punctuation() && byte != b'_' => true,
        _ => matches!(token, "not" | "and" | "or" | "is" | "in" | "if" | "else"),
    }
}

/// All tags with their tokens, by the same rules as the engine's own lexer; after an error of the lexer it does not
/// matter what is found, as the engine compiles nothing then.
fn tags(source: &str) -> Vec<Vec<Token<'_>>> {
    let bytes = source.as_bytes();
    let mut tags = Vec::new();
    // Brackets are counted across tags, as the engine does: a tag does not end within them.
    let mut open_brackets = 0i64;
    let mut line = Lines { bytes, at: 0, line: 1 };
    let mut at = 0;
    while at + 1 < bytes.len() {
        let opening = (bytes[at], bytes[at + 1]);
        at += match opening {
            (b'{', b'{' | b'%' | b'#') => 2,
            _ => {
                at += 1;
                continue;
            }
        };
        if opening.1 == b'#' {
            match source[at..].find("#}") {
                Some(end) => at += end + 2,
                None => break,
            }
            continue;
        }
        if matches!(bytes.get(at), Some(b'-' | b'+')) {
            at += 1;
        }
        if opening.1 == b'%' {
            if let Some(length) = simple_tag(&source[at..], "raw") {
                at += length;
                match end_of_raw(source, at) {
                    Some(end) => at = end,
                    None => break,
                }
                continue;
            }
        }
        let closing: &[u8] = if opening.1 == b'{' { b"}}" } else { b"%}" };
        let mut tag = Vec::new();
        loop {
            while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
                at += 1;
            }
            let Some(&byte) = bytes.get(at) else { break };
            if open_brackets == 0 {
                let sign = usize::from(matches!(byte, b'-' | b'+'));
                if bytes[at + sign..].starts_with(closing) {
                    at += sign + 2;
                    break;
                }
            }
            let end = end_of_token(source, at);
            open_brackets += match byte {
                b'(' | b'[' | b'{' => 1,
                b')' | b']' | b'}' => -1,
                _ => 0,
            };
            tag.push(Token { text: &source[at..end], at: at..end, line: line.of(at) });
            at = end;
        }
        if !tag.is_empty() {
            tags.push(tag);
        }
    }
    tags
}

fn end_of_token(source: &str, at: usize) -> usize {
    let rest = &source[at..];
    let length_while = |accept: fn(char) -> bool| rest.find(|c| !accept(c)).unwrap_or(rest.len());
    let length = match rest.as_bytes() {
        [quote @ (b'\'' | b'"'), text @ ..] => {
            let mut is_escaped = false;
            let end = text.iter().position(|byte| match byte {
                _ if is_escaped => {
                    is_escaped = false;
                    false
                }
                b'\\' => {
                    is_escaped = true;
                    false
                }
                byte => byte == quote,
            });
            end.map_or(rest.len(), |end| end + 2)
        }
        [b'/', b'/', ..] | [b'*', b'*', ..] | [b'=' | b'!' | b'<' | b'>', b'=', ..] => 2,
        [b'_' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | 0x80.., ..] => {
            length_while(|c| c == '_' || c.is_alphanumeric()).max(rest.chars().next().map_or(1, char::len_utf8))
        }
        _ => 1,
    };
    at + length
}

/// Length of `raw %}` and the like, after the opening of a tag.
fn simple_tag(rest: &str, name: &str) -> Option<usize> {
    let is_space = |c: char| c.is_ascii_whitespace();
    let tail = rest.trim_start_matches(is_space).strip_prefix(name)?.trim_start_matches(is_space);
    let tail = tail.strip_prefix(['-', '+']).unwrap_or(tail).strip_prefix("%}")?;
    Some(rest.len() - tail.len())
}

fn end_of_raw(source: &str, mut at: usize) -> Option<usize> {
    loop {
        at += source[at..].find("{%")? + 2;
        let rest = &source[at..];
        let unsigned = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        if let Some(length) = simple_tag(unsigned, "endraw") {
            return Some(at + rest.len() - unsigned.len() + length);
        }
    }
}

/// Line numbers of ascending positions.
struct Lines<'s> {
    bytes: &'s [u8],
    at: usize,
    line: usize,
}

impl Lines<'_> {
    fn of(&mut self, at: usize) -> usize {
        self.line += self.bytes[self.at..at].iter().filter(|&&byte| byte == b'\n').count();
        self.at = at;
        self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(source: &str) -> (usize, String) {
        match scan(source) {
            Err(TemplateError::Syntax { line, message }) => (line, message),
            other => panic!("{source:.60}: {other:?}"),
        }
    }

    #[test]
    fn long_chains_of_operators_are_refused() {
        for link in ["+1", "~1", " and 1", " or 1", "|trim", ".a", "[0]", "()", "**1", " is defined", " if 1 else 1"] {
            assert!(refused(&format!("\n{{{{ x{} }}}}", link.repeat(500))).1.contains("operators"));
        }
        for link in ["not ", "-", "("] {
            assert_eq!(refused(&format!("\n{{%- if {}1 %}}", link.repeat(500))).0, 2);
        }
        assert!(refused(&format!("{{% if 1 %}}{}", "{% elif 1 %}".repeat(500))).1.contains("elif"));
        // Strings, lists, comments, raw text and plain text may be long.
        let long = "-+.".repeat(1000);
        let list = "'a', ".repeat(1000);
        scan(&format!(
            "{long}{{{{ '{long}' }}}}{{{{ [{list}] }}}}{{# {long} #}}{{% raw %}}{{{{ ' {long}{{% endraw %}}"
        ))
        .unwrap();
        // What follows raw text, a comment or a string is seen.
        for before in ["{% raw %}{{ ' }}{%- endraw -%}", "{# ' {{ #}", "{{ '}}\\'' }}", "{{ {'a': {}} }}"] {
            refused(&format!("{before}{{{{ 1{} }}}}", "+1".repeat(500)));
        }
    }

    #[test]
    fn namespaces_are_no_values() {
        let set = "{% set ns = namespace(a=1) %}";
        for tag in ["{{ ns }}", "{% set ns.a = ns %}", "{% set y = ns %}", "{{ f(ns) }}", "{% for q in [ns] %}"] {
            assert!(refused(&format!("{tag}\n{set}")).1.contains("`ns`"));
        }
        for tag in [
            "{% set x = [namespace()] %}",
            "{% set f = namespace %}",
            "{{ namespace() }}",
            "{% with n = namespace() %}",
        ] {
            assert!(refused(tag).1.contains("`namespace`"));
        }
        scan(&format!(
            "{set}{{% set ns.a = ns.b + x.ns %}}{{% if ns is defined and ns['a'] %}}{{% endif %}}{{{{ f(ns=1) }}}}"
        ))
        .unwrap();
        refused("{% from 'x' import ns %}");
    }

    #[test]
    fn generation_blocks_become_scopes() {
        let source = "{%- generation -%}a{% endgeneration %}{{ generation }}";
        assert_eq!(scan(source).unwrap(), "{%- with -%}a{% endwith %}{{ generation }}");
        assert_eq!(scan("{% raw %}{% generation %}{% endraw %}").unwrap(), "{% raw %}{% generation %}{% endraw %}");
    }

    #[test]
    fn any_text_can_be_scanned() {
        for source in [
            "",
            "{",
            "{{",
            "{%",
            "{#",
            "{{-",
            "{{ 'a",
            "{{ \\",
            "{% raw %}",
            "{% raw %}{%",
            "{{ é日 }}",
            "{{ ) }}{{ x }}",
        ] {
            let _ = scan(source);
        }
    }
}
