//! Packed matrices as quantized ones, and products of one input with matrices of any kind.

use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};

use super::{QuantizedMatrix, Site};
use crate::error::MatmulError;
use crate::kernel::{self, Activations, Cpu, PackedMatrix, Precision};
use crate::Result;

/// Keeps the hook for packed matrices to this crate: the type cannot be named outside.
#[derive(Clone, Copy, Debug)]
pub struct Sealed;

/// What products run with.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct KernelContext<'a> {
    /// Threads and instruction set.
    pub cpu: &'a Cpu,
    /// Whether inputs may be quantized.
    pub precision: Precision,
}

impl<'a> KernelContext<'a> {
    /// A context.
    pub fn new(cpu: &'a Cpu, precision: Precision) -> KernelContext<'a> {
        KernelContext { cpu, precision }
    }
}

impl QuantizedMatrix for PackedMatrix {
    fn dims(&self) -> (usize, usize) {
        (self.rows(), self.cols())
    }

    fn format(&self) -> &str {
        self.dtype().name()
    }

    fn matmul(&self, context: &KernelContext<'_>, x: &[f32], out: &mut [f32]) -> Result<()> {
        let mut activations = Activations::new();
        activations.prepare(context.cpu, x, x.len() / self.cols(), self.cols(), &[self], context.precision);
        kernel::matmul(context.cpu, &[self], &activations, &mut [out]);
        Ok(())
    }

    fn dequantize(&self, rows: Range<usize>, out: &mut [f32]) {
        for (row, out) in rows.zip(out.chunks_exact_mut(self.cols())) {
            self.dequantize_row(row, out);
        }
    }

    fn size_in_bytes(&self) -> usize {
        PackedMatrix::size_in_bytes(self)
    }

    fn row_invariant(&self) -> bool {
        true
    }

    fn packed(&self, _: Sealed) -> Option<&PackedMatrix> {
        Some(self)
    }
}

/// `outs[i]`, `[n][rows of matrix i]`, becomes `x`, `[n][cols]`, times matrix i transposed.
///
/// Packed matrices run in one pass on an input that is prepared once; the others follow one by one.
///
/// # Errors
/// The first matrix that fails or panics, by its place.
pub(crate) fn products(
    context: &KernelContext<'_>,
    activations: &mut Activations,
    x: &[f32],
    cols: usize,
    matrices: &[(&Site, &dyn QuantizedMatrix)],
    outs: &mut [&mut [f32]],
) -> Result<(), MatmulError> {
    let mut packed = Vec::with_capacity(matrices.len());
    let mut packed_outs: Vec<&mut [f32]> = Vec::with_capacity(matrices.len());
    for ((site, matrix), out) in matrices.iter().zip(outs) {
        match matrix.packed(Sealed) {
            Some(matrix) => {
                packed.push(matrix);
                packed_outs.push(out);
            }
            None => guarded(site, || matrix.matmul(context, x, out))?,
        }
    }
    if !packed.is_empty() {
        activations.prepare(context.cpu, x, x.len() / cols, cols, &packed, context.precision);
        kernel::matmul(context.cpu, &packed, activations, &mut packed_outs);
    }
    Ok(())
}

/// Runs a matrix's code; what goes wrong in it becomes an error that names the place.
pub(crate) fn guarded(site: &Site, f: impl FnOnce() -> Result<()>) -> Result<(), MatmulError> {
    // A matrix is immutable, and what it may leave half written is this step's output.
    let message = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("panicked: {}", panic_message(panic)),
    };
    Err(MatmulError { tensor: site.name.clone(), message })
}

pub(crate) fn panic_message(panic: Box<dyn std::any::Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other.downcast_ref::<&str>().map_or("no message".to_string(), |s| s.to_string()),
    }
}
