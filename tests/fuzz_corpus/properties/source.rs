//! What holds for every source of weights that opened.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use candlewick::source::{Metadata, WeightSource};
use candlewick::{Error, SourceError};

use super::check_error;

/// An empty directory that goes away with the value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("candlewick-fuzz-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("the system's folder for temporary files can be written");
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("the system's folder for temporary files can be written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Every typed question about every key has an answer.
pub(crate) fn check_metadata(metadata: &Metadata) {
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

/// Every tensor of a type that can be read reads whole, and nothing outside of it does. The bytes of those, and whether
/// they are all.
pub(crate) fn check_tensors(source: &dyn WeightSource) -> (u64, bool) {
    let (mut bytes, mut all) = (0, true);
    for info in source.tensors() {
        assert_eq!(source.tensor(&info.name), Some(info));
        match source.read(&info.name, 0, &mut []) {
            Ok(()) => {
                read_tensor(source, &info.name, info.size_in_bytes);
                bytes += info.size_in_bytes as u64;
            }
            Err(error) => {
                assert!(matches!(error, Error::Source(SourceError::UnsupportedType { .. })), "{error}");
                check_error(&error);
                all = false;
            }
        }
    }
    let absent = source.read("no such tensor", 0, &mut [0]).expect_err("there is none of this name");
    check_error(&absent);
    (bytes, all)
}

fn read_tensor(source: &dyn WeightSource, name: &str, size: usize) {
    const PIECE: usize = 4096;
    let mut buffer = [0; PIECE];
    for start in (0..size).step_by(PIECE) {
        let len = PIECE.min(size - start);
        source.read(name, start as u64, &mut buffer[..len]).expect("the header was checked against the file");
    }
    for (offset, len) in [(size as u64, 1), (u64::MAX, 1), (size.saturating_sub(1) as u64, 2)] {
        check_error(&source.read(name, offset, &mut buffer[..len]).expect_err("outside of the tensor"));
    }
}
