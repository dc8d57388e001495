//! Damaged and hostile GGUF files: a typed error that names what is wrong, no panic, bounded memory.
mod counting;
mod temp_dir;

use std::cell::Cell;
use std::path::{Path, PathBuf};

use candlewick::source::{Dtype, Gguf, Memory, WeightSource};
use candlewick::testing::{GgufWriter, TinyModel};
use candlewick::{Error, SourceError};
use counting::measured;
use proptest::prelude::*;
use temp_dir::TempDir;

/// Memory that is not in proportion to the file: the read buffer, the first reserves, error texts.
const CONSTANT: isize = 256 * 1024;

fn error_at(path: &Path) -> SourceError {
    match Gguf::open(path) {
        Err(Error::Source(error)) => error,
        other => panic!("expected a source error, found {other:?}"),
    }
}

fn error_of(bytes: &[u8]) -> SourceError {
    let dir = TempDir::new();
    let path = dir.write("hostile.gguf", bytes);
    let (error, peak, _) = measured(|| error_at(&path));
    assert!(peak <= 8 * bytes.len() as isize + CONSTANT, "{peak} bytes of memory for a file of {}", bytes.len());
    assert!(error.to_string().contains("hostile.gguf"), "the file is not named: {error}");
    error
}

/// The error is of the variant and its message names all of the words.
macro_rules! assert_error {
    ($error:expr, $variant:ident, $($word:expr),*) => {{
        let error = $error;
        assert!(matches!(error, SourceError::$variant { .. }), "expected {}, found {error:?}", stringify!($variant));
        let message = error.to_string();
        $(assert!(message.contains($word), "`{}` is not in: {message}", $word);)*
    }};
}

/// GGUF bytes written field by field, with any contradiction.
#[derive(Clone)]
struct Raw(Vec<u8>);

const U8: u32 = 0;
const U32: u32 = 4;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;

fn raw(tensors: u64, keys: u64) -> Raw {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend(tensors.to_le_bytes());
    out.extend(keys.to_le_bytes());
    Raw(out)
}

impl Raw {
    fn put(mut self, bytes: impl AsRef<[u8]>) -> Raw {
        self.0.extend(bytes.as_ref());
        self
    }

