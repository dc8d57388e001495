//! ggml's block formats from values, so that tests can make a model in any type that runs.

use crate::quant::encode::encode;
use crate::source::Dtype;

/// The blocks of `values` in `dtype`, little-endian. A row must not share a block with another, so call it per tensor
/// whose rows are whole blocks.
///
/// # Panics
/// If `dtype` is not one that candlewick computes with, `values` is not a multiple of its block, or a value of a
/// block-quantized type is not finite or too large for a scale in f16.
pub fn quantize_blocks(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    assert!(dtype.is_supported(), "no writer for {dtype}");
    assert!(values.len().is_multiple_of(dtype.block_len()), "{} values are no whole blocks of {dtype}", values.len());
    let mut out = vec![0; values.len() / dtype.block_len() * dtype.block_bytes()];
    if let Err(problem) = encode(dtype, values, &mut out) {
        panic!("{dtype}: {problem}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "no writer for IQ4_XS")]
    fn other_types_are_refused() {
        quantize_blocks(Dtype::IQ4_XS, &[0.0; 256]);
    }
}
