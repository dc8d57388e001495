//! What a quantizer gets, and what it gives back: the linears that share one input.
//!
//! A weight is read from its source when the quantizer asks, in parts if it wants, so nothing is held twice. Knows
//! bytes, shapes and formats; no method.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use super::{QuantizedMatrix, Site};
use crate::kernel::{self, Cpu, PackedMatrix};
use crate::source::Dtype;
use crate::{BuildError, Result};

/// Bytes taken at a time, so that loading needs little memory beside the weights.
pub(super) const PART_BYTES: usize = 8 << 20;
/// Parts are whole panels of the kernels.
pub(super) const PART_ROWS: usize = 16;

/// What is known of a weight before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightInfo {
    /// Where in the model it stands.
    pub site: Site,
    /// How the source stores it.
    pub dtype: Dtype,
    /// Length of an output.
    pub rows: usize,
    /// Length of an input; whole blocks of the storage type.
    pub cols: usize,
}

impl WeightInfo {
    /// A weight `[rows, cols]`.
    pub fn new(site: Site, dtype: Dtype, rows: usize, cols: usize) -> WeightInfo {
        WeightInfo { site, dtype, rows, cols }
    }

    /// An error that says why this weight cannot be taken, and what to do.
    pub fn refused(&self, quantizer: &str, problem: impl Into<String>) -> crate::Error {
        let tensor = self.site.name.clone();
        BuildError::Quantize { quantizer: quantizer.to_string(), tensor, problem: problem.into() }.into()
    }

    /// An error that names this weight where the kernels found numbers that are none, passing others on.
    pub(super) fn named(&self, error: impl Into<crate::Error>) -> crate::Error {
        match error.into() {
            crate::Error::Kernel(crate::KernelError::NotFinite { row, .. }) => self.not_finite(row),
            other => other,
        }
    }

    /// An error that says which row is damaged.
    pub(crate) fn not_finite(&self, row: usize) -> crate::Error {
        let (tensor, dtype) = (self.site.name.clone(), self.dtype.to_string());
        BuildError::NotFiniteWeight { tensor, dtype, row }.into()
    }
}

/// Fills a buffer from a byte offset of the weight, on any thread.
pub(crate) type ReadWeight<'a> = dyn Fn(usize, &mut [u8]) -> Result<()> + Sync + 'a;
/// Is told, on the thread that builds, up to which byte a weight was read; may cancel.
pub(crate) type WeightDone<'a> = dyn Fn(usize) -> Result<()> + 'a;

#[derive(Clone, Copy)]
enum Data<'a> {
    Bytes(&'a [u8]),
    Read(&'a ReadWeight<'a>),
}

impl Data<'_> {
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        match self {
            Data::Bytes(bytes) => {
                out.copy_from_slice(&bytes[offset..offset + out.len()]);
                Ok(())
            }
            Data::Read(read) => read(offset, out),
        }
    }
}

/// One weight of a group, readable as often as wanted.
pub struct WeightView<'a> {
    info: WeightInfo,
    row_bytes: usize,
    scale: f32,
    data: Data<'a>,
    done: Option<&'a WeightDone<'a>>,
}

impl fmt::Debug for WeightView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeightView").field(&self.info).finish()
    }
}

impl<'a> WeightView<'a> {
    /// A weight in memory: `bytes` are its rows in the format's blocks.
    ///
    /// # Errors
    /// [`KernelError::Length`](crate::KernelError::Length) if the bytes are not those of the shape.
    pub fn from_bytes(info: WeightInfo, bytes: &'a [u8]) -> Result<WeightView<'a>> {
        let (expected, actual) = (size(&info), bytes.len());
        match info.dtype.size_in_bytes(info.cols) {
            Some(row_bytes) if row_bytes > 0 && expected == Some(actual) => {
                Ok(WeightView { info, row_bytes, scale: 1.0, data: Data::Bytes(bytes), done: None })
            }
            _ => {
                let expected = expected.unwrap_or(usize::MAX);
                Err(crate::KernelError::Length { dtype: info.dtype.name(), expected, actual }.into())
            }
        }
    }

    /// A weight that `read` reads and `done` hears of. The caller has checked that rows are whole blocks of `row_bytes`.
    pub(crate) fn new(
        info: WeightInfo,
        row_bytes: usize,
        read: &'a ReadWeight<'a>,
        done: &'a WeightDone<'a>,
    ) -> WeightView<'a> {
        WeightView { info, row_bytes, scale: 1.0, data: Data::Read(read), done: Some(done) }
    }

