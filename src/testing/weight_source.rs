//! The conformance suite of weight sources: what the engine relies on, checked on any implementation.
//!
//! Knows the trait only; must not know how a source stores what it has.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::source::{Dtype, TensorInfo, WeightSource};

/// Larger tensors are checked at their ends and in their middle.
const WHOLE: usize = 4 << 20;
const THREADS: usize = 4;
const ABSENT: &str = "candlewick: no tensor has this name";

/// Checks that a source keeps the contract of [`WeightSource`]; the source must not change meanwhile.
///
/// Reads at most some MiB of each tensor, each part several times.
///
/// # Errors
/// The first breach that is found, with the tensor's name.
pub fn check_weight_source(source: &dyn WeightSource) -> Result<(), String> {
    names(source)?;
    let mut sums = Vec::with_capacity(source.tensors().len());
    for info in source.tensors() {
        let fault = |what: String| format!("tensor `{}`: {what}", info.name);
        size(info).map_err(fault)?;
        let sum = if let Dtype::Unknown(_) = info.dtype {
            match read(source, &info.name, 0, 1)? {
                Ok(_) => return Err(fault("a byte of an unknown type was read".to_string())),
                Err(_) => 0,
            }
        } else {
            refusals(source, info)?;
            ranges(source, info)?
        };
        sums.push(sum);
    }
    threads(source, &sums)
}

fn names(source: &dyn WeightSource) -> Result<(), String> {
    if source.name().is_empty() {
        return Err("the source has no name for error messages".to_string());
    }
    let mut seen = HashSet::new();
    for info in source.tensors() {
        if !seen.insert(&info.name) {
            return Err(format!("tensor `{}` is listed twice", info.name));
        }
        match source.tensor(&info.name) {
            Some(found) if found == info => {}
            Some(_) => return Err(format!("tensor `{}` is described in two ways", info.name)),
            None => return Err(format!("tensor `{}` is listed but not found by its name", info.name)),
        }
    }
    if source.tensor(ABSENT).is_some() {
        return Err("a tensor is found under a name that is not listed".to_string());
    }
    match read(source, ABSENT, 0, 0)? {
        Ok(_) => Err("a tensor that is not listed can be read".to_string()),
        Err(_) => Ok(()),
    }
}

/// The size follows from type and shape, where the type has one.
fn size(info: &TensorInfo) -> Result<(), String> {
    if matches!(info.dtype, Dtype::Unknown(_) | Dtype::Foreign(_)) {
        return Ok(());
    }
    let len = info.shape.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim));
    let expected = len.and_then(|len| info.dtype.size_in_bytes(len));
    let blocks = info.shape.last().is_none_or(|row| row.is_multiple_of(info.dtype.block_len()));
    if expected != Some(info.size_in_bytes) || !blocks {
        return Err(format!(
            "{} bytes for shape {:?} of {}, expected {expected:?} in rows of whole blocks",
            info.size_in_bytes, info.shape, info.dtype
        ));
    }
    Ok(())
}

/// Reads outside of the tensor are errors; an empty read at its end is none.
fn refusals(source: &dyn WeightSource, info: &TensorInfo) -> Result<(), String> {
    let size = info.size_in_bytes as u64;
    for (offset, length) in [(size, 1), (size.saturating_sub(1), 2), (size + 1, 0), (u64::MAX, 1), (u64::MAX - 3, 16)] {
        if read(source, &info.name, offset, length)?.is_ok() {
            return Err(format!(
                "tensor `{}` has {size} bytes, and a read of {length} at byte {offset} succeeds",
                info.name
            ));
        }
    }
    read(source, &info.name, size, 0)?
        .map(drop)
        .map_err(|e| format!("tensor `{}`: an empty read at its end fails: {e}", info.name))
}

/// Parts equal the whole; answers a sum over what was read.
fn ranges(source: &dyn WeightSource, info: &TensorInfo) -> Result<u64, String> {
    let size = info.size_in_bytes;
    let mut hasher = DefaultHasher::new();
    let stretch = size.min(WHOLE / 2);
    let starts = match size <= WHOLE {
        true => vec![(0, size)],
        false => vec![(0, stretch), (size / 2, stretch.min(size - size / 2)), (size - stretch, stretch)],
    };
    for (start, length) in starts {
        let must = |offset: usize, length: usize| {
            read(source, &info.name, offset as u64, length)?.map_err(|e| {
                format!("tensor `{}`: a read of {length} bytes at byte {offset} of {size} fails: {e}", info.name)
            })
        };
        let whole = must(start, length)?;
        whole.hash(&mut hasher);
        for (from, to) in [(0, 1), (length - 1.min(length), length), (length / 3, length / 2), (length / 7 + 1, length)]
        {
            let (from, to) = (from.min(length), to.min(length));
            if from < to && must(start + from, to - from)? != whole[from..to] {
                return Err(format!(
                    "tensor `{}`: bytes {} to {} differ from those of a longer read",
                    info.name,
                    start + from,
                    start + to
                ));
            }
        }
    }
    Ok(hasher.finish())
}

/// Several threads at once read what one read.
fn threads(source: &dyn WeightSource, sums: &[u64]) -> Result<(), String> {
    let check = |first: usize| {
        // Each begins elsewhere, so that different tensors are read at the same time.
        let count = source.tensors().len();
        for i in (0..count).map(|i| (i + first * count / THREADS) % count) {
            let info = &source.tensors()[i];
            if !matches!(info.dtype, Dtype::Unknown(_)) && ranges(source, info)? != sums[i] {
                return Err(format!("tensor `{}`: another thread reads other bytes", info.name));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|first| scope.spawn(move || check(first))).collect();
        for thread in threads {
            thread.join().map_err(|_| "a read panics in another thread".to_string())??;
        }
        Ok(())
    })
}

/// A read that must not panic.
fn read(source: &dyn WeightSource, name: &str, offset: u64, length: usize) -> Result<crate::Result<Vec<u8>>, String> {
    let mut buffer = vec![0xA5; length];
    let result = catch_unwind(AssertUnwindSafe(|| source.read(name, offset, &mut buffer)));
    match result {
        Ok(result) => Ok(result.map(|()| buffer)),
        Err(_) => Err(format!("tensor `{name}`: a read of {length} bytes at byte {offset} panics")),
    }
}

#[cfg(test)]
#[path = "weight_source_tests.rs"]
mod tests;
