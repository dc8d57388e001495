//! GGUF files: whatever the bytes say, opening and reading ends in values or in an error, within the file's own size.

use candlewick::source::{Metadata, WeightSource};
use candlewick::testing::GgufWriter;
use candlewick::Gguf;

use super::check_error;
use super::source::{check_metadata, check_tensors, Folder};

/// `data` is a whole file. Whether it opens.
pub(crate) fn check(data: &[u8]) -> bool {
    let folder = Folder::new();
    let source = match Gguf::open(folder.write("model.gguf", data)) {
        Ok(source) => source,
        Err(error) => {
            check_error(&error);
            return false;
        }
    };
    check_metadata(source.metadata());
    let (bytes, all) = check_tensors(&source);
    // Tensors overlap neither each other nor the header.
    assert!(bytes + source.header_bytes() <= data.len() as u64);
    if all {
        write_and_read_again(&source, &folder);
    }
    true
}

/// What was understood can be written, and means the same then.
fn write_and_read_again(source: &Gguf, folder: &Folder) {
    let bytes = GgufWriter::new().to_bytes(source).expect("all tensors were read");
    let again = Gguf::open(folder.write("again.gguf", &bytes));
    let again = again.unwrap_or_else(|error| panic!("written again, it does not open: {error}"));
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
