//! One GGUF header: metadata, the list of tensors and where their bytes are.
//!
//! Every number of the file is hostile until it is checked here: nothing is allocated by a count that the rest of the
//! file cannot hold, sums are checked, and a tensor that passes lies within the file and overlaps no other. Layout: the
//! GGUF specification, versions 2 and 3, little-endian. Must not know what any model key means, except for
//! `general.alignment`.

use super::reader::{Place, Reader, MAX_NAME_BYTES};
use crate::source::file::PositionedFile;
use crate::source::{shape_problem, shown, Array, Dtype, Metadata, TensorInfo, Value};
use crate::{Result, SourceError};

/// Real models have under a hundred keys. The limit also bounds the gaps of the table that holds them.
const MAX_KEYS: u64 = 16_384;
/// Levels of arrays within arrays.
const MAX_DEPTH: usize = 4;
const MAX_DIMS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";

/// A name of one byte, a type and a value of one byte.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;
/// An empty name, one dimension, type and offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U32: u32 = 4;

/// A checked header.
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) metadata: Metadata,
    /// In file order.
    pub(super) tensors: Vec<TensorInfo>,
    /// First byte of each tensor in the file.
    pub(super) starts: Vec<u64>,
    /// Bytes of the file up to the end of the tensor list.
    pub(super) header_bytes: u64,
}

/// Reads and checks the header of `file`.
pub(super) fn read(file: &PositionedFile) -> Result<Header> {
    let mut reader = Reader::new(file);
    let reader = &mut reader;
    let version = version(reader, file)?;
    let tensor_count = reader.count(MIN_TENSOR_BYTES, Place::TensorCount)?;
    let key_count = reader.count(MIN_KEY_BYTES, Place::KeyCount)?;
    if key_count as u64 > MAX_KEYS {
        let what = Place::KeyCount.to_string();
        let source_name = reader.source_name();
        return Err(SourceError::LimitExceeded { source_name, what, found: key_count as u64, limit: MAX_KEYS }.into());
    }

    let mut metadata = Metadata::new(file.name());
    let mut alignment = DEFAULT_ALIGNMENT;
    for index in 0..key_count {
        let key = reader.string(MAX_NAME_BYTES, Place::KeyName(index as u64))?;
        let type_id = reader.u32(Place::Value(&key))?;
        let value = value(reader, &key, type_id)?;
        if metadata.value(&key).is_some() {
            return Err(SourceError::DuplicateKey { source_name: reader.source_name(), key: shown(&key) }.into());
        }
        let is_alignment = key == ALIGNMENT_KEY;
        metadata.insert(key, value);
        if is_alignment {
            alignment = match metadata.value(ALIGNMENT_KEY) {
                Some(Value::Unsigned(v)) if type_id == U32 && v.is_power_of_two() => *v,
                _ if type_id != U32 => {
                    let expected = "a u32 (value type 4)".to_string();
                    let found = format!("value type {type_id}");
                    let source_name = reader.source_name();
                    let key = ALIGNMENT_KEY.to_string();
                    return Err(SourceError::InvalidKey { source_name, key, expected, found }.into());
                }
                _ => return Err(metadata.invalid(ALIGNMENT_KEY, "a power of two").into()),
            };
        }
    }

    let listed = reader.growing(tensor_count, |reader, index| tensor(reader, index as u64))?;
    let header_bytes = reader.position();
    let (tensors, offsets): (Vec<_>, Vec<_>) = listed.into_iter().unzip();
    let starts = starts(file, &tensors, offsets, header_bytes, alignment)?;
    overlaps(file, &tensors, &starts)?;
    Ok(Header { version, metadata, tensors, starts, header_bytes })
}

