//! Reading a model's tensors: checks shape and type, then hands linears to the quantizer and packs the rest.
//!
//! Joins the source, the quantizer and the kernels' storage. Knows names and shapes; must not know what a model does
//! with them.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::kernel::{self, Cpu};
use crate::quant::{
    self, Calibration, LinearGroup, QuantizedGroup, QuantizedMatrix, Quantizer, Stored, WeightInfo, WeightView,
};
use crate::source::{Dtype, TensorInfo, WeightSource};
use crate::{BuildError, Error, Result, SourceError};

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

/// The weight of one linear: consecutive rows of a tensor `[total_rows, cols]`, which may hold several.
pub(crate) struct LinearSpec {
    pub(crate) info: WeightInfo,
    total_rows: usize,
    first_row: usize,
    /// What the source multiplies all values with.
    scale: f32,
}

/// A source whose tensors come in the model's arrangement, on any thread.
#[derive(Clone, Copy)]
struct Reader<'a> {
    source: &'a dyn WeightSource,
    conventions: Conventions,
}

/// A source with what is needed to take tensors out of it.
pub(crate) struct Weights<'a> {
    reader: Reader<'a>,
    cpu: &'a Cpu,
    quantizer: &'a dyn Quantizer,
    progress: &'a mut Progress<'a>,
    done: u64,
    /// Bytes read aside from the weights, to be told with the next of them.
    aside: Cell<usize>,
    total: u64,
}

impl<'a> Reader<'a> {
    fn info(&self, name: &str) -> Result<&'a TensorInfo> {
        self.source.tensor(name).ok_or_else(|| {
            SourceError::MissingTensor { source_name: self.source.name().to_string(), tensor: name.to_string() }.into()
        })
    }

    /// Bytes of a tensor in the model's arrangement.
    fn fetch(&self, name: &str, offset: usize, buffer: &mut [u8]) -> Result<()> {
        match self.conventions.interleaved {
            Some(interleaved) if interleaved.rows_of(name) > 0 => {
                self.fetch_interleaved(interleaved, name, offset, buffer)
            }
            _ => self.source.read(name, offset as u64, buffer),
        }
    }

    /// Takes rows from where they belong: exact for every type, as no block reaches over a row's end. Consecutive rows of
    /// half a head are every second row of the file, so at most twice of what is asked for is read.
    fn fetch_interleaved(&self, how: Interleaved, name: &str, offset: usize, buffer: &mut [u8]) -> Result<()> {
        let info = self.info(name)?;
        let row_bytes = info.size_in_bytes / info.shape[0];
        let (interleaved, half) = (how.rows_of(name), how.head_dim / 2);
        let last = (offset + buffer.len()).div_ceil(row_bytes);
        let (mut row, mut done, mut stored) = (offset / row_bytes, 0, Vec::new());
        while done < buffer.len() {
            if row >= interleaved {
                return self.source.read(name, (offset + done) as u64, &mut buffer[done..]);
            }
            let end = last.min(row - row % half + half);
            stored.resize((2 * (end - row) - 1) * row_bytes, 0);
            self.source.read(name, (how.stored(row) * row_bytes) as u64, &mut stored)?;
            for from in stored.chunks_exact(row_bytes).step_by(2) {
                // The first and the last row may be asked for in part.
                let from = &from[(offset + done) % row_bytes..];
                let part = from.len().min(buffer.len() - done);
                buffer[done..done + part].copy_from_slice(&from[..part]);
                done += part;
            }
            row = end;
        }
        Ok(())
    }
}

