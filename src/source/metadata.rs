//! Typed key-value metadata of a source.

use std::collections::HashMap;

use crate::{Result, SourceError};

/// A metadata array, kept in the width that the file has.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
}

/// A metadata value; integers and floats are widened.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

macro_rules! values {
    ($($from:ty => |$v:ident| $value:expr;)*) => {
        $(impl From<$from> for Value {
            fn from($v: $from) -> Value { $value }
        })*
    };
}

values! {
    u32 => |v| Value::Unsigned(v.into());
    u64 => |v| Value::Unsigned(v);
    i32 => |v| Value::Signed(v.into());
    i64 => |v| Value::Signed(v);
    f32 => |v| Value::Float(v.into());
    f64 => |v| Value::Float(v);
    bool => |v| Value::Bool(v);
    &str => |v| Value::String(v.to_string());
    String => |v| Value::String(v);
    Array => |v| Value::Array(v);
    Vec<u32> => |v| Value::Array(Array::U32(v));
    Vec<i32> => |v| Value::Array(Array::I32(v));
    Vec<f32> => |v| Value::Array(Array::F32(v));
    Vec<bool> => |v| Value::Array(Array::Bool(v));
    Vec<String> => |v| Value::Array(Array::String(v));
}

/// All metadata of one source. Typed getters answer `None` for an absent key and an error for a wrong type.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    source_name: String,
    values: HashMap<String, Value>,
}

impl Value {
    fn kind(&self) -> String {
        match self {
            Value::Unsigned(v) => format!("integer {v}"),
            Value::Signed(v) => format!("integer {v}"),
            Value::Float(v) => format!("float {v}"),
            Value::Bool(v) => format!("bool {v}"),
            Value::String(v) => format!("string {:?}", v.chars().take(40).collect::<String>()),
            Value::Array(_) => "array".to_string(),
        }
    }
}

impl Metadata {
    /// Empty metadata; `source_name` names the source in errors.
    pub fn new(source_name: impl Into<String>) -> Metadata {
        Metadata { source_name: source_name.into(), values: HashMap::new() }
    }

    /// The source's name, for errors.
    pub fn source_name(&self) -> &str {
        &self.source_name
    }

    /// Sets a key; answers the value that was there.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        self.values.insert(key.into(), value)
    }

    /// Removes a key; answers its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.values.remove(key)
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// All keys with their values, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// An error for a key that is absent.
    pub fn missing(&self, key: &str) -> SourceError {
        SourceError::MissingKey { source_name: self.source_name.clone(), key: key.to_string() }
    }

    /// An error for a key whose value cannot be used.
    pub fn invalid(&self, key: &str, expected: impl Into<String>) -> SourceError {
        SourceError::InvalidKey {
            source_name: self.source_name.clone(),
            key: key.to_string(),
            expected: expected.into(),
            found: self.value(key).map_or("nothing".to_string(), Value::kind),
        }
    }

    /// A string.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(_) => Err(self.invalid(key, "a string").into()),
        }
    }

    /// A non-negative integer of any width.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Unsigned(v)) => Ok(Some(*v)),
            Some(Value::Signed(v)) if *v >= 0 => Ok(Some(*v as u64)),
            Some(_) => Err(self.invalid(key, "a non-negative integer").into()),
        }
    }

    /// A finite float (an integer is accepted).
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Float(v)) if v.is_finite() => Ok(Some(*v)),
            Some(Value::Unsigned(v)) => Ok(Some(*v as f64)),
            Some(Value::Signed(v)) => Ok(Some(*v as f64)),
            Some(_) => Err(self.invalid(key, "a finite number").into()),
        }
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(_) => Err(self.invalid(key, "a bool").into()),
        }
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(Array::String(v))) => Ok(Some(v)),
            Some(_) => Err(self.invalid(key, "an array of strings").into()),
        }
    }

    /// An array of any numeric type, as floats.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        Ok(Some(match value {
            Value::Array(Array::F32(v)) => v.clone(),
            Value::Array(Array::F64(v)) => v.iter().map(|&x| x as f32).collect(),
            other => match integers(other) {
                Some(v) => v.into_iter().map(|x| x as f32).collect(),
                None => return Err(self.invalid(key, "an array of numbers").into()),
            },
        }))
    }

    /// An array of any integer type.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        integers(value).map(Some).ok_or_else(|| self.invalid(key, "an array of integers").into())
    }

    /// An array of bools (integers 0 and 1 are accepted).
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        if let Value::Array(Array::Bool(v)) = value {
            return Ok(Some(v.clone()));
        }
        match integers(value) {
            Some(v) if v.iter().all(|&x| x == 0 || x == 1) => Ok(Some(v.into_iter().map(|x| x == 1).collect())),
            _ => Err(self.invalid(key, "an array of bools").into()),
        }
    }
}

fn integers(value: &Value) -> Option<Vec<i64>> {
    let Value::Array(array) = value else { return None };
    Some(match array {
        Array::U8(v) => v.iter().map(|&x| x.into()).collect(),
        Array::I8(v) => v.iter().map(|&x| x.into()).collect(),
        Array::U16(v) => v.iter().map(|&x| x.into()).collect(),
        Array::I16(v) => v.iter().map(|&x| x.into()).collect(),
        Array::U32(v) => v.iter().map(|&x| x.into()).collect(),
        Array::I32(v) => v.iter().map(|&x| x.into()).collect(),
        Array::U64(v) => v.iter().map(|&x| i64::try_from(x).unwrap_or(i64::MAX)).collect(),
        Array::I64(v) => v.clone(),
        _ => return None,
    })
}
