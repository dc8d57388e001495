//! Reading a model's tensors: checks shape and type, then packs matrices for the kernels.
//!
//! Joins the source with the kernels' storage. Knows names and shapes; must not know what a model does with them.

use std::ops::Range;

use crate::kernel::{self, Cpu, PackedMatrix};
use crate::source::{Dtype, TensorInfo, WeightSource};
use crate::{Result, SourceError};

/// Bytes read at a time, so that loading needs little memory beside the weights.
const READ_BYTES: usize = 8 << 20;

/// Called while loading with the bytes done and the bytes in all; `false` cancels.
pub(crate) type Progress<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// How a source's tensors differ from what the model computes with; undone while they are read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conventions {
    /// Added to the weights of norms.
    pub(crate) norm_offset: f32,
    /// Rows of q and k that rotate together lie side by side; they come out half a head apart.
    pub(crate) interleaved: Option<Interleaved>,
}

/// The arrangement of the llama family's GGUF files: row 2j + s of a head belongs at s · head_dim / 2 + j.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interleaved {
    /// Even.
    pub(crate) head_dim: usize,
    /// Rows of q and k together, which come first in a fused tensor.
    pub(crate) rows: usize,
}

impl Interleaved {
    /// The rows of this tensor that are interleaved, counted from its first.
    fn rows_of(&self, name: &str) -> usize {
        match name.rsplit('.').nth(1) {
            Some("attn_q" | "attn_k") => usize::MAX,
            Some("attn_qkv") => self.rows,
            _ => 0,
        }
    }

    /// Where the row that belongs at `row` is stored.
    fn stored(&self, row: usize) -> usize {
        let (half, in_head) = (self.head_dim / 2, row % self.head_dim);
        row - in_head + 2 * (in_head % half) + in_head / half
    }
}

/// A source with what is needed to take tensors out of it.
pub(crate) struct Weights<'a> {
    source: &'a dyn WeightSource,
    conventions: Conventions,
    cpu: &'a Cpu,
    progress: &'a mut Progress<'a>,
    done: u64,
    total: u64,
}

