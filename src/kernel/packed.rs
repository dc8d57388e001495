//! A weight matrix repacked for the kernels, and the way back to the file's bytes.
//!
//! Filled once at load from row bytes; read by `matmul` and by embedding lookups. Knows formats through their
//! [`Layout`], no arithmetic of its own.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::format::{layout, Layout, MAX_BLOCK_BYTES, PANEL};
use super::isa::Cpu;
use super::lanes::pairs::TINY;
use super::memory::{Buffer, Shared};
use super::scalar::dequantize_block;
use crate::error::KernelError;
use crate::source::Dtype;

/// Packed bytes per task: enough tasks to balance, each long against the cost of a task, small enough for a core's cache.
const TASK_BYTES: usize = 256 << 10;

/// Fills a buffer with the bytes of whole rows from the given one on.
pub(crate) type ReadRows<'a, E> = dyn Fn(usize, &mut [u8]) -> Result<(), E> + Sync + 'a;
/// Gets the bytes of some rows and hands them to the given function, which packs them.
type PackTask<'a, E> = dyn Fn(Range<usize>, &dyn Fn(&[u8]) -> Result<(), KernelError>) -> Result<(), E> + Sync + 'a;

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
    /// Of BF16 weights, the panels with weights that products of pairs take for zeros.
    tiny: Vec<AtomicBool>,
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
        let panels = if dtype == Dtype::BF16 { rows.div_ceil(PANEL) } else { 0 };
        let tiny = (0..panels).map(|_| AtomicBool::new(false)).collect();
        Ok(PackedMatrix { layout, rows, cols, panel_bytes, buffer, tiny })
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
        let rows = first_row..first_row.saturating_add(bytes.len() / row_bytes);
        self.pack_tasks(cpu, rows, check, &|rows, pack| {
            pack(&bytes[(rows.start - first_row) * row_bytes..(rows.end - first_row) * row_bytes])
        })
    }

    /// Packs rows that `read` reads, in parallel: every thread reads a part of them and packs it from its cache. `read` gets
    /// the first row of a part and room for its bytes, which are whole rows. If several parts fail, the first counts.
    ///
    /// # Errors
    /// Those of `read`, and of [`pack_rows`](Self::pack_rows).
    pub(crate) fn pack_read<E: From<KernelError> + Send>(
        &mut self,
        cpu: &Cpu,
        rows: Range<usize>,
        read: &ReadRows<'_, E>,
    ) -> Result<(), E> {
        let row_bytes = self.row_bytes();
        // As many as threads are in here at the same time.
        let buffers = Mutex::new(Vec::<Vec<u8>>::new());
        let lock = || buffers.lock().unwrap_or_else(PoisonError::into_inner);
        self.pack_tasks(cpu, rows, true, &|rows, pack| {
            let mut buffer = lock().pop().unwrap_or_default();
            buffer.resize(rows.len() * row_bytes, 0);
            let done = read(rows.start, &mut buffer).and_then(|()| pack(&buffer).map_err(E::from));
            lock().push(buffer);
            done
        })
    }

    /// Cuts the rows into tasks. `task` gets rows and what packs their bytes.
    fn pack_tasks<E: From<KernelError> + Send>(
        &mut self,
        cpu: &Cpu,
        rows: Range<usize>,
        check: bool,
        task: &PackTask<'_, E>,
    ) -> Result<(), E> {
        let Range { start: first_row, end: end_row } = rows;
        if !first_row.is_multiple_of(PANEL)
            || end_row > self.rows
            || (!end_row.is_multiple_of(PANEL) && end_row != self.rows)
        {
            return Err(KernelError::RowRange { first_row, end_row, rows: self.rows }.into());
        }
        let (layout, row_bytes, panel_bytes, tiny) = (self.layout, self.row_bytes(), self.panel_bytes, &self.tiny);
        let data = Shared(self.buffer.as_mut_slice().as_mut_ptr());
        let rows_per_task = (TASK_BYTES / panel_bytes).max(1) * PANEL;
        // The first task that failed, and why.
        let failed = AtomicUsize::new(usize::MAX);
        let error = Mutex::new(None);
        let lock = || error.lock().unwrap_or_else(PoisonError::into_inner);
        cpu.pool.run(rows.len().div_ceil(rows_per_task), &|index| {
            if failed.load(Ordering::Relaxed) < index {
                return;
            }
            let first = first_row + index * rows_per_task;
            let rows = first..end_row.min(first + rows_per_task);
            let task_bytes = rows.len() * row_bytes;
            let done = task(rows, &|bytes| {
                assert_eq!(bytes.len(), task_bytes, "the bytes of a task's rows");
                for (i, rows) in bytes.chunks(PANEL * row_bytes).enumerate() {
                    let panel = first / PANEL + i;
                    // SAFETY: the panel lies inside the buffer, since its rows do; tasks have disjoint panels; the
                    // buffer is borrowed mutably until `run` returns.
                    let packed =
                        unsafe { std::slice::from_raw_parts_mut(data.get().add(panel * panel_bytes), panel_bytes) };
                    layout.pack_panel(rows, row_bytes, packed);
                    if let Some(tiny) = tiny.get(panel) {
                        tiny.store(has_tiny(packed), Ordering::Relaxed);
                    }
                    if check && !layout.is_finite(packed) {
                        let row = layout.first_not_finite(rows, row_bytes).unwrap_or_default();
                        let dtype = layout.dtype.name();
                        return Err(KernelError::NotFinite { dtype, row: panel * PANEL + row });
                    }
                }
                Ok(())
            });
            if let Err(problem) = done {
                let mut error = lock();
                if failed.fetch_min(index, Ordering::Relaxed) > index {
                    *error = Some(problem);
                }
            }
        });
        error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
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

    /// The packed bytes from a panel on.
    pub(crate) fn panels_from(&self, panel: usize) -> &[u8] {
        &self.buffer.as_slice()[panel * self.panel_bytes..]
    }

    /// Whether a panel of BF16 weights has some between zero and [`TINY`].
    pub(crate) fn has_tiny(&self, panel: usize) -> bool {
        self.tiny.get(panel).is_some_and(|tiny| tiny.load(Ordering::Relaxed))
    }

    pub(crate) fn unpack_block(&self, row: usize, index: usize, block: &mut [u8]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        self.layout.unpack_block(self.panel(row / PANEL), row % PANEL, index, block);
    }

    fn row_bytes(&self) -> usize {
        self.cols / self.dtype().block_len() * self.dtype().block_bytes()
    }
}

/// Whether some bf16 have a magnitude between zero and [`TINY`].
fn has_tiny(panel: &[u8]) -> bool {
    let least = (TINY.to_bits() >> 16) as u16;
    // Without an early exit, so that whole lines are looked at by vector instructions. Zero becomes the largest number.
    let is_tiny = |x: [u8; 2]| (u16::from_le_bytes(x) & 0x7fff).wrapping_sub(1) < least - 1;
    panel.as_chunks().0.iter().fold(false, |any, x| any | is_tiny(*x))
}