impl<'a> Weights<'a> {
    pub(crate) fn new(
        source: &'a dyn WeightSource,
        cpu: &'a Cpu,
        quantizer: &'a dyn Quantizer,
        progress: &'a mut Progress<'a>,
    ) -> Weights<'a> {
        let total = source.tensors().iter().map(|t| t.size_in_bytes as u64).fold(0, u64::saturating_add);
        let reader = Reader { source, conventions: Conventions::default() };
        Weights { reader, cpu, quantizer, progress, done: 0, aside: Cell::new(0), total }
    }

    /// Says how the tensors that are read from now on are stored.
    pub(crate) fn set_conventions(&mut self, conventions: Conventions) {
        self.reader.conventions = conventions;
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.reader.source.tensor(name).is_some()
    }

    /// The shape of a tensor, outermost dimension first.
    pub(crate) fn shape(&self, name: &str) -> Result<&[usize]> {
        Ok(&self.reader.info(name)?.shape)
    }

    /// The tensor, if it has this shape and a type that the kernels compute with.
    fn checked(&self, name: &str, shape: &[usize]) -> Result<&'a TensorInfo> {
        let info = self.reader.info(name)?;
        let source_name = || self.reader.source.name().to_string();
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
        self.reader.fetch(name, offset, buffer)?;
        self.advance(buffer.len())
    }

    /// Reports more bytes as done.
    fn advance(&mut self, bytes: usize) -> Result<()> {
        self.done += (bytes + self.aside.take()) as u64;
        if !(self.progress)(self.done, self.total.max(self.done)) {
            return Err(SourceError::Cancelled { source_name: self.reader.source.name().to_string() }.into());
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
        if !values.iter().all(|x| x.is_finite()) {
            let (tensor, dtype) = (name.to_string(), dtype.to_string());
            return Err(BuildError::NotFiniteWeight { tensor, dtype, row: 0 }.into());
        }
        if name.rsplit('.').nth(1).is_some_and(|module| module.ends_with("norm")) {
            values.iter_mut().for_each(|w| *w += self.reader.conventions.norm_offset);
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

    /// The linear of `site`, whose rows are `range` of its tensor `[total_rows, cols]`.
    pub(crate) fn linear(
        &self,
        site: quant::Site,
        total_rows: usize,
        cols: usize,
        range: Range<usize>,
    ) -> Result<LinearSpec> {
        let dtype = self.checked(&site.name, &[total_rows, cols])?.dtype;
        let info = WeightInfo::new(site, dtype, range.len(), cols);
        let (scale, bytes) = self.scale_of(&info.site.name)?;
        // The parts of a tensor share it.
        self.aside.set(self.aside.get() + if range.start == 0 { bytes } else { 0 });
        Ok(LinearSpec { info, total_rows, first_row: range.start, scale })
    }

    /// The factor of a weight that its file has apart from it, as NVFP4 files do: `x.scale` beside `x.weight`; and its
    /// size in bytes.
    fn scale_of(&self, weight: &str) -> Result<(f32, usize)> {
        let Some(name) = weight.strip_suffix(".weight").map(|base| format!("{base}.scale")) else {
            return Ok((1.0, 0));
        };
        if !self.has(&name) {
            return Ok((1.0, 0));
        }
        let dtype = self.checked(&name, &[1])?.dtype;
        let mut bytes = vec![0; self.row_bytes(&name, dtype, 1)?];
        self.reader.source.read(&name, 0, &mut bytes)?;
        let mut scale = [0.0];
        kernel::dequantize(dtype, &bytes, &mut scale)?;
        if !scale[0].is_finite() {
            return Err(BuildError::NotFiniteWeight { tensor: name, dtype: dtype.to_string(), row: 0 }.into());
        }
        Ok((scale[0], bytes.len()))
    }

    /// Shows the quantizer everything that it will get.
    pub(crate) fn check(&self, linears: &[WeightInfo]) -> Result<()> {
        guarded(self.quantizer, || self.quantizer.check(linears))
    }

    /// The matrices of linears that share one input.
    pub(crate) fn group(&mut self, linears: &[LinearSpec]) -> Result<Vec<Box<dyn QuantizedMatrix>>> {
        let quantizer = self.quantizer;
        self.quantized(quantizer, linears)
    }

    /// A matrix `[rows, cols]` that is no linear, such as an embedding: as stored.
    pub(crate) fn stored(&mut self, linear: LinearSpec) -> Result<Box<dyn QuantizedMatrix>> {
        let matrices = self.quantized(&Stored, &[linear])?;
        matrices.into_iter().next().ok_or_else(|| unreachable!("one matrix per weight was checked"))
    }

    fn quantized(
        &mut self,
        quantizer: &dyn Quantizer,
        linears: &[LinearSpec],
    ) -> Result<Vec<Box<dyn QuantizedMatrix>>> {
        let row_bytes = linears
            .iter()
            .map(|linear| self.row_bytes(&linear.info.site.name, linear.info.dtype, linear.info.cols))
            .collect::<Result<Vec<usize>>>()?;
        let (cpu, reader) = (self.cpu, self.reader);
        // How far each weight was read: reading a part again is no progress.
        let read: Vec<Cell<usize>> = linears.iter().map(|_| Cell::new(0)).collect();
        let weights = RefCell::new(self);
        let calls: Vec<_> = linears
            .iter()
            .zip(&row_bytes)
            .zip(&read)
            .map(|((linear, row_bytes), read)| {
                let (name, start) = (&linear.info.site.name, linear.first_row * row_bytes);
                let weights = &weights;
                let fetch = move |offset: usize, buffer: &mut [u8]| reader.fetch(name, start + offset, buffer);
                let done = move |end: usize| -> Result<()> {
                    let new = end.saturating_sub(read.get());
                    read.set(read.get() + new);
                    weights.borrow_mut().advance(new)
                };
                (fetch, done)
            })
            .collect();
        let views = linears.iter().zip(&row_bytes).zip(&calls);
        let views = views.map(|((linear, row_bytes), (fetch, done))| {
            WeightView::new(linear.info.clone(), *row_bytes, fetch, done).with_scale(linear.scale)
        });
        let group = LinearGroup::new(cpu, views.collect());
        let QuantizedGroup { matrices } = guarded(quantizer, || quantizer.quantize(&group, &Calibration::none()))?;
        check_shapes(quantizer, linears, &matrices)?;
        // What the quantizer did not ask for is done as well.
        let all = linears.iter().zip(&row_bytes).map(|(linear, row_bytes)| linear.info.rows * row_bytes);
        let unread = all.zip(&read).map(|(all, read)| all - read.get()).sum();
        weights.borrow_mut().advance(unread)?;
        Ok(matrices)
    }

    fn row_bytes(&self, name: &str, dtype: Dtype, cols: usize) -> Result<usize> {
        dtype.size_in_bytes(cols).filter(|&bytes| bytes > 0).ok_or_else(|| {
            SourceError::TensorShape {
                source_name: self.reader.source.name().to_string(),
                tensor: name.to_string(),
                expected: vec![cols.next_multiple_of(dtype.block_len())],
                found: vec![cols],
            }
            .into()
        })
    }
}

impl LinearSpec {
    /// Whether the tensor holds other linears too.
    pub(crate) fn is_part(&self) -> bool {
        self.info.rows != self.total_rows
    }

    /// Rows of the whole tensor, and those of them that are this linear's.
    pub(crate) fn place(&self) -> (usize, Range<usize>) {
        (self.total_rows, self.first_row..self.first_row + self.info.rows)
    }
}

/// Runs a quantizer's code; a panic becomes an error that names it.
fn guarded<T>(quantizer: &dyn Quantizer, f: impl FnOnce() -> Result<T>) -> Result<T> {
    // The build ends with the error; nothing that a panic may leave broken is used again.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let name = quantizer.name().to_string();
        Err(Error::Extension { room: "quant", name, message: quant::panic_message(panic) })
    })
}

