//! The fields of config.json, with errors that name file and field. `null` counts as absent unless it is asked for.
//!
//! Must not know what a field means.

use serde_json::{Map, Value};

use crate::source::shown;
use crate::SourceError;

/// Larger numbers than any model has; they keep later arithmetic in range.
const MAX: u64 = 1 << 31;

/// The fields of one object.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    file: &'a str,
    /// Of the object within the file: empty or `name.`.
    prefix: &'static str,
    map: &'a Map<String, Value>,
}

type Result<T> = std::result::Result<T, SourceError>;

impl<'a> Fields<'a> {
    pub(super) fn new(file: &'a str, map: &'a Map<String, Value>) -> Fields<'a> {
        Fields { file, prefix: "", map }
    }

    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    /// Whether the field is there, `null` or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// An error for a field whose value cannot be used.
    pub(super) fn invalid(&self, key: &str, expected: impl Into<String>) -> SourceError {
        SourceError::InvalidKey {
            source_name: self.file.to_string(),
            key: format!("{}{key}", self.prefix),
            expected: expected.into(),
            found: match self.map.get(key) {
                None => "nothing".to_string(),
                Some(Value::Array(_)) => "an array".to_string(),
                Some(Value::Object(_)) => "an object".to_string(),
                Some(other) => shown(&other.to_string()),
            },
        }
    }

    pub(super) fn missing(&self, key: &str) -> SourceError {
        SourceError::MissingKey { source_name: self.file.to_string(), key: format!("{}{key}", self.prefix) }
    }

    /// An integer from 1 on.
    pub(super) fn count(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let count = value.as_u64().filter(|count| (1..=MAX).contains(count));
        count.map(Some).ok_or_else(|| self.invalid(key, format!("an integer from 1 to {MAX}")))
    }

    /// [`count`](Self::count) of a field that must be there.
    pub(super) fn required_count(&self, key: &str) -> Result<u64> {
        self.count(key)?.ok_or_else(|| self.missing(key))
    }

    /// Whether the field is the integer 0.
    pub(super) fn is_zero(&self, key: &str) -> bool {
        self.value(key).and_then(Value::as_u64) == Some(0)
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
        number.map(Some).ok_or_else(|| self.invalid(key, "a number above 0"))
    }

    /// [`positive`](Self::positive) of a field that must be there.
    pub(super) fn required_positive(&self, key: &str) -> Result<f64> {
        self.positive(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.invalid(key, "true or false"))
    }

    pub(super) fn string(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.invalid(key, "a string"))
    }

    pub(super) fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let strings = value.as_array().and_then(|values| values.iter().map(Value::as_str).collect());
        strings.map(Some).ok_or_else(|| self.invalid(key, "an array of strings"))
    }

    /// The object in a field; `prefix` is its name with a dot.
    pub(super) fn object(&self, key: &str, prefix: &'static str) -> Result<Option<Fields<'a>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.invalid(key, "an object"))?;
        Ok(Some(Fields { file: self.file, prefix, map }))
    }
}
