//! The `tojson` filter, written as Python's `json.dumps` does, which is what chat templates are written against.
//!
//! Separators are ", " and ": ", keys keep their order, nothing is escaped for HTML, and by default no character beyond
//! ASCII is escaped either.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Values nested deeper are refused.
const MAX_DEPTH: usize = 128;

/// `value | tojson(indent=None, separators=None, sort_keys=False, ensure_ascii=False)`.
pub(super) fn tojson(state: &State, value: Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|indent| !indent.is_none() && !indent.is_undefined()) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(unit) => unit.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(indent)?.clamp(0, 16)).unwrap_or(0)),
        }),
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: `separators` is a pair of strings")),
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut writer = Writer { state, indent, item, key, sort_keys, ensure_ascii, out: String::new(), paid: 0 };
    writer.value(&value, 0)?;
    Ok(Value::from(writer.out))
}

struct Writer<'a, 'b> {
    state: &'a State<'a, 'b>,
    /// One level of indentation; `None`: all in one line.
    indent: Option<String>,
    /// Between items.
    item: String,
    /// Between key and value.
    key: String,
    sort_keys: bool,
    ensure_ascii: bool,
    out: String,
    /// Bytes of `out` that were charged.
    paid: usize,
}

impl Writer<'_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            let message = format!("tojson: the value is nested deeper than {MAX_DEPTH} levels");
            return Err(Error::new(ErrorKind::BadSerialization, message));
        }
        // Charged as it grows: a shared part may be written many times.
        self.state.consume_fuel(1 + ((self.out.len() - self.paid) / 64) as u64)?;
        self.paid = self.out.len();
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item));
                self.container('[', ']', items, depth)?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    self.state.consume_fuel(1)?;
                    let entry = value.get_item(&key)?;
                    pairs.push((Some(key_text(&key)?), entry));
                }
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.container('{', '}', pairs.into_iter(), depth)?;
            }
            kind => {
                let message = format!("tojson: a value of kind {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn container(
        &mut self,
        open: char,
        close: char,
        entries: impl Iterator<Item = (Option<String>, Value)>,
        depth: usize,
    ) -> Result<(), Error> {
        self.out.push(open);
        let mut is_empty = true;
        for (key, entry) in entries {
            if !is_empty {
                self.out.push_str(&self.item);
            }
            is_empty = false;
            self.new_line(depth + 1);
            if let Some(key) = key {
                self.string(&key);
                self.out.push_str(&self.key);
            }
            self.value(&entry, depth + 1)?;
        }
        if !is_empty {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn number(&mut self, value: &Value) {
        match f64::try_from(value.clone()) {
            Ok(float) if !value.is_integer() => self.out.push_str(&python_float(float)),
            // Its display form has all digits.
            _ => self.out.push_str(&value.to_string()),
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                // Python also escapes DEL, but only with ensure_ascii; guards must stay what they are.
                c if (c as u32) < 0x20 || (self.ensure_ascii && !c.is_ascii() && !super::guard::may_be_guard(c)) => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Number => Ok(key.to_string()),
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("tojson: a key of kind {kind} is not possible"))),
    }
}

/// Python's `repr` of a float: the shortest digits that read back, with an exponent from 1e16 up and below 1e-4.
pub(super) fn python_float(float: f64) -> String {
    if float.is_nan() {
        return "NaN".to_owned();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..=15 => format!("{float:?}"),
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        for (float, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e22, "1.5e+22"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (2.5e-10, "2.5e-10"),
            (1e100, "1e+100"),
            (123_456_789.125, "123456789.125"),
        ] {
            assert_eq!(python_float(float), expected);
        }
    }
}
