//! The language of chat templates: Jinja with the functions, filters and methods that HF gives to templates.

use std::collections::HashSet;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value};

use super::{date, guard, json};

/// Depth of nested macros, loops and conditions; each macro call counts several levels.
const RECURSION_LIMIT: usize = 200;

/// Values nested deeper are not written.
const MAX_DEPTH: usize = 128;

/// What `raise_exception` was called with; travels as the source of the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// The environment of every template, without what belongs to one rendering.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    // Only custom delimiters can be rejected.
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(method);
    // As in Python: text is a sequence, an undefined value an empty one, none is neither.
    environment.add_test("iterable", |value: Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
    environment.add_test("sequence", |value: Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Map | Seq | String | Undefined)
    });
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("trim", trim);
    environment.set_formatter(|out, state, value| {
        measure(state, value, 0)?;
        match f64::try_from(value.clone()) {
            // The engine never writes an exponent.
            Ok(float) if value.kind() == ValueKind::Number && !value.is_integer() && float.is_finite() => {
                out.write_str(&json::python_float(float)).map_err(Error::from)
            }
            _ => minijinja::escape_formatter(out, state, value),
        }
    });
    environment.add_function("raise_exception", |state: &State, message: Value| -> Result<Value, Error> {
        measure(state, &message, 0)?;
        let message = message.to_string();
        Err(Error::new(ErrorKind::InvalidOperation, "the template raised an exception").with_source(Raised(message)))
    });
    environment
}

/// Sets what belongs to one rendering.
pub(super) fn prepare(environment: &mut Environment<'_>, now: SystemTime, fuel: u64) {
    environment.set_fuel(Some(fuel));
    environment.add_function("strftime_now", move |format: &str| {
        date::strftime(now, format).map_err(|message| Error::new(ErrorKind::InvalidOperation, message))
    });
}

/// Pays for writing a value before it is written: lists that share parts can be far larger than their memory.
fn measure(state: &State, value: &Value, depth: usize) -> Result<(), Error> {
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && value.kind() != ValueKind::Seq {
        return charge(state, value.as_str().map_or(0, str::len));
    }
    if depth > MAX_DEPTH {
        let message = format!("a value is nested deeper than {MAX_DEPTH} levels");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    for item in value.try_iter()? {
        measure(state, &item, depth + 1)?;
        if is_map {
            measure(state, &value.get_item(&item)?, depth + 1)?;
        }
    }
    Ok(())
}

fn charge(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(1 + (bytes / 64) as u64)
}

/// `trim(chars)`: the built-in one takes quadratic time for long `chars`.
fn trim(state: &State, value: Value, chars: Option<String>) -> Result<Value, Error> {
    match value.as_str() {
        Some(text) => strip(state, text, chars.as_deref(), Side::Both),
        None => {
            measure(state, &value, 0)?;
            strip(state, &value.to_string(), chars.as_deref(), Side::Both)
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
    Both,
}

fn strip(state: &State, text: &str, chars: Option<&str>, side: Side) -> Result<Value, Error> {
    charge(state, text.len() + chars.map_or(0, str::len))?;
    let set: Option<HashSet<char>> = chars.map(|chars| chars.chars().collect());
    let is_stripped = |c: char| match &set {
        Some(set) => set.contains(&c),
        None => guard::is_white_space(c),
    };
    let mut rest = text;
    if side != Side::Right {
        rest = rest.trim_start_matches(is_stripped);
    }
    if side != Side::Left {
        rest = rest.trim_end_matches(is_stripped);
    }
    Ok(Value::from(rest))
}

/// Methods of Python's types: those whose cost would not be bounded or that are missing here, the rest elsewhere.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    };
    charge(state, text.len())?;
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<Value>,) = from_args(args)?;
            let side = match name {
                "lstrip" => Side::Left,
                "rstrip" => Side::Right,
                _ => Side::Both,
            };
            strip(state, text, chars.as_ref().and_then(Value::as_str), side)
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let found = if name == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match (found, name) {
                (Some((before, after)), _) => [before, separator, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Ok(Value::from(Tuple::from(parts.map(Value::from))))
        }
        "rsplit" => {
            let (separator, limit): (&str, Option<i64>) = from_args(args)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let limit = limit.and_then(|limit| usize::try_from(limit).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
            let mut parts: Vec<Value> = text.rsplitn(limit, separator).map(Value::from).collect();
            parts.reverse();
            Ok(Value::from(parts))
        }
        "startswith" | "endswith" => {
            if let Some(list) = args.first().filter(|list| matches!(list.kind(), ValueKind::Seq | ValueKind::Iterable))
            {
                for item in list.try_iter()? {
                    charge(state, item.as_str().map_or(0, str::len))?;
                }
            }
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let mut joined = String::new();
            for (index, item) in items.try_iter()?.enumerate() {
                charge(state, text.len())?;
                measure(state, &item, 0)?;
                if index > 0 {
                    joined.push_str(text);
                }
                match item.as_str() {
                    Some(item) => joined.push_str(item),
                    None => joined.push_str(&item.to_string()),
                }
            }
            Ok(Value::from(joined))
        }
        // Widths are paid for only after the padding was made.
        "format" if has_long_number(text) => {
            Err(Error::new(ErrorKind::InvalidOperation, "format: a number of more than four digits in the format"))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn has_long_number(text: &str) -> bool {
    text.as_bytes().windows(5).any(|window| window.iter().all(u8::is_ascii_digit))
}
