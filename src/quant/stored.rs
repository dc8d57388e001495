//! The default: weights stay in the format that the source has them in.

use super::{Calibration, LinearGroup, QuantizedGroup, QuantizedMatrix, Quantizer, WeightView};
use crate::kernel::{Cpu, PackedMatrix};
use crate::Result;

/// Keeps every weight in its source's format, bit for bit, packed for the kernels.
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
    let mut matrix = PackedMatrix::allocate(weight.dtype(), weight.rows(), weight.cols())?;
    weight.for_each_part(weight.row_bytes(), &mut |first, bytes| Ok(matrix.pack_rows(cpu, first, bytes)?))?;
    Ok(Box::new(matrix))
}
