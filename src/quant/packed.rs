//! Packed matrices as quantized ones, and products of one input with matrices of any kind.

use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};

use super::{QuantizedMatrix, Site};
use crate::error::MatmulError;
use crate::kernel::{self, Activations, Cpu, Input, PackedMatrix, Precision};
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

/// The packed forms of those that have one.
pub(crate) fn packed_forms<'a>(matrices: impl Iterator<Item = &'a dyn QuantizedMatrix>) -> Vec<&'a PackedMatrix> {
    matrices.filter_map(|matrix| matrix.packed(Sealed)).collect()
}

/// Where products go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    /// Outputs are written.
    Replace,
    /// Products are added to what the outputs hold.
    Add,
}

/// `outs[i]`, `[n][rows of matrix i]`, becomes the input, `[n][cols]`, times matrix i transposed, or has it added.
///
/// Packed matrices run in one pass on an input that is made and prepared once; the others follow one by one. `next` are
/// the packed ones of the product that comes after.
///
/// # Errors
/// The first matrix that fails or panics, by its place.
pub(crate) fn products(
    context: &KernelContext<'_>,
    activations: &mut Activations,
    input: &Input<'_>,
    (n, cols): (usize, usize),
    (matrices, next): (&[(&Site, &dyn QuantizedMatrix)], &[&PackedMatrix]),
    into: Into,
    outs: &mut [&mut [f32]],
) -> Result<(), MatmulError> {
    let mut packed = Vec::with_capacity(matrices.len());
    let mut packed_outs: Vec<&mut [f32]> = Vec::with_capacity(matrices.len());
    let mut rows = Vec::new();
    for ((site, matrix), out) in matrices.iter().zip(outs) {
        match matrix.packed(Sealed) {
            Some(matrix) => {
                packed.push(matrix);
                packed_outs.push(out);
            }
            None => {
                let x = match *input {
                    Input::Rows(x) => x,
                    _ if rows.is_empty() => {
                        rows.resize(n * cols, 0.0);
                        input.write(context.cpu, cols, &mut rows);
                        &rows
                    }
                    _ => &rows,
                };
                if into == Into::Replace {
                    guarded(site, || matrix.matmul(context, x, out))?;
                    continue;
                }
                let mut product = vec![0.0; out.len()];
                guarded(site, || matrix.matmul(context, x, &mut product))?;
                kernel::add(context.cpu, out, &product);
            }
        }
    }
    if !packed.is_empty() {
        activations.prepare_input(context.cpu, input, n, cols, &packed, context.precision);
        kernel::expect(context.cpu, next, n, context.precision);
        match into {
            Into::Replace => kernel::matmul(context.cpu, &packed, activations, &mut packed_outs),
            Into::Add => kernel::matmul_add(context.cpu, &packed, activations, &mut packed_outs),
        }
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
