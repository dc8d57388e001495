//! GGUF files: whatever the bytes say, opening and reading ends in values or in an error, within the file's own size.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use candlewick::source::{Metadata, WeightSource};
use candlewick::testing::GgufWriter;
use candlewick::{Error, Gguf, SourceError};

use super::check_error;

/// A file that goes away with the value.
struct File(PathBuf);

impl File {
    fn new(bytes: &[u8]) -> File {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("candlewick-fuzz-{}-{}.gguf", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).expect("the system's folder for temporary files can be written");
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `data` is a whole file. Whether it opens.
pub(crate) fn check(data: &[u8]) -> bool {
    let file = File::new(data);
    let source = match Gguf::open(&file.0) {
        Ok(source) => source,
        Err(error) => {
            check_error(&error);
            return false;
        }
    };
    assert!(source.header_bytes() <= data.len() as u64);
    read_metadata(source.metadata());
    let mut bytes = 0;
    let mut readable = true;
    for info in source.tensors() {
        assert_eq!(source.tensor(&info.name), Some(info));
        bytes += info.size_in_bytes;
        readable &= read_tensor(&source, &info.name, info.size_in_bytes);
    }
    // Tensors overlap neither each other nor the header.
    assert!(bytes as u64 + source.header_bytes() <= data.len() as u64);
    if readable {
        write_and_read_again(&source);
    }
    true
}

/// Every typed question about every key has an answer.
fn read_metadata(metadata: &Metadata) {
    for (key, value) in metadata.iter() {
        assert_eq!(format!("{:?}", metadata.value(key)), format!("{:?}", Some(value)));
        let errors = [
            metadata.string(key).err(),
            metadata.unsigned(key).err(),
            metadata.float(key).err(),
            metadata.bool(key).err(),
            metadata.strings(key).err(),
            metadata.floats(key).err(),
            metadata.integers(key).err(),
            metadata.bools(key).err(),
        ];
        errors.iter().flatten().for_each(check_error);
    }
}

/// Reads a tensor in pieces, and outside of it; whether its type can be read.
fn read_tensor(source: &Gguf, name: &str, size: usize) -> bool {
    const PIECE: usize = 4096;
    let mut buffer = [0; PIECE];
    for start in (0..size).step_by(PIECE) {
        let len = PIECE.min(size - start);
        source.read(name, start as u64, &mut buffer[..len]).expect("the header was checked against the file");
    }
    let outside = [(size as u64, 1), (u64::MAX, 1), (size.saturating_sub(1) as u64, 2)];
    for (offset, len) in outside {
        check_error(&source.read(name, offset, &mut buffer[..len]).expect_err("outside of the tensor"));
    }
    let unsupported = |error: &Error| matches!(error, Error::Source(SourceError::UnsupportedType { .. }));
    match source.read(name, 0, &mut buffer[..0]) {
        Ok(()) => true,
        Err(error) => {
            assert!(unsupported(&error) && size == 0, "{error}");
            false
        }
    }
}

/// What was understood can be written, and means the same then.
fn write_and_read_again(source: &Gguf) {
    let bytes = GgufWriter::new().to_bytes(source).expect("all tensors were read");
    let file = File::new(&bytes);
    let again = Gguf::open(&file.0).unwrap_or_else(|error| panic!("written again, it does not open: {error}"));
    assert_eq!(again.tensors(), source.tensors());
    assert_eq!(entries(again.metadata()), entries(source.metadata()));
}

/// NaN is not equal to itself, but its writing is. The alignment belongs to the file.
fn entries(metadata: &Metadata) -> Vec<(String, String)> {
    let entries = metadata.iter().filter(|(key, _)| *key != "general.alignment");
    let mut entries: Vec<_> = entries.map(|(key, value)| (key.to_string(), format!("{value:?}"))).collect();
    entries.sort();
    entries
}
