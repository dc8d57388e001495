//! The header's bytes in order: numbers, text and counts, each checked against the bytes that are left.
//!
//! Knows lengths and limits; must not know the order of GGUF's fields (that is `header`).

use std::fmt;

use crate::source::file::PositionedFile;
use crate::source::shown;
use crate::{Result, SourceError};

/// Bytes read from the file at once.
const BUFFER: usize = 64 * 1024;

/// No header of a real model comes near; a hostile one must not fill the memory.
pub(super) const MAX_HEADER_BYTES: u64 = 256 << 20;

/// Longest key or tensor name that is accepted (GGUF's own limit for keys).
pub(super) const MAX_NAME_BYTES: u64 = 65_535;

/// Elements that are reserved before the first one was read.
const FIRST_RESERVE: usize = 1024;

/// What is being read, for messages. Formatted only when something is wrong.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    Start(&'static str),
    KeyName(u64),
    KeyCount,
    Value(&'a str),
    Element(&'a str, usize),
    TensorCount,
    TensorName(u64),
    Tensor(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Start(field) => write!(f, "the {field} at the start"),
            Place::KeyName(index) => write!(f, "the name of metadata key number {index}"),
            Place::KeyCount => write!(f, "the number of metadata keys"),
            Place::Value(key) => write!(f, "the value of metadata key `{}`", shown(key)),
            Place::Element(key, index) => write!(f, "element {index} of metadata key `{}`", shown(key)),
            Place::TensorCount => write!(f, "the number of tensors"),
            Place::TensorName(index) => write!(f, "the name of tensor number {index}"),
            Place::Tensor(name) => write!(f, "the description of tensor `{}`", shown(name)),
        }
    }
}

/// Reads a header from its first byte on.
pub(super) struct Reader<'a> {
    file: &'a PositionedFile,
    buffer: Vec<u8>,
    /// Next unread byte of `buffer`.
    next: usize,
    /// File position of the end of `buffer`.
    loaded: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a PositionedFile) -> Reader<'a> {
        Reader { file, buffer: Vec::new(), next: 0, loaded: 0 }
    }

    /// File position of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.loaded - (self.buffer.len() - self.next) as u64
    }

    pub(super) fn source_name(&self) -> String {
        self.file.name().to_string()
    }

    /// Bytes that the header can still have.
    fn remaining(&self) -> u64 {
        self.file.size().min(MAX_HEADER_BYTES).saturating_sub(self.position())
    }

    /// Checks that `bytes` more can be read.
    fn require(&self, bytes: u64, place: Place<'_>) -> Result<()> {
        if bytes <= self.remaining() {
            return Ok(());
        }
        let needed = self.position().saturating_add(bytes);
        let source_name = self.source_name();
        if needed <= self.file.size() {
            let what = format!("end of {place}, in bytes from the start");
            return Err(SourceError::LimitExceeded { source_name, what, found: needed, limit: MAX_HEADER_BYTES }.into());
        }
        let file_size = self.file.size();
        Err(SourceError::Truncated { source_name, what: place.to_string(), needed, file_size }.into())
    }

    /// The next `out.len()` bytes, which must have been required.
    fn fill(&mut self, mut out: &mut [u8], place: Place<'_>) -> Result<()> {
        while !out.is_empty() {
            if self.next == self.buffer.len() {
                self.load(place)?;
            }
            let n = out.len().min(self.buffer.len() - self.next);
            let (head, tail) = out.split_at_mut(n);
            head.copy_from_slice(&self.buffer[self.next..self.next + n]);
            self.next += n;
            out = tail;
        }
        Ok(())
    }

    fn load(&mut self, place: Place<'_>) -> Result<()> {
        // At least one byte, or `fill` would not end: beyond the file this read fails.
        let n = self.file.size().saturating_sub(self.loaded).clamp(1, BUFFER as u64) as usize;
        self.buffer.resize(n, 0);
        self.next = n;
        self.file.read_exact_at(&mut self.buffer, self.loaded, || place.to_string())?;
        self.loaded += n as u64;
        self.next = 0;
        Ok(())
    }

    /// The next `N` bytes.
    pub(super) fn bytes<const N: usize>(&mut self, place: Place<'_>) -> Result<[u8; N]> {
        let mut out = [0; N];
        if let Some(ready) = self.buffer.get(self.next..self.next + N) {
            // The buffer may reach past the header's limit: `require` decides, not the buffer.
            if self.remaining() >= N as u64 {
                out.copy_from_slice(ready);
                self.next += N;
                return Ok(out);
            }
        }
        self.require(N as u64, place)?;
        self.fill(&mut out, place)?;
        Ok(out)
    }

    pub(super) fn u32(&mut self, place: Place<'_>) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes(place)?))
    }

    pub(super) fn u64(&mut self, place: Place<'_>) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(place)?))
    }

    /// A count of things of at least `min_bytes` each.
    pub(super) fn count(&mut self, min_bytes: u64, place: Place<'_>) -> Result<usize> {
        let count = self.u64(place)?;
        let most = self.remaining() / min_bytes;
        match usize::try_from(count) {
            Ok(small) if count <= most => Ok(small),
            _ => Err(SourceError::ImpossibleCount {
                source_name: self.source_name(),
                what: place.to_string(),
                count,
                most,
            }
            .into()),
        }
    }

    /// Text with its length before it.
    pub(super) fn string(&mut self, limit: u64, place: Place<'_>) -> Result<String> {
        let length = self.u64(place)?;
        if length > limit {
            let what = format!("length of {place}, in bytes");
            let source_name = self.source_name();
            return Err(SourceError::LimitExceeded { source_name, what, found: length, limit }.into());
        }
        self.require(length, place)?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes, place)?;
        String::from_utf8(bytes).map_err(|error| {
            let index = error.utf8_error().valid_up_to();
            let byte = error.as_bytes().get(index).copied().unwrap_or_default();
            SourceError::InvalidUtf8 { source_name: self.source_name(), what: place.to_string(), index, byte }.into()
        })
    }

    /// `count` numbers of `N` bytes.
    pub(super) fn numbers<T, const N: usize>(
        &mut self,
        count: usize,
        place: Place<'_>,
        convert: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        // `count` was checked, so what is reserved here is in the file.
        self.require(count as u64 * N as u64, place)?;
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            out.push(convert(self.bytes(place)?));
        }
        Ok(out)
    }

    /// `count` things whose size in memory is more than their least size in the file: reserved as they come, so that
    /// a false count costs no memory.
    pub(super) fn growing<T>(
        &mut self,
        count: usize,
        mut read: impl FnMut(&mut Self, usize) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut out = Vec::with_capacity(count.min(FIRST_RESERVE));
        for index in 0..count {
            if out.len() == out.capacity() {
                out.reserve_exact(out.len().max(FIRST_RESERVE).min(count - index));
            }
            out.push(read(self, index)?);
        }
        Ok(out)
    }
}