fn version(reader: &mut Reader<'_>, file: &PositionedFile) -> Result<u32> {
    let source_name = reader.source_name();
    if file.size() == 0 {
        return Err(SourceError::NotGguf { source_name, found: "an empty file; download it again".into() }.into());
    }
    let magic: [u8; 4] = reader.bytes(Place::Start("magic"))?;
    match &magic {
        b"GGUF" => {}
        b"FUGG" => return Err(SourceError::BigEndian { source_name }.into()),
        other => {
            let hint = match other {
                b"vers" => " (a Git LFS pointer: fetch the file that it stands for)",
                b"<!DO" | b"<htm" => " (a web page: the download went wrong)",
                b"lmgg" | b"fmgg" | b"tjgg" | b"algg" => " (an older format of ggml: convert the model again)",
                b"PK\x03\x04" => " (a zip archive)",
                _ => "",
            };
            let found = format!("`{}`{hint}", other.escape_ascii());
            return Err(SourceError::NotGguf { source_name, found }.into());
        }
    }
    match reader.u32(Place::Start("version"))? {
        version @ (2 | 3) => Ok(version),
        // Small numbers of the other byte order.
        swapped if swapped != 0 && swapped & 0xFFFF == 0 => Err(SourceError::BigEndian { source_name }.into()),
        version => Err(SourceError::UnsupportedVersion { source_name, version }.into()),
    }
}

fn value(reader: &mut Reader<'_>, key: &str, type_id: u32) -> Result<Value> {
    let place = Place::Value(key);
    Ok(match type_id {
        0 => Value::Unsigned(u8::from_le_bytes(reader.bytes(place)?).into()),
        1 => Value::Signed(i8::from_le_bytes(reader.bytes(place)?).into()),
        2 => Value::Unsigned(u16::from_le_bytes(reader.bytes(place)?).into()),
        3 => Value::Signed(i16::from_le_bytes(reader.bytes(place)?).into()),
        U32 => Value::Unsigned(reader.u32(place)?.into()),
        5 => Value::Signed(i32::from_le_bytes(reader.bytes(place)?).into()),
        6 => Value::Float(f32::from_le_bytes(reader.bytes(place)?).into()),
        BOOL => {
            let byte = reader.bytes(place)?;
            Value::Bool(bool_of(reader, key, byte)?)
        }
        STRING => Value::String(reader.string(u64::MAX, place)?),
        ARRAY => Value::Array(array(reader, key, 1)?),
        10 => Value::Unsigned(reader.u64(place)?),
        11 => Value::Signed(i64::from_le_bytes(reader.bytes(place)?)),
        12 => Value::Float(f64::from_le_bytes(reader.bytes(place)?)),
        _ => return Err(unknown_type(reader, key, type_id)),
    })
}

fn array(reader: &mut Reader<'_>, key: &str, depth: usize) -> Result<Array> {
    if depth > MAX_DEPTH {
        let source_name = reader.source_name();
        return Err(SourceError::NestedTooDeep { source_name, key: shown(key), limit: MAX_DEPTH }.into());
    }
    let place = Place::Value(key);
    let type_id = reader.u32(place)?;
    let min_bytes = match type_id {
        0 | 1 | BOOL => 1,
        2 | 3 => 2,
        4..=6 => 4,
        STRING | 10..=12 => 8,
        ARRAY => 12,
        _ => return Err(unknown_type(reader, key, type_id)),
    };
    let n = reader.count(min_bytes, place)?;
    Ok(match type_id {
        0 => Array::U8(reader.numbers(n, place, u8::from_le_bytes)?),
        1 => Array::I8(reader.numbers(n, place, i8::from_le_bytes)?),
        2 => Array::U16(reader.numbers(n, place, u16::from_le_bytes)?),
        3 => Array::I16(reader.numbers(n, place, i16::from_le_bytes)?),
        4 => Array::U32(reader.numbers(n, place, u32::from_le_bytes)?),
        5 => Array::I32(reader.numbers(n, place, i32::from_le_bytes)?),
        6 => Array::F32(reader.numbers(n, place, f32::from_le_bytes)?),
        BOOL => Array::Bool(reader.growing(n, |reader, _| {
            let byte = reader.bytes(place)?;
            bool_of(reader, key, byte)
        })?),
        STRING => Array::String(reader.growing(n, |reader, i| reader.string(u64::MAX, Place::Element(key, i)))?),
        ARRAY => Array::Array(reader.growing(n, |reader, _| array(reader, key, depth + 1))?),
        10 => Array::U64(reader.numbers(n, place, u64::from_le_bytes)?),
        11 => Array::I64(reader.numbers(n, place, i64::from_le_bytes)?),
        _ => Array::F64(reader.numbers(n, place, f64::from_le_bytes)?),
    })
}