fn check_shapes(
    quantizer: &dyn Quantizer,
    linears: &[LinearSpec],
    matrices: &[Box<dyn QuantizedMatrix>],
) -> Result<()> {
    let wrong = |linear: &LinearSpec, expected: String, found: String| {
        let tensor = linear.info.site.name.clone();
        Err(BuildError::QuantizedShape { quantizer: quantizer.name().to_string(), tensor, expected, found }.into())
    };
    if let (Some(first), false) = (linears.first(), linears.len() == matrices.len()) {
        return wrong(first, format!("{} matrices", linears.len()), format!("{} matrices", matrices.len()));
    }
    for (linear, matrix) in linears.iter().zip(matrices) {
        let (expected, found) = ((linear.info.rows, linear.info.cols), matrix.dims());
        if expected != found {
            let shape = |(rows, cols)| format!("a matrix of {rows} x {cols}");
            return wrong(linear, shape(expected), shape(found));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Memory;

    #[test]
    fn interleaved_rows_are_found_wherever_a_read_begins_and_ends() {
        // Two heads of q, one of k, and three rows of v that stay.
        let (head_dim, rows, row_bytes) = (6, 3 * 6 + 3, 4 * 3);
        let stored: Vec<u8> = (0..rows * row_bytes).map(|i| (i * 37 % 251) as u8).collect();
        let mut source = Memory::new("test");
        source.insert("blk.0.attn_qkv.weight", Dtype::F32, &[rows, 3], stored.clone()).unwrap();
        let interleaved = Some(Interleaved { head_dim, rows: 18 });
        let reader = Reader { source: &source, conventions: Conventions { norm_offset: 0.0, interleaved } };
        let expected: Vec<u8> = (0..rows)
            .flat_map(|row| {
                let (head, at) = (row / head_dim, row % head_dim);
                let from = if row < 18 { head * head_dim + 2 * (at % 3) + at / 3 } else { row };
                stored[from * row_bytes..][..row_bytes].to_vec()
            })
            .collect();
        for begin in 0..expected.len() {
            for end in begin..=expected.len() {
                let mut buffer = vec![0; end - begin];
                reader.fetch("blk.0.attn_qkv.weight", begin, &mut buffer).unwrap();
                assert_eq!(buffer, expected[begin..end], "{begin}..{end}");
            }
        }
        assert!(reader.fetch("blk.0.attn_qkv.weight", expected.len(), &mut [0]).is_err());
    }
}
