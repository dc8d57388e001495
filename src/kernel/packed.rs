//! A weight matrix repacked for the kernels, and the way back to the file's bytes.
//!
//! Filled once at load from row bytes; read by `matmul` and by embedding lookups. Knows formats through their
//! [`Layout`], no arithmetic of its own.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::format::{layout, Layout, MAX_BLOCK_BYTES, PANEL};
use super::isa::Cpu;
use super::memory::{Buffer, Shared};
use super::scalar::dequantize_block;
use crate::error::KernelError;
use crate::source::Dtype;

/// Weights `[rows, cols]` of one storage type, in panels of 16 interleaved rows.
///
/// Holds exactly the format's bits, re-ordered, plus padding: rows up to a multiple of 16, the factors of blocks that
/// are not there in a row's last group, and up to 2 % in the Q3_K and Q6_K groups. Starts out as all zero bits.
pub struct PackedMatrix {
    layout: &'static Layout,
    rows: usize,
    cols: usize,
    panel_bytes: usize,
    buffer: Buffer,
}

impl fmt::Debug for PackedMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedMatrix({} {} x {})", self.dtype(), self.rows, self.cols)
    }
}

impl PackedMatrix {
    /// Memory for a matrix of `rows` rows (outputs) and `cols` columns (inputs), filled with zero bits.
    ///
    /// # Errors
    /// [`KernelError::UnsupportedDtype`], [`KernelError::ZeroDimension`], [`KernelError::PartialBlock`] when
    /// `cols` is not a multiple of the type's block, [`KernelError::TooLarge`], [`KernelError::OutOfMemory`].
    pub fn allocate(dtype: Dtype, rows: usize, cols: usize) -> Result<PackedMatrix, KernelError> {
        let layout = layout(dtype).ok_or(KernelError::UnsupportedDtype { dtype: dtype.name() })?;
        if rows == 0 || cols == 0 {
            return Err(KernelError::ZeroDimension { rows, cols });
        }
        if !cols.is_multiple_of(dtype.block_len()) {
            return Err(KernelError::PartialBlock { dtype: dtype.name(), cols, block: dtype.block_len() });
        }
        let too_large = KernelError::TooLarge { dtype: dtype.name(), rows, cols };
        let Some(panel_bytes) = layout.panel_bytes(cols) else { return Err(too_large) };
        // isize::MAX bounds every allocation; the arithmetic of the kernels stays below it too.
        let Some(bytes) = rows.div_ceil(PANEL).checked_mul(panel_bytes).filter(|&bytes| bytes < isize::MAX as usize)
        else {
            return Err(too_large);
        };
        let buffer = Buffer::zeroed(bytes).ok_or(KernelError::OutOfMemory { bytes })?;
        Ok(PackedMatrix { layout, rows, cols, panel_bytes, buffer })
    }

    /// Packs whole rows from the file's bytes, in parallel, starting at row `first_row`.
    ///
    /// # Errors
    /// [`KernelError::Length`] if `bytes` is not whole rows; [`KernelError::RowRange`] if the rows do not start
    /// at a multiple of 16, or end neither at one nor at the matrix's last row, or leave the matrix;
    /// [`KernelError::NotFinite`] if a weight or the scale of a block is infinite or not a number, after which the
    /// matrix is of no use.
    pub fn pack_rows(&mut self, cpu: &Cpu, first_row: usize, bytes: &[u8]) -> Result<(), KernelError> {
        self.pack(cpu, first_row, bytes, true)
    }

    /// [`pack_rows`](Self::pack_rows) for any bits.
    #[cfg(test)]
    pub(crate) fn pack_rows_unchecked(&mut self, cpu: &Cpu, first_row: usize, bytes: &[u8]) -> Result<(), KernelError> {
        self.pack(cpu, first_row, bytes, false)
    }