    /// The weight whose values are those of its blocks times a factor.
    pub(crate) fn with_scale(self, scale: f32) -> WeightView<'a> {
        WeightView { scale, ..self }
    }

    /// What the source multiplies the values of the blocks with: 1, except where it has a factor per weight apart from
    /// the blocks, as NVFP4 files do. [`bytes`](Self::bytes) are without it, all values with it.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Place, format and shape.
    pub fn info(&self) -> &WeightInfo {
        &self.info
    }

    /// Where in the model it stands.
    pub fn site(&self) -> &Site {
        &self.info.site
    }

    /// How the source stores it.
    pub fn dtype(&self) -> Dtype {
        self.info.dtype
    }

    /// Length of an output.
    pub fn rows(&self) -> usize {
        self.info.rows
    }

    /// Length of an input.
    pub fn cols(&self) -> usize {
        self.info.cols
    }

    /// The source's bytes of some rows, replacing what `out` holds.
    ///
    /// # Errors
    /// Rows outside the weight ([`KernelError::RowRange`](crate::KernelError::RowRange)); a failed read; a build that
    /// was cancelled.
    pub fn bytes(&self, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let Range { start, end } = rows;
        if start > end || end > self.rows() {
            return Err(crate::KernelError::RowRange { first_row: start, end_row: end, rows: self.rows() }.into());
        }
        out.resize((end - start) * self.row_bytes, 0);
        self.data.read(start * self.row_bytes, out)?;
        self.done(end)
    }

    /// Tells how far the weight was read.
    fn done(&self, end_row: usize) -> Result<()> {
        self.done.map_or(Ok(()), |done| done(end_row * self.row_bytes))
    }

    /// The weight in the kernels' order, bit for bit. All threads read and pack.
    pub(super) fn packed(&self, cpu: &Cpu) -> Result<PackedMatrix> {
        let mut matrix = PackedMatrix::allocate(self.dtype(), self.rows(), self.cols())?;
        let (data, row_bytes) = (self.data, self.row_bytes);
        for rows in self.parts(row_bytes) {
            let end = rows.end;
            matrix
                .pack_read(cpu, rows, &|row, out| data.read(row * row_bytes, out))
                .map_err(|error| self.info.named(error))?;
            self.done(end)?;
        }
        Ok(matrix)
    }

    /// The whole weight as f32, `[rows][cols]`: four bytes per value, which for a large head is much.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn dequantize(&self) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        self.for_each_row(&mut |_, row| values.extend_from_slice(row))?;
        Ok(values)
    }

    /// Calls `f` with every row's index and values, in order, holding a few megabytes at a time.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn for_each_row(&self, f: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let mut row = vec![0.0; self.cols()];
        self.for_each_part(self.row_bytes, &mut |first, bytes| {
            for (i, bytes) in bytes.chunks_exact(self.row_bytes).enumerate() {
                values(self.dtype(), self.scale, bytes, &mut row)?;
                f(first + i, &row);
            }
            Ok(())
        })
    }

    /// Calls `f` with the first row and the bytes of consecutive parts. All but the last have a multiple of 16 rows;
    /// `row_size` is the memory that a row takes on its way, and bounds the parts.
    pub(super) fn for_each_part(&self, row_size: usize, f: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        let mut buffer = Vec::new();
        for rows in self.parts(row_size) {
            let first = rows.start;
            self.bytes(rows, &mut buffer)?;
            f(first, &buffer)?;
        }
        Ok(())
    }

    /// The rows that are taken at a time.
    fn parts(&self, row_size: usize) -> impl Iterator<Item = Range<usize>> {
        let (rows, step) = (self.rows(), (PART_BYTES / row_size.max(1) / PART_ROWS).max(1) * PART_ROWS);
        (0..rows).step_by(step).map(move |first| first..rows.min(first + step))
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}

