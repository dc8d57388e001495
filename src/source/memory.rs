//! A source in memory: what a test or a converter builds tensor by tensor.
//!
//! Same checks as for files, so that a model from memory and the same model from a file behave alike. Must not know any
//! file format.

use std::collections::HashMap;

use super::{shape_problem, shown, Dtype, Metadata, TensorInfo, Value, WeightSource};
use crate::{Result, SourceError};

/// Metadata and tensors held in memory.
///
/// ```
/// use candlewick::source::{Dtype, Memory, WeightSource};
///
/// # fn main() -> candlewick::Result<()> {
/// let mut source = Memory::new("two numbers");
/// source.set("general.architecture", "llama");
/// source.insert("output_norm.weight", Dtype::F32, &[2], [1f32, 2.0].map(f32::to_le_bytes).concat())?;
/// assert_eq!(source.tensor("output_norm.weight").map(|t| t.size_in_bytes), Some(8));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Memory {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    bytes: Vec<Vec<u8>>,
    by_name: HashMap<String, usize>,
}

impl Memory {
    /// An empty source; `name` names it in errors.
    pub fn new(name: impl Into<String>) -> Memory {
        Memory { metadata: Metadata::new(name), tensors: Vec::new(), bytes: Vec::new(), by_name: HashMap::new() }
    }

    /// Sets a metadata key, in GGUF's convention; answers the value that was there.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        self.metadata.insert(key, value.into())
    }

    /// Removes a metadata key; answers its value.
    pub fn unset(&mut self, key: &str) -> Option<Value> {
        self.metadata.remove(key)
    }

    /// Adds a tensor after those that are there. `shape` is outermost first; `bytes` are its blocks, little-endian.
    ///
    /// # Errors
    /// [`SourceError`]: a name that is taken, a shape that is empty, has a zero, more than four dimensions or rows that
    /// do not divide into blocks of `dtype`, bytes that do not fit, an unknown type.
    pub fn insert(&mut self, name: impl Into<String>, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Result<()> {
        let name = name.into();
        let source_name = || self.metadata.source_name().to_string();
        if self.by_name.contains_key(&name) {
            return Err(SourceError::DuplicateTensor { source_name: source_name(), tensor: shown(&name) }.into());
        }
        let size_in_bytes = shape_problem(dtype, shape).map_err(|(expected, found)| SourceError::InvalidShape {
            source_name: source_name(),
            tensor: shown(&name),
            expected,
            found,
        })?;
        let info = TensorInfo { name, dtype, shape: shape.to_vec(), size_in_bytes };
        if !dtype.is_sized() {
            return Err(info.unsupported(self.metadata.source_name()).into());
        }
        if bytes.len() != size_in_bytes {
            return Err(SourceError::TensorBytes {
                source_name: source_name(),
                tensor: shown(&info.name),
                expected: size_in_bytes,
                found: bytes.len(),
            }
            .into());
        }
        self.by_name.insert(info.name.clone(), self.tensors.len());
        self.tensors.push(info);
        self.bytes.push(bytes);
        Ok(())
    }

    /// Removes a tensor; answers its bytes.
    pub fn remove(&mut self, name: &str) -> Option<Vec<u8>> {
        let index = self.by_name.remove(name)?;
        self.tensors.remove(index);
        for later in self.by_name.values_mut().filter(|i| **i > index) {
            *later -= 1;
        }
        Some(self.bytes.remove(index))
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.by_name.get(name).map(|&i| self.bytes[i].as_slice())
    }
}

impl WeightSource for Memory {
    fn name(&self) -> &str {
        self.metadata.source_name()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let Some(&index) = self.by_name.get(name) else {
            let source_name = self.metadata.source_name().to_string();
            return Err(SourceError::MissingTensor { source_name, tensor: shown(name) }.into());
        };
        let start = self.tensors[index].check_range(self.metadata.source_name(), offset, buffer.len())?;
        buffer.copy_from_slice(&self.bytes[index][start..start + buffer.len()]);
        Ok(())
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory")
            .field("name", &self.name())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    fn error(result: Result<()>) -> (SourceError, String) {
        match result {
            Err(Error::Source(e)) => {
                let text = e.to_string();
                (e, text)
            }
            other => panic!("expected a source error, found {other:?}"),
        }
    }

    #[test]
    fn reads_pieces() {
        let mut m = Memory::new("m");
        m.insert("a", Dtype::I8, &[2, 3], vec![1, 2, 3, 4, 5, 6]).unwrap();
        m.insert("b", Dtype::F32, &[1], vec![9, 8, 7, 6]).unwrap();
        let mut out = [0; 2];
        m.read("a", 4, &mut out).unwrap();
        assert_eq!(out, [5, 6]);
        m.read("a", 6, &mut []).unwrap();
        assert_eq!(m.remove("a"), Some(vec![1, 2, 3, 4, 5, 6]));
        let mut out = [0; 4];
        m.read("b", 0, &mut out).unwrap();
        assert_eq!(out, [9, 8, 7, 6]);
        assert!(m.tensor("a").is_none());
    }

    #[test]
    fn refuses_reads_outside() {
        let mut m = Memory::new("m");
        m.insert("a", Dtype::I8, &[4], vec![0; 4]).unwrap();
        for (offset, length) in [(0, 5), (4, 1), (5, 0), (u64::MAX, 1)] {
            let (e, text) = error(m.read("a", offset, &mut vec![0; length]));
            assert!(matches!(e, SourceError::ReadOutOfRange { .. }), "{e:?}");
            assert!(text.contains("`a`"), "{text}");
        }
        let (e, _) = error(m.read("b", 0, &mut []));
        assert!(matches!(e, SourceError::MissingTensor { .. }));
    }

    #[test]
    fn refuses_tensors_that_cannot_be() {
        let mut m = Memory::new("m");
        m.insert("a", Dtype::I8, &[1], vec![0]).unwrap();
        let (e, text) = error(m.insert("a", Dtype::I8, &[1], vec![0]));
        assert!(matches!(e, SourceError::DuplicateTensor { .. }) && text.contains("`a`"));
        for shape in [&[][..], &[0], &[1, 0, 1], &[1; 5], &[usize::MAX, 2], &[usize::MAX / 2]] {
            let (e, text) = error(m.insert("x", Dtype::F32, shape, vec![]));
            assert!(matches!(e, SourceError::InvalidShape { .. }) && text.contains("`x`"), "{text}");
        }
        let (e, text) = error(m.insert("x", Dtype::Q4_K, &[4, 64], vec![]));
        assert!(
            matches!(e, SourceError::InvalidShape { .. }) && text.contains("256") && text.contains("Q4_K"),
            "{text}"
        );
        let (e, text) = error(m.insert("x", Dtype::Q8_0, &[1, 32], vec![0; 33]));
        assert!(matches!(e, SourceError::TensorBytes { expected: 34, found: 33, .. }) && text.contains("34"), "{text}");
        let (e, text) = error(m.insert("x", Dtype::Unknown(99), &[32], vec![]));
        assert!(matches!(e, SourceError::UnsupportedType { .. }) && text.contains("99"), "{text}");
        assert_eq!(m.tensors().len(), 1);
    }
}