    fn pack(&mut self, cpu: &Cpu, first_row: usize, bytes: &[u8], check: bool) -> Result<(), KernelError> {
        let row_bytes = self.row_bytes();
        if !bytes.len().is_multiple_of(row_bytes) {
            let dtype = self.dtype().name();
            return Err(KernelError::Length { dtype, expected: row_bytes, actual: bytes.len() });
        }
        let end_row = first_row.saturating_add(bytes.len() / row_bytes);
        if !first_row.is_multiple_of(PANEL)
            || end_row > self.rows
            || (!end_row.is_multiple_of(PANEL) && end_row != self.rows)
        {
            return Err(KernelError::RowRange { first_row, end_row, rows: self.rows });
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let (layout, panel_bytes) = (self.layout, self.panel_bytes);
        let first_panel = first_row / PANEL;
        let data = Shared(self.buffer.as_mut_slice().as_mut_ptr());
        // Around 256 KiB per task: enough of them to balance, each long against the cost of a task.
        let panels_per_task = ((256 << 10) / panel_bytes).max(1);
        let task_bytes = panels_per_task * PANEL * row_bytes;
        // The first row that is not finite, whichever task finds it.
        let bad_row = AtomicUsize::new(usize::MAX);
        cpu.pool.run(bytes.len().div_ceil(task_bytes), &|task| {
            let start = task * task_bytes;
            let rows = &bytes[start..bytes.len().min(start + task_bytes)];
            for (i, rows) in rows.chunks(PANEL * row_bytes).enumerate() {
                let panel = first_panel + task * panels_per_task + i;
                // SAFETY: the panel lies inside the buffer, since its rows do; tasks have disjoint panels; the
                // buffer is borrowed mutably until `run` returns.
                let packed =
                    unsafe { std::slice::from_raw_parts_mut(data.get().add(panel * panel_bytes), panel_bytes) };
                layout.pack_panel(rows, row_bytes, packed);
                // Afterwards the rows are in a cache.
                if let Some(row) = check.then(|| layout.first_not_finite(rows, row_bytes)).flatten() {
                    bad_row.fetch_min(panel * PANEL + row, Ordering::Relaxed);
                    return;
                }
            }
        });
        match bad_row.into_inner() {
            usize::MAX => Ok(()),
            row => Err(KernelError::NotFinite { dtype: self.dtype().name(), row }),
        }
    }

    /// The file's bytes of one row, bit for bit.
    ///
    /// # Panics
    /// If `row` is not below `rows()` or `out` is not one row's bytes.
    pub fn unpack_row(&self, row: usize, out: &mut [u8]) {
        assert_eq!(out.len(), self.row_bytes(), "a row's length in bytes");
        for (index, block) in out.chunks_exact_mut(self.dtype().block_bytes()).enumerate() {
            self.unpack_block(row, index, block);
        }
    }

    /// The values of one row: what [`dequantize`](super::dequantize) gives for the file's bytes, bit for bit.
    ///
    /// # Panics
    /// If `row` is not below `rows()` or `out` is not `cols()` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "a row's length in values");
        let mut block = [0u8; MAX_BLOCK_BYTES];
        let block = &mut block[..self.dtype().block_bytes()];
        for (index, out) in out.chunks_exact_mut(self.dtype().block_len()).enumerate() {
            self.unpack_block(row, index, block);
            dequantize_block(self.layout, block, out);
        }
    }

    /// Rows: the length of an output.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: the length of an input.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The storage type.
    pub fn dtype(&self) -> Dtype {
        self.layout.dtype
    }

    /// Bytes of memory that the weights take, padding included.
    pub fn size_in_bytes(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn layout(&self) -> &'static Layout {
        self.layout
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// The packed bytes of a panel; `panel` is below `panels()`.
    pub(crate) fn panel(&self, panel: usize) -> &[u8] {
        &self.buffer.as_slice()[panel * self.panel_bytes..(panel + 1) * self.panel_bytes]
    }

    pub(crate) fn unpack_block(&self, row: usize, index: usize, block: &mut [u8]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        self.layout.unpack_block(self.panel(row / PANEL), row % PANEL, index, block);
    }

    fn row_bytes(&self) -> usize {
        self.cols / self.dtype().block_len() * self.dtype().block_bytes()
    }
}
