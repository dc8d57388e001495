//! Writes any source as GGUF bytes: for tests that read them back, whole or damaged.
//!
//! Layout: the GGUF specification, versions 2 and 3, little-endian. Must not check what it writes: a test may want a
//! file that makes no sense.

use crate::source::{Array, Value, WeightSource};
use crate::Result;

/// Writes GGUF bytes. The same source gives the same bytes: keys are sorted, `general.architecture` first.
///
/// Integers are written as u32 or i32 where they fit, else as u64 or i64; floats as f32 where that is exact, else as
/// f64; arrays in their own width.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: u32,
}

impl GgufWriter {
    /// Version 3, alignment 32.
    pub fn new() -> GgufWriter {
        GgufWriter { version: 3, alignment: 32 }
    }

    /// The version to write: the layout is that of 2 and 3, which are the same for little-endian files.
    pub fn version(self, version: u32) -> GgufWriter {
        GgufWriter { version, ..self }
    }

    /// Alignment of the tensors' data in bytes, above 0; written as `general.alignment` unless it is the default of 32.
    /// An alignment among the source's own keys is left out.
    pub fn alignment(self, alignment: u32) -> GgufWriter {
        GgufWriter { alignment, ..self }
    }

    /// The whole file.
    ///
    /// # Errors
    /// A tensor that the source fails to read.
    pub fn to_bytes(&self, source: &dyn WeightSource) -> Result<Vec<u8>> {
        const ALIGNMENT: &str = "general.alignment";
        let alignment_value = Value::Unsigned(self.alignment.into());
        let mut keys: Vec<(&str, &Value)> = source.metadata().iter().filter(|(k, _)| *k != ALIGNMENT).collect();
        if self.alignment != 32 {
            keys.push((ALIGNMENT, &alignment_value));
        }
        keys.sort_unstable_by_key(|(k, _)| (*k != "general.architecture", *k));

        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((source.tensors().len() as u64).to_le_bytes());
        out.extend((keys.len() as u64).to_le_bytes());
        for (key, value) in keys {
            put_string(&mut out, key);
            put_value(&mut out, value);
        }
        let alignment = self.alignment as usize;
        let mut offset = 0usize;
        for tensor in source.tensors() {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for &dim in tensor.shape.iter().rev() {
                out.extend((dim as u64).to_le_bytes());
            }
            out.extend(tensor.dtype.ggml_id().to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.size_in_bytes.next_multiple_of(alignment);
        }
        for tensor in source.tensors() {
            out.resize(out.len().next_multiple_of(alignment), 0);
            let start = out.len();
            out.resize(start + tensor.size_in_bytes, 0);
            source.read(&tensor.name, 0, &mut out[start..])?;
        }
        Ok(out)
    }
}

impl Default for GgufWriter {
    fn default() -> GgufWriter {
        GgufWriter::new()
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Unsigned(v) => match u32::try_from(*v) {
            Ok(v) => put(out, 4, v.to_le_bytes()),
            Err(_) => put(out, 10, v.to_le_bytes()),
        },
        Value::Signed(v) => match i32::try_from(*v) {
            Ok(v) => put(out, 5, v.to_le_bytes()),
            Err(_) => put(out, 11, v.to_le_bytes()),
        },
        Value::Float(v) if f64::from(*v as f32).to_bits() == v.to_bits() => put(out, 6, (*v as f32).to_le_bytes()),
        Value::Float(v) => put(out, 12, v.to_le_bytes()),
        Value::Bool(v) => put(out, 7, [u8::from(*v)]),
        Value::String(v) => {
            out.extend(8u32.to_le_bytes());
            put_string(out, v);
        }
        Value::Array(v) => {
            out.extend(9u32.to_le_bytes());
            put_array(out, v);
        }
    }
}

fn put<const N: usize>(out: &mut Vec<u8>, type_id: u32, bytes: [u8; N]) {
    out.extend(type_id.to_le_bytes());
    out.extend(bytes);
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    macro_rules! numbers {
        ($type_id:literal, $values:ident) => {{
            put(out, $type_id, ($values.len() as u64).to_le_bytes());
            out.extend($values.iter().flat_map(|v| v.to_le_bytes()));
        }};
    }
    match array {
        Array::U8(v) => numbers!(0, v),
        Array::I8(v) => numbers!(1, v),
        Array::U16(v) => numbers!(2, v),
        Array::I16(v) => numbers!(3, v),
        Array::U32(v) => numbers!(4, v),
        Array::I32(v) => numbers!(5, v),
        Array::F32(v) => numbers!(6, v),
        Array::U64(v) => numbers!(10, v),
        Array::I64(v) => numbers!(11, v),
        Array::F64(v) => numbers!(12, v),
        Array::Bool(v) => {
            put(out, 7, (v.len() as u64).to_le_bytes());
            out.extend(v.iter().map(|&b| u8::from(b)));
        }
        Array::String(v) => {
            put(out, 8, (v.len() as u64).to_le_bytes());
            v.iter().for_each(|s| put_string(out, s));
        }
        Array::Array(v) => {
            put(out, 9, (v.len() as u64).to_le_bytes());
            v.iter().for_each(|a| put_array(out, a));
        }
    }
}
