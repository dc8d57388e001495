//! One safetensors file: its header, checked.
//!
//! Layout: the length of the header as u64, the header as a JSON object from tensor names to type, shape and range of
//! bytes, then the data. The ranges must cover the data without overlaps and holes. Every number is hostile until it is
//! checked here. Must not know what tensors are for.

use super::json::Json;
use crate::source::file::PositionedFile;
use crate::source::{shown, Dtype, TensorInfo, TypeName};
use crate::{Result, SourceError};

/// The format's own limit is 100 MB.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the length before the header.
const PREFIX: u64 = 8;
const WHAT: &str = "the header";

/// A checked header.
pub(super) struct Header {
    /// In the order of the header.
    pub(super) tensors: Vec<TensorInfo>,
    /// First byte of each tensor in the file.
    pub(super) starts: Vec<u64>,
    /// Bytes of the file before the data.
    pub(super) header_bytes: u64,
}

/// Reads and checks the header of `file`.
pub(super) fn read(file: &PositionedFile) -> Result<Header> {
    let truncated = |needed: u64| SourceError::Truncated {
        source_name: file.name().to_string(),
        what: WHAT.to_string(),
        needed,
        file_size: file.size(),
    };
    if file.size() < PREFIX {
        return Err(truncated(PREFIX).into());
    }
    let mut prefix = [0; PREFIX as usize];
    file.read_exact_at(&mut prefix, 0, || WHAT.to_string())?;
    if let Some(found) = something_else(&prefix) {
        return Err(SourceError::NotSafetensors { source_name: file.name().to_string(), found }.into());
    }
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER_BYTES {
        return Err(SourceError::LimitExceeded {
            source_name: file.name().to_string(),
            what: "length of the header, in bytes".to_string(),
            found: length,
            limit: MAX_HEADER_BYTES,
        }
        .into());
    }
    let header_bytes = PREFIX + length;
    if header_bytes > file.size() {
        return Err(truncated(header_bytes).into());
    }
    let mut text = vec![0; length as usize];
    file.read_exact_at(&mut text, PREFIX, || WHAT.to_string())?;

    let mut header = Header { tensors: Vec::new(), starts: Vec::new(), header_bytes };
    let data_bytes = file.size() - header_bytes;
    let mut json = Json::new(file.name(), WHAT, &text);
    json.object(|json, name| {
        if name == "__metadata__" {
            return json.object(|json, _| json.string().map(drop));
        }
        let (info, begin) = tensor(json, file, name, data_bytes)?;
        header.tensors.push(info);
        header.starts.push(header_bytes + begin);
        Ok(())
    })?;
    json.end()?;
    cover(file, &header, data_bytes)?;
    Ok(header)
}

/// What the first bytes are if the file is of another kind.
fn something_else(prefix: &[u8; PREFIX as usize]) -> Option<&'static str> {
    match prefix {
        b"version " => Some("a Git LFS pointer: fetch the file that it stands for"),
        b"<!DOCTYP" => Some("a web page: the download went wrong"),
        [b'G', b'G', b'U', b'F', ..] => Some("a GGUF file: open it with `Gguf::open`"),
        [b'P', b'K', 3, 4, ..] => Some("a zip archive (a PyTorch checkpoint?): convert it to safetensors"),
        _ => None,
    }
}