    fn u32(self, value: u32) -> Raw {
        self.put(value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Raw {
        self.put(value.to_le_bytes())
    }

    fn text(self, text: impl AsRef<[u8]>) -> Raw {
        self.u64(text.as_ref().len() as u64).put(text)
    }

    fn key(self, key: &str, type_id: u32) -> Raw {
        self.text(key).u32(type_id)
    }

    fn tensor(self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Raw {
        let head = self.text(name).u32(dims.len() as u32);
        dims.iter().fold(head, |raw, &dim| raw.u64(dim)).u32(type_id).u64(offset)
    }

    /// Pads to 32 and adds `bytes` of data.
    fn data(mut self, bytes: usize) -> Vec<u8> {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + bytes, 0);
        self.0
    }
}

/// A small but complete model: its file and the length of its header.
fn small_model() -> (Vec<u8>, usize) {
    let model = TinyModel { layers: 1, hidden: 32, heads: 2, kv_heads: 1, ff: 32, ..TinyModel::llama() };
    let bytes = GgufWriter::new().to_bytes(&model.build().unwrap()).unwrap();
    let dir = TempDir::new();
    let header = Gguf::open(dir.write("whole.gguf", &bytes)).unwrap().header_bytes();
    (bytes, header as usize)
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let (bytes, header) = small_model();
    assert!(header > 4096 && bytes.len() > 2 * header, "header {header} of {}", bytes.len());
    let dir = TempDir::new();
    let path = dir.write("cut.gguf", &bytes);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // From the end, so that each cut only shortens the file.
    for cut in (0..4096).chain((4096..bytes.len()).step_by(64)).chain([bytes.len() - 1]).rev() {
        file.set_len(cut as u64).unwrap();
        let (error, peak, _) = measured(|| error_at(&path));
        assert!(peak <= 8 * cut as isize + CONSTANT, "{peak} bytes of memory for a file of {cut}");
        let named = match &error {
            SourceError::NotGguf { .. } => cut == 0,
            SourceError::ImpossibleCount { .. } => cut < header,
            // In the data it is a tensor that is cut.
            SourceError::Truncated { what, file_size, needed, .. } => {
                *file_size == cut as u64 && *needed > cut as u64 && (cut < header || what.contains("tensor `"))
            }
            _ => false,
        };
        let message = error.to_string();
        assert!(named, "cut at {cut}: {error:?}");
        assert!(message.contains("cut.gguf") && message.contains("download it again"), "cut at {cut}: {message}");
    }
}

#[test]
fn memory_of_an_open_file_is_in_proportion_to_its_header() {
    let (bytes, header) = small_model();
    let dir = TempDir::new();
    let path = dir.write("whole.gguf", &bytes);
    let (gguf, peak, held) = measured(|| Gguf::open(&path).unwrap());
    assert!(held > header as isize / 2, "the allocator counts: {held} bytes held for a header of {header}");
    assert!(held <= 8 * header as isize, "{held} bytes held for a header of {header}");
    assert!(peak <= 8 * header as isize + CONSTANT, "{peak} bytes of memory for a header of {header}");
    drop(gguf);

    // The worst that is legal: empty strings, empty arrays in an array, the smallest keys, the smallest tensors.
    let n = 16_384u64;
    let strings = raw(0, 1).key("k", ARRAY).u32(STRING).u64(n).put(vec![0; 8 * n as usize]);
    let arrays = (0..n).fold(raw(0, 1).key("k", ARRAY).u32(ARRAY).u64(n), |r, _| r.u32(U8).u64(0));
    let keys = (0..n).fold(raw(0, n), |r, i| r.key(&format!("{i:x}"), U8).put([7]));
    let tensors = (0..n).fold(raw(n, 0), |r, i| r.tensor(&format!("{i:x}"), &[1], 24, 32 * i)).data(32 * n as usize);
    for (what, bytes, constant) in [
        ("strings", strings.data(0), CONSTANT),
        ("arrays", arrays.data(0), CONSTANT),
        // Keys have a table with gaps; their number is limited instead.
        ("keys", keys.data(0), 1 << 20),
        ("tensors", tensors, CONSTANT),
    ] {
        let path = dir.write("dense.gguf", &bytes);
        let (gguf, peak, _) = measured(|| Gguf::open(&path).unwrap());
        let header = gguf.header_bytes() as isize;
        assert!(peak <= 8 * header + constant, "{what}: {peak} bytes of memory for a header of {header}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_headers_do_no_harm(
        flips in prop::collection::vec((0.0..1.0f64, 0u8..8), 1..6),
        // An eight-byte field with a value that tends to break sums.
        field in prop::option::of((0.0..1.0f64, prop::sample::select(vec![
            0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, u64::from(u32::MAX), 1 << 32, 1 << 40,
        ]))),
    ) {
        let (mut bytes, header, dir) = MODEL.take().unwrap_or_else(|| {
            let (bytes, header) = small_model();
            (bytes, header, TempDir::new())
        });
        let whole = bytes[..header].to_vec();
        let position = |part: f64| (part * header as f64) as usize;
        for (part, bit) in flips {
            bytes[position(part)] ^= 1 << bit;
        }
        if let Some((part, value)) = field {
            let at = position(part).min(header - 8);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let path = dir.write("flipped.gguf", &bytes);
        let (result, peak, _) = measured(|| Gguf::open(&path));
        prop_assert!(peak <= 8 * bytes.len() as isize + CONSTANT, "{} bytes of memory", peak);
        match result {
            Ok(gguf) => {
                for tensor in gguf.tensors().to_vec() {
                    let mut all = vec![0; tensor.size_in_bytes];
                    let read = gguf.read(&tensor.name, 0, &mut all);
                    prop_assert_eq!(read.is_ok(), !matches!(tensor.dtype, Dtype::Unknown(_)));
                    prop_assert!(gguf.read(&tensor.name, tensor.size_in_bytes as u64, &mut [0]).is_err());
                }
            }
            Err(Error::Source(error)) => prop_assert!(error.to_string().contains("flipped.gguf"), "{}", error),
            Err(other) => prop_assert!(false, "{:?}", other),
        }
        bytes[..header].copy_from_slice(&whole);
        MODEL.set(Some((bytes, header, dir)));
    }
}

thread_local! {
    /// The model that is damaged, its header's length and where it is written.
    static MODEL: Cell<Option<(Vec<u8>, usize, TempDir)>> = const { Cell::new(None) };
}

#[test]
fn what_is_not_gguf() {
    assert_error!(error_of(b""), NotGguf, "empty");
    assert_error!(error_of(b"PK\x03\x04 and more"), NotGguf, "zip");
    assert_error!(error_of(b"<!DOCTYPE html><html>"), NotGguf, "web page");
    assert_error!(error_of(b"version https://git-lfs.github.com/spec/v1\n"), NotGguf, "LFS");
    assert_error!(error_of(b"\x00\x1b[1mxx"), NotGguf, "\\x00\\x1b[1");
    assert_error!(error_of(b"GG"), Truncated, "magic");
    assert_error!(error_of(b"GGUF\x03\0"), Truncated, "version");
    assert_error!(error_of(b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0"), UnsupportedVersion, "version 1", "2 and 3");
    assert_error!(error_of(b"GGUF\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), UnsupportedVersion, "version 4");
    assert_error!(error_of(b"GGUF\0\0\0\0"), UnsupportedVersion, "version 0");
    assert_error!(error_of(b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), BigEndian, "little-endian");
    assert_error!(error_of(b"FUGG\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), BigEndian, "little-endian");
}

#[test]
fn what_is_not_a_file() {
    let dir = TempDir::new();
    assert_error!(error_at(dir.path()), NotAFile, "directory");
    assert_error!(error_at(&dir.path().join("absent.gguf")), Io, "absent.gguf");
    #[cfg(unix)]
    assert_error!(error_at(Path::new("/dev/null")), NotAFile, "/dev/null");
}

#[test]
fn counts_and_lengths() {
    assert_error!(error_of(&raw(u64::MAX, 0).data(64)), ImpossibleCount, "tensors", "18446744073709551615");
    assert_error!(error_of(&raw(0, 1 << 40).data(64)), ImpossibleCount, "metadata keys", "1099511627776");
    let many = raw(0, 20_000).data(20_000 * 13);
    assert_error!(error_of(&many), LimitExceeded, "metadata keys", "20000", "16384");
    assert_error!(error_of(&raw(0, 1).u64(u64::MAX).data(64)), LimitExceeded, "key number 0", "65535");
    assert_error!(error_of(&raw(0, 1).u64(60_000).data(64)), Truncated, "key number 0", "download it again");
    let long = raw(0, 1).key("general.name", STRING).u64(u64::MAX);
    assert_error!(error_of(&long.data(64)), Truncated, "`general.name`");
    let long = raw(0, 1).key("tokenizer.ggml.tokens", ARRAY).u32(STRING).u64(2).text("a").u64(1 << 62);
    assert_error!(error_of(&long.data(64)), Truncated, "element 1", "`tokenizer.ggml.tokens`");
    for (type_id, bytes) in [(U8, 1u64), (U32, 4), (STRING, 8), (U64, 8)] {
        let array = raw(0, 1).key("a.list", ARRAY).u32(type_id).u64(200 / bytes + 1);
        assert_error!(error_of(&array.put([0; 200]).0), ImpossibleCount, "`a.list`");
        let array = raw(0, 1).key("a.list", ARRAY).u32(type_id).u64(u64::MAX);
        assert_error!(error_of(&array.put([0; 200]).0), ImpossibleCount, "`a.list`");
    }
    assert_error!(error_of(&raw(1, 0).u64(1 << 20).data(64)), LimitExceeded, "tensor number 0");
}

#[test]
fn keys_and_values() {
    let bad_key = raw(0, 1).text(b"general.\xFFname").u32(BOOL).put([1]);
    assert_error!(error_of(&bad_key.data(0)), InvalidUtf8, "key number 0", "0xFF", "index 8");
    let bad_token = raw(0, 1).key("tokenizer.ggml.tokens", ARRAY).u32(STRING).u64(2).text("ok").text(b"\xC3(");
    assert_error!(error_of(&bad_token.data(0)), InvalidUtf8, "`tokenizer.ggml.tokens`", "element 1", "0xC3");
    assert_error!(error_of(&raw(0, 1).key("a.b", 13).data(64)), UnknownValueType, "`a.b`", "13");
    assert_error!(error_of(&raw(0, 1).key("a.b", ARRAY).u32(99).u64(0).data(64)), UnknownValueType, "`a.b`", "99");
    assert_error!(error_of(&raw(0, 1).key("a.b", BOOL).put([2]).data(64)), InvalidKey, "`a.b`", "bool", "byte 2");
    let bools = raw(0, 1).key("a.b", ARRAY).u32(BOOL).u64(2).put([1, 9]);
    assert_error!(error_of(&bools.data(64)), InvalidKey, "`a.b`", "byte 9");
    let twice = raw(0, 2).key("a.b", U8).put([1]).key("a.b", U8).put([1]);
    assert_error!(error_of(&twice.data(0)), DuplicateKey, "`a.b`", "twice");
    let escape = raw(0, 1).key("a\u{1b}[2J", 77);
    assert_error!(error_of(&escape.data(64)), UnknownValueType, "a\\u{1b}[2J");
}

#[test]
fn nested_arrays() {
    let nested = |depth: u32| (0..depth).fold(raw(0, 1).key("a.deep", ARRAY), |r, _| r.u32(ARRAY).u64(1)).u32(U8);
    let dir = TempDir::new();
    let path = dir.write("nested.gguf", &nested(3).u64(1).data(32));
    assert!(Gguf::open(path).unwrap().metadata().value("a.deep").is_some());
    assert_error!(error_of(&nested(4).u64(1).data(32)), NestedTooDeep, "`a.deep`", "4 levels");
    assert_error!(error_of(&nested(100_000).u64(1).data(32)), NestedTooDeep, "`a.deep`");
}

#[test]
fn alignment() {
    let with = |type_id, value: &[u8]| raw(0, 1).key("general.alignment", type_id).put(value).data(64);
    for value in [0u32, 3, 48, u32::MAX] {
        let error = error_of(&with(U32, &value.to_le_bytes()));
        assert_error!(error, InvalidKey, "`general.alignment`", "power of two", value.to_string().as_str());
    }
    assert_error!(error_of(&with(U64, &32u64.to_le_bytes())), InvalidKey, "`general.alignment`", "u32", "type 10");
    assert_error!(error_of(&with(5, &32u32.to_le_bytes())), InvalidKey, "`general.alignment`", "u32", "type 5");
    // A huge but legal one puts the data beyond the end.
    let huge = raw(1, 1).key("general.alignment", U32).u32(1 << 31).tensor("t", &[1], 0, 0);
    assert_error!(error_of(&huge.data(64)), Truncated, "tensor `t`");
}

#[test]
fn shapes() {
    let with = |dims: &[u64], type_id| raw(1, 0).tensor("blk.0.x", dims, type_id, 0).data(4096);
    for dims in [&[][..], &[1; 5]] {
        assert_error!(
            error_of(&with(dims, 0)),
            InvalidShape,
            "`blk.0.x`",
            "1 to 4 dimensions",
            &dims.len().to_string()
        );
    }
    for dims in [&[0][..], &[4, 0], &[0, 4, 4]] {
        assert_error!(error_of(&with(dims, 0)), InvalidShape, "`blk.0.x`", "above zero", "0");
    }
    for dims in [&[u64::MAX][..], &[1 << 32, 1 << 32], &[1 << 62, 1], &[3, u64::MAX / 2], &[1 << 16; 4]] {
        assert_error!(error_of(&with(dims, 0)), InvalidShape, "`blk.0.x`", "machine can address");
    }
    // Of the unknown types the count of values is checked all the same.
    assert_error!(error_of(&with(&[1 << 32, 1 << 32], 999)), InvalidShape, "`blk.0.x`");
    assert_error!(error_of(&with(&[48, 2], 8)), InvalidShape, "`blk.0.x`", "32", "Q8_0", "[2, 48]");
    assert_error!(error_of(&with(&[128, 2], 12)), InvalidShape, "`blk.0.x`", "256", "Q4_K");
    let bad_name = raw(1, 0).text(b"blk\xFE").u32(1).u64(1).u32(0).u64(0);
    assert_error!(error_of(&bad_name.data(32)), InvalidUtf8, "tensor number 0", "0xFE");
    let no_shape = raw(1, 0).text("blk.0.x").u32(u32::MAX).data(64);
    assert_error!(error_of(&no_shape), InvalidShape, "`blk.0.x`", "4294967295");
}

#[test]
fn places_of_tensors() {
    let at = |offset: u64, data: usize| raw(1, 0).tensor("blk.0.x", &[8], 0, offset).data(data);
    assert_error!(error_of(&at(16, 4096)), MisalignedTensor, "`blk.0.x`", "16", "32");
    assert_error!(error_of(&at(64, 64)), Truncated, "`blk.0.x`", "download it again");
    assert_error!(error_of(&at(1 << 40, 64)), Truncated, "`blk.0.x`", "download it again");
    assert_error!(error_of(&at(u64::MAX - 31, 64)), Truncated, "`blk.0.x`");
    let twice = raw(2, 0).tensor("x", &[8], 0, 0).tensor("x", &[8], 0, 32);
    assert_error!(error_of(&twice.data(64)), DuplicateTensor, "`x`", "twice");
    for second in [0, 32] {
        let shared = raw(2, 0).tensor("a", &[16], 0, 0).tensor("b", &[8], 0, second);
        assert_error!(error_of(&shared.data(128)), OverlappingTensors, "`a`", "`b`");
    }
}

/// Parts of a split model, each of one tensor.
fn part(dir: &TempDir, number: u32, count: u32, keys: [(&str, u32); 3]) -> PathBuf {
    let mut source = Memory::new("part");
    keys.iter().for_each(|&(key, value)| drop(source.set(key, value)));
    let name = format!("part{number}");
    source.insert(name, Dtype::I8, &[4], vec![number as u8; 4]).unwrap();
    let bytes = GgufWriter::new().to_bytes(&source).unwrap();
    dir.write(&format!("m-{number:05}-of-{count:05}.gguf"), &bytes)
}

#[test]
fn split_models() {
    let keys = |no, count, tensors| [("split.no", no), ("split.count", count), ("split.tensors.count", tensors)];
    let dir = TempDir::new();
    let first = part(&dir, 1, 3, keys(0, 3, 3));
    let second = part(&dir, 2, 3, keys(1, 3, 3));
    assert_error!(error_at(&first), MissingPart, "part 3 of 3", "m-00003-of-00003.gguf");
    part(&dir, 3, 3, keys(2, 3, 3));
    assert_eq!(Gguf::open(&first).unwrap().num_parts(), 3);
    assert_error!(error_at(&second), NotFirstPart, "part 2 of 3", "00001-of-00003.gguf");

    part(&dir, 3, 3, keys(1, 3, 3));
    assert_error!(error_at(&first), InconsistentSplit, "m-00003-of-00003.gguf", "split.no 2", "found 1");
    part(&dir, 3, 3, [("a", 1), ("b", 2), ("c", 3)]);
    assert_error!(error_at(&first), InconsistentSplit, "split.no 2", "no such key");
    part(&dir, 3, 3, keys(2, 3, 3));
    std::fs::copy(&first, dir.path().join("renamed.gguf")).unwrap();
    assert_error!(
        error_at(&dir.path().join("renamed.gguf")),
        InconsistentSplit,
        "renamed.gguf",
        "-00001-of-00003.gguf"
    );

    let first = part(&dir, 1, 3, keys(0, 3, 4));
    assert_error!(error_at(&first), InconsistentSplit, "4 tensors", "3");
    let path = part(&dir, 1, 3, keys(0, 3, 3));
    std::fs::copy(&path, dir.path().join("m-00002-of-00003.gguf")).unwrap();
    assert_error!(error_at(&path), InconsistentSplit, "m-00002-of-00003.gguf");
    let huge = part(&dir, 1, 100_000, keys(0, 100_000, 3));
    assert_error!(error_at(&huge), InvalidKey, "`split.count`", "65535", "100000");
    let lost = part(&dir, 1, 2, [("split.count", 2), ("b", 1), ("c", 1)]);
    assert_error!(error_at(&lost), MissingKey, "`split.no`");
}
