//! ggml's block formats from values, or from random numbers, so that tests can make a model in any type that runs.

use half::f16;

use super::weights::{splitmix64, stream};
use crate::kernel;
use crate::quant::encode::{encode, has_writer};
use crate::source::Dtype;

/// The blocks of `values` in `dtype`, little-endian. A row must not share a block with another, so call it per tensor
/// whose rows are whole blocks.
///
/// # Panics
/// If `dtype` has no writer (the IQ, TQ and 4-bit float types; see [`random_blocks`]), `values` is not a multiple of its
/// block, or a value of a block-quantized type is not finite or too large for a scale in f16.
pub fn quantize_blocks(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    assert!(has_writer(dtype), "no writer for {dtype}");
    assert!(values.len().is_multiple_of(dtype.block_len()), "{} values are no whole blocks of {dtype}", values.len());
    let mut out = vec![0; values.len() / dtype.block_len() * dtype.block_bytes()];
    if let Err(problem) = encode(dtype, values, &mut out) {
        panic!("{dtype}: {problem}");
    }
    out
}

/// Blocks of `len` values with random codes, for types without a writer: the standard deviation is about `deviation`, and
/// the scales inside of a block, where there are any, are random too. The same arguments give the same bytes everywhere.
///
/// # Panics
/// If `dtype` is one that has a writer or cannot be loaded, or `len` is not a multiple of its block.
pub fn random_blocks(seed: u64, name: &str, dtype: Dtype, len: usize, deviation: f32) -> Vec<u8> {
    assert!(dtype.is_supported() && !has_writer(dtype), "no random blocks for {dtype}");
    assert!(len.is_multiple_of(dtype.block_len()), "{len} values are no whole blocks of {dtype}");
    let key = stream(seed, name);
    let bytes = len / dtype.block_len() * dtype.block_bytes();
    let mut out: Vec<u8> = (0..bytes.div_ceil(8) as u64).flat_map(|i| splitmix64(key, i).to_le_bytes()).collect();
    out.truncate(bytes);
    let mut set_scales = |scale: f32| {
        for (i, block) in out.chunks_exact_mut(dtype.block_bytes()).enumerate() {
            // Blocks differ by up to a third.
            let spread = 0.75 + (splitmix64(key ^ 1, i as u64) >> 40) as f32 / (1 << 25) as f32;
            set_scale(dtype, block, scale * spread);
        }
        let mut values = vec![0.0; len];
        match kernel::dequantize(dtype, &out, &mut values) {
            Ok(()) => (values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / len.max(1) as f64).sqrt() as f32,
            Err(error) => unreachable!("whole blocks of a type that can be loaded: {error}"),
        }
    };
    // What the codes and inner scales make of a scale, and then the scale that gives the deviation.
    let unit = set_scales(1.0);
    set_scales(deviation / unit);
    out
}

/// Writes the scale of a block, as near as the type comes to it.
fn set_scale(dtype: Dtype, block: &mut [u8], scale: f32) {
    let half = f16::from_f32(scale).to_le_bytes();
    match dtype {
        Dtype::MXFP4 => block[0] = (scale.log2().round() + 128.0).clamp(0.0, 254.0) as u8,
        Dtype::NVFP4 => {
            // Exponents with bias 7 above 3 bits of mantissa, which stay random; the codes are doubled.
            let exponent = ((scale * 2.0).log2().round() + 7.0).clamp(0.0, 14.0) as u8;
            block[..4].iter_mut().for_each(|byte| *byte = *byte & 7 | exponent << 3);
        }
        Dtype::IQ1_M => {
            let bits = u16::from_le_bytes(half);
            for w in 0..4 {
                let top = (bits >> (4 * w) & 15) as u8;
                block[49 + 2 * w] = block[49 + 2 * w] & 15 | top << 4;
            }
        }
        _ => {
            let at = match dtype {
                Dtype::TQ1_0 => 52,
                Dtype::TQ2_0 => 64,
                _ => 0,
            };
            block[at..at + 2].copy_from_slice(&half);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "no writer for IQ4_XS")]
    fn other_types_are_refused() {
        quantize_blocks(Dtype::IQ4_XS, &[0.0; 256]);
    }

    #[test]
    fn random_blocks_have_the_deviation_that_was_asked_for() {
        let dtypes: Vec<Dtype> = Dtype::ALL.iter().copied().filter(|d| d.is_supported() && !has_writer(*d)).collect();
        assert_eq!(dtypes.len(), 13);
        for dtype in dtypes {
            for deviation in [1.0f32, 0.0625] {
                let bytes = random_blocks(3, "x", dtype, 8192, deviation);
                assert_eq!(bytes, random_blocks(3, "x", dtype, 8192, deviation));
                let mut values = vec![0.0; 8192];
                kernel::dequantize(dtype, &bytes, &mut values).unwrap();
                let square = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 8192.0;
                let ratio = square.sqrt() / f64::from(deviation);
                // Powers of two come as near as this.
                assert!((0.65..1.5).contains(&ratio), "{dtype}: {ratio}");
                assert!(values.iter().any(|x| *x < 0.0) && values.iter().any(|x| *x > 0.0), "{dtype}");
            }
            assert_ne!(random_blocks(3, "x", dtype, 8192, 1.0), random_blocks(4, "x", dtype, 8192, 1.0));
        }
    }
}