/// One entry, with the first byte of its data.
fn tensor(json: &mut Json<'_>, file: &PositionedFile, name: String, data_bytes: u64) -> Result<(TensorInfo, u64)> {
    let (mut dtype, mut shape, mut range) = (None, None, None);
    json.object(|json, key| {
        match key.as_str() {
            "dtype" if dtype.is_none() => dtype = Some(type_of(&json.string()?)),
            "shape" if shape.is_none() => {
                let mut dims = Vec::new();
                json.array(|json| {
                    let dim = json.unsigned()?;
                    dims.push(usize::try_from(dim).map_err(|_| json.unexpected("a dimension that fits in memory"))?);
                    Ok(())
                })?;
                shape = Some(dims);
            }
            "data_offsets" if range.is_none() => {
                let mut offsets = [0; 2];
                let mut count = 0;
                json.array(|json| {
                    let Some(offset) = offsets.get_mut(count) else { return Err(json.unexpected("two offsets")) };
                    (*offset, count) = (json.unsigned()?, count + 1);
                    Ok(())
                })?;
                if count != 2 {
                    return Err(json.unexpected(format!("two offsets for tensor `{}`", shown(&name))));
                }
                range = Some(offsets);
            }
            _ => {
                let expected = "`dtype`, `shape` and `data_offsets` once each, found another key before:";
                return Err(json.unexpected(format!("for tensor `{}` {expected}", shown(&name))));
            }
        }
        Ok(())
    })?;
    let (Some(dtype), Some(shape), Some([begin, end])) = (dtype, shape, range) else {
        let expected = format!("`dtype`, `shape` and `data_offsets` of tensor `{}` before", shown(&name));
        return Err(json.unexpected(expected));
    };
    let source_name = || file.name().to_string();
    if begin > end || end > data_bytes {
        return Err(SourceError::Truncated {
            source_name: source_name(),
            what: format!("tensor `{}` (bytes {begin} to {end} of the data)", shown(&name)),
            needed: (file.size() - data_bytes).saturating_add(end.max(begin)),
            file_size: file.size(),
        }
        .into());
    }
    let found = (end - begin) as usize;
    if dtype.is_sized() {
        let len = shape.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim));
        let Some(expected) = len.and_then(|len| dtype.size_in_bytes(len)) else {
            return Err(SourceError::InvalidShape {
                source_name: source_name(),
                tensor: shown(&name),
                expected: format!("a size in memory that a machine can address ({dtype})"),
                found: format!("shape {:?}", &shape[..shape.len().min(8)]),
            }
            .into());
        };
        if expected != found {
            let tensor = shown(&name);
            return Err(SourceError::TensorBytes { source_name: source_name(), tensor, expected, found }.into());
        }
    }
    Ok((TensorInfo { name, dtype, shape, size_in_bytes: found }, begin))
}

fn type_of(name: &str) -> Dtype {
    match name {
        "F32" => Dtype::F32,
        "F16" => Dtype::F16,
        "BF16" => Dtype::BF16,
        "F64" => Dtype::F64,
        "I8" => Dtype::I8,
        "I16" => Dtype::I16,
        "I32" => Dtype::I32,
        "I64" => Dtype::I64,
        other => Dtype::Foreign(TypeName::new(other)),
    }
}

/// Checks that every byte of the data belongs to exactly one tensor.
fn cover(file: &PositionedFile, header: &Header, data_bytes: u64) -> Result<()> {
    let begin = |i: u32| header.starts[i as usize] - header.header_bytes;
    let end = |i: u32| begin(i) + header.tensors[i as usize].size_in_bytes as u64;
    let mut order: Vec<u32> = (0..header.tensors.len() as u32).collect();
    order.sort_unstable_by_key(|&i| (begin(i), end(i)));
    let mut covered = 0;
    let mut last = None;
    for i in order {
        match (begin(i).cmp(&covered), last) {
            (std::cmp::Ordering::Less, Some(last)) => {
                let name = |i: u32| shown(&header.tensors[i as usize].name);
                let (first, second) = (name(last), name(i));
                let source_name = file.name().to_string();
                return Err(SourceError::OverlappingTensors { source_name, first, second }.into());
            }
            (std::cmp::Ordering::Greater, _) => return Err(unclaimed(file, covered, begin(i))),
            _ => (covered, last) = (end(i), Some(i)),
        }
    }
    if covered < data_bytes {
        return Err(unclaimed(file, covered, data_bytes));
    }
    Ok(())
}

fn unclaimed(file: &PositionedFile, at: u64, end: u64) -> crate::Error {
    SourceError::UnclaimedBytes { source_name: file.name().to_string(), at, bytes: end - at }.into()
}