/// The values of one row from its bytes, times the weight's factor.
pub(super) fn values(dtype: Dtype, scale: f32, bytes: &[u8], out: &mut [f32]) -> Result<(), crate::KernelError> {
    kernel::dequantize(dtype, bytes, out)?;
    if scale != 1.0 {
        out.iter_mut().for_each(|x| *x *= scale);
    }
    Ok(())
}

fn size(info: &WeightInfo) -> Option<usize> {
    info.dtype.size_in_bytes(info.cols)?.checked_mul(info.rows)
}

/// The linears that share one input.
///
/// Later versions may add what belongs to a group, such as the norm in front of it that a method could fold scales
/// into.
#[derive(Debug)]
pub struct LinearGroup<'a> {
    cpu: &'a Cpu,
    weights: Vec<WeightView<'a>>,
}

impl<'a> LinearGroup<'a> {
    /// A group, at least one weight, all of one width; `cpu` has the threads that the engine will compute with.
    pub fn new(cpu: &'a Cpu, weights: Vec<WeightView<'a>>) -> LinearGroup<'a> {
        LinearGroup { cpu, weights }
    }

    /// The weights: q, k, v; or gate, up; or a single one.
    pub fn weights(&self) -> &[WeightView<'a>] {
        &self.weights
    }

    /// The engine's threads and kernel level, for methods that have much to compute.
    pub fn cpu(&self) -> &'a Cpu {
        self.cpu
    }

    /// Quantizes each weight by itself.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn each(
        &self,
        mut f: impl FnMut(&WeightView<'a>) -> Result<Box<dyn QuantizedMatrix>>,
    ) -> Result<QuantizedGroup> {
        Ok(QuantizedGroup::new(self.weights.iter().map(&mut f).collect::<Result<_>>()?))
    }
}

/// What was measured on a group's inputs. Nothing is measured yet; methods that weigh errors by their inputs will find
/// it here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calibration<'a>(PhantomData<&'a [f32]>);

impl Calibration<'_> {
    /// No measurements.
    pub fn none() -> Self {
        Calibration::default()
    }
}

/// A group in its new form.
///
/// Later versions may add what the engine applies to the group's input before the products: a scale per column, a
/// permutation.
#[derive(Debug)]
#[non_exhaustive]
pub struct QuantizedGroup {
    /// One matrix per weight, in the group's order.
    pub matrices: Vec<Box<dyn QuantizedMatrix>>,
}

impl QuantizedGroup {
    /// A group of these matrices.
    pub fn new(matrices: Vec<Box<dyn QuantizedMatrix>>) -> QuantizedGroup {
        QuantizedGroup { matrices }
    }
}

/// A matrix of a loaded model: what became of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatrixInfo {
    /// Where in the model it stands.
    pub site: Site,
    /// What its values are stored as: a storage type's name, or what a quantizer of the host calls its own.
    pub format: String,
    /// Length of an output.
    pub rows: usize,
    /// Length of an input.
    pub cols: usize,
    /// Bytes of memory that it takes.
    pub size_in_bytes: usize,
}

impl MatrixInfo {
    pub(crate) fn new(site: Site, matrix: &dyn QuantizedMatrix) -> MatrixInfo {
        let (rows, cols) = matrix.dims();
        MatrixInfo { site, format: matrix.format().to_string(), rows, cols, size_in_bytes: matrix.size_in_bytes() }
    }
}
