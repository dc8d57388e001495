//! The default: weights stay in the format that the source has them in, or in BF16 where no kernel reads that format.

use std::ops::Range;

use super::packed::Sealed;
use super::requantize::convert;
use super::{Calibration, KernelContext, LinearGroup, QuantizedGroup, QuantizedMatrix, Quantizer, WeightView};
use crate::kernel::{Cpu, PackedMatrix};
use crate::Result;

/// Keeps every weight in its source's format, bit for bit, packed for the kernels.
///
/// Where no kernel computes with the format ([`Dtype::held_as`](crate::source::Dtype::held_as)), its values are rounded to BF16 as they are loaded, and
/// [`Engine::matrices`](crate::Engine::matrices) says so: the format is then `IQ2_XS as BF16`, for example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored;

impl Quantizer for Stored {
    fn name(&self) -> &str {
        "stored"
    }

    fn quantize(&self, group: &LinearGroup<'_>, _: &Calibration<'_>) -> Result<QuantizedGroup> {
        group.each(|weight| pack(group.cpu(), weight))
    }
}

/// The weight as it is, in the kernels' order.
pub(super) fn pack(cpu: &Cpu, weight: &WeightView<'_>) -> Result<Box<dyn QuantizedMatrix>> {
    let stored = weight.dtype();
    match stored.held_as() {
        Some(held) if held != stored => {
            let format = format!("{stored} as {held}");
            return Ok(Box::new(Widened { matrix: convert(cpu, weight, held)?, format }));
        }
        _ => {}
    }
    if weight.scale() != 1.0 {
        let problem = format!("the file has a factor apart from its {stored} blocks; requantize it by a rule");
        return Err(weight.info().refused(Stored.name(), problem));
    }
    Ok(Box::new(weight.packed(cpu)?))
}

/// Values of a format without kernels in one with kernels.
#[derive(Debug)]
struct Widened {
    matrix: PackedMatrix,
    /// What it was and what it is.
    format: String,
}

impl QuantizedMatrix for Widened {
    fn dims(&self) -> (usize, usize) {
        self.matrix.dims()
    }

    fn format(&self) -> &str {
        &self.format
    }

    fn matmul(&self, context: &KernelContext<'_>, x: &[f32], out: &mut [f32]) -> Result<()> {
        self.matrix.matmul(context, x, out)
    }

    fn dequantize(&self, rows: Range<usize>, out: &mut [f32]) {
        self.matrix.dequantize(rows, out);
    }

    fn size_in_bytes(&self) -> usize {
        QuantizedMatrix::size_in_bytes(&self.matrix)
    }

    fn row_invariant(&self) -> bool {
        self.matrix.row_invariant()
    }

    fn packed(&self, _: Sealed) -> Option<&PackedMatrix> {
        Some(&self.matrix)
    }
}