impl<'a> Weights<'a> {
    pub(crate) fn new(source: &'a dyn WeightSource, cpu: &'a Cpu, progress: &'a mut Progress<'a>) -> Weights<'a> {
        let total = source.tensors().iter().map(|t| t.size_in_bytes as u64).fold(0, u64::saturating_add);
        Weights { source, conventions: Conventions::default(), cpu, progress, done: 0, total }
    }

    /// Says how the tensors that are read from now on are stored.
    pub(crate) fn set_conventions(&mut self, conventions: Conventions) {
        self.conventions = conventions;
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.source.tensor(name).is_some()
    }

    /// The shape of a tensor, outermost dimension first.
    pub(crate) fn shape(&self, name: &str) -> Result<&[usize]> {
        Ok(&self.info(name)?.shape)
    }

    fn info(&self, name: &str) -> Result<&'a TensorInfo> {
        self.source.tensor(name).ok_or_else(|| {
            SourceError::MissingTensor { source_name: self.source.name().to_string(), tensor: name.to_string() }.into()
        })
    }

    /// The tensor, if it has this shape and a type that the kernels compute with.
    fn checked(&self, name: &str, shape: &[usize]) -> Result<&'a TensorInfo> {
        let info = self.info(name)?;
        let source_name = || self.source.name().to_string();
        if info.shape != shape {
            return Err(SourceError::TensorShape {
                source_name: source_name(),
                tensor: name.to_string(),
                expected: shape.to_vec(),
                found: info.shape.clone(),
            }
            .into());
        }
        if !info.dtype.is_supported() {
            return Err(SourceError::UnsupportedType {
                source_name: source_name(),
                tensor: name.to_string(),
                dtype: info.dtype.to_string(),
            }
            .into());
        }
        Ok(info)
    }

    fn read(&mut self, name: &str, offset: usize, buffer: &mut [u8]) -> Result<()> {
        match self.conventions.interleaved {
            Some(interleaved) if interleaved.rows_of(name) > 0 => {
                self.read_interleaved(interleaved, name, offset, buffer)?
            }
            _ => self.source.read(name, offset as u64, buffer)?,
        }
        self.done += buffer.len() as u64;
        if !(self.progress)(self.done, self.total.max(self.done)) {
            return Err(SourceError::Cancelled { source_name: self.source.name().to_string() }.into());
        }
        Ok(())
    }

    /// Reads whole rows and puts them where they belong: exact for every type, as no block reaches over a row's end.
    fn read_interleaved(&self, how: Interleaved, name: &str, offset: usize, buffer: &mut [u8]) -> Result<()> {
        let info = self.info(name)?;
        let rows = info.shape[0];
        let row_bytes = info.size_in_bytes / rows;
        let (begin, end) = (offset / row_bytes, (offset + buffer.len()) / row_bytes);
        // Whole heads, so that every row that belongs here is among them.
        let first = begin - begin % how.head_dim;
        let last = end.next_multiple_of(how.head_dim).min(rows);
        let mut heads = vec![0; (last - first) * row_bytes];
        self.source.read(name, (first * row_bytes) as u64, &mut heads)?;
        let interleaved = how.rows_of(name);
        for (row, to) in (begin..end).zip(buffer.chunks_exact_mut(row_bytes)) {
            let stored = if row < interleaved { how.stored(row) } else { row };
            to.copy_from_slice(&heads[(stored - first) * row_bytes..][..row_bytes]);
        }
        Ok(())
    }

    /// A vector of `len` values, widened to f32.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let dtype = self.checked(name, &[len])?.dtype;
        let mut bytes = vec![0; self.row_bytes(name, dtype, len)?];
        self.read(name, 0, &mut bytes)?;
        let mut values = vec![0.0; len];
        kernel::dequantize(dtype, &bytes, &mut values)?;
        if name.rsplit('.').nth(1).is_some_and(|module| module.ends_with("norm")) {
            values.iter_mut().for_each(|w| *w += self.conventions.norm_offset);
        }
        Ok(values)
    }

    /// [`vector`](Self::vector), or nothing if there is no such tensor.
    pub(crate) fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        if self.has(name) {
            self.vector(name, len).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The matrix `[rows, cols]`.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<PackedMatrix> {
        self.matrix_rows(name, rows, cols, 0..rows)
    }

    /// The rows `range` of the matrix `[rows, cols]`: a part of a fused tensor.
    pub(crate) fn matrix_rows(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        range: Range<usize>,
    ) -> Result<PackedMatrix> {
        let dtype = self.checked(name, &[rows, cols])?.dtype;
        let row_bytes = self.row_bytes(name, dtype, cols)?;
        let mut matrix = PackedMatrix::allocate(dtype, range.len(), cols)?;
        // The kernels pack panels of 16 rows.
        let step = (READ_BYTES / row_bytes / 16).max(1) * 16;
        let mut buffer = Vec::new();
        let mut row = 0;
        while row < range.len() {
            let count = step.min(range.len() - row);
            buffer.resize(count * row_bytes, 0);
            self.read(name, (range.start + row) * row_bytes, &mut buffer)?;
            matrix.pack_rows(self.cpu, row, &buffer)?;
            row += count;
        }
        Ok(matrix)
    }

    fn row_bytes(&self, name: &str, dtype: Dtype, cols: usize) -> Result<usize> {
        dtype.size_in_bytes(cols).filter(|&bytes| bytes > 0).ok_or_else(|| {
            SourceError::TensorShape {
                source_name: self.source.name().to_string(),
                tensor: name.to_string(),
                expected: vec![cols.next_multiple_of(dtype.block_len())],
                found: vec![cols],
            }
            .into()
        })
    }
}