fn bool_of(reader: &Reader<'_>, key: &str, [byte]: [u8; 1]) -> Result<bool> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(SourceError::InvalidKey {
            source_name: reader.source_name(),
            key: shown(key),
            expected: "a bool (byte 0 or 1)".into(),
            found: format!("byte {byte}"),
        }
        .into()),
    }
}

fn unknown_type(reader: &Reader<'_>, key: &str, type_id: u32) -> crate::Error {
    SourceError::UnknownValueType { source_name: reader.source_name(), key: shown(key), type_id }.into()
}

/// One entry of the tensor list, with its offset within the tensor data.
fn tensor(reader: &mut Reader<'_>, index: u64) -> Result<(TensorInfo, u64)> {
    let name = reader.string(MAX_NAME_BYTES, Place::TensorName(index))?;
    let place = Place::Tensor(&name);
    let bad_shape = |reader: &Reader<'_>, expected: String, found: String| SourceError::InvalidShape {
        source_name: reader.source_name(),
        tensor: shown(&name),
        expected,
        found,
    };
    let dims = reader.u32(place)?;
    if dims == 0 || dims > MAX_DIMS {
        return Err(bad_shape(reader, format!("1 to {MAX_DIMS} dimensions"), dims.to_string()).into());
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        let length = reader.u64(place)?;
        let fits = usize::try_from(length);
        shape.push(fits.map_err(|_| bad_shape(reader, "a dimension that fits in memory".into(), length.to_string()))?);
    }
    // The file lists the fastest axis first.
    shape.reverse();
    let type_id = reader.u32(place)?;
    let dtype = Dtype::from_ggml(type_id).unwrap_or(Dtype::Unknown(type_id));
    let size_in_bytes = shape_problem(dtype, &shape).map_err(|(expected, found)| bad_shape(reader, expected, found))?;
    let offset = reader.u64(place)?;
    Ok((TensorInfo { name, dtype, shape, size_in_bytes }, offset))
}

/// Turns offsets within the tensor data into positions in the file, all within it.
fn starts(
    file: &PositionedFile,
    tensors: &[TensorInfo],
    mut offsets: Vec<u64>,
    header_bytes: u64,
    alignment: u64,
) -> Result<Vec<u64>> {
    // Both are far below 2^63: the header is limited and the alignment is a u32.
    let data = header_bytes.next_multiple_of(alignment);
    for (info, offset) in tensors.iter().zip(&mut offsets) {
        if *offset % alignment != 0 {
            return Err(SourceError::MisalignedTensor {
                source_name: file.name().to_string(),
                tensor: shown(&info.name),
                offset: *offset,
                alignment,
            }
            .into());
        }
        let start = data.checked_add(*offset);
        let end = start.and_then(|s| s.checked_add(info.size_in_bytes as u64));
        match (start, end) {
            (Some(start), Some(end)) if end <= file.size() => *offset = start,
            _ => {
                return Err(SourceError::Truncated {
                    source_name: file.name().to_string(),
                    what: format!("tensor `{}`", shown(&info.name)),
                    needed: end.unwrap_or(u64::MAX),
                    file_size: file.size(),
                }
                .into())
            }
        }
    }
    Ok(offsets)
}

/// Refuses tensors that share bytes: no converter writes them, and they would let a small file claim much memory.
fn overlaps(file: &PositionedFile, tensors: &[TensorInfo], starts: &[u64]) -> Result<()> {
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    let end = |i: u32| starts[i as usize] + tensors[i as usize].size_in_bytes as u64;
    order.sort_unstable_by_key(|&i| (starts[i as usize], end(i)));
    for pair in order.windows(2) {
        if end(pair[0]) > starts[pair[1] as usize] {
            return Err(SourceError::OverlappingTensors {
                source_name: file.name().to_string(),
                first: shown(&tensors[pair[0] as usize].name),
                second: shown(&tensors[pair[1] as usize].name),
            }
            .into());
        }
    }
    Ok(())
}
