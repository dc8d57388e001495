//! Types that files have and no kernel reads: their blocks to values, once, while a model is loaded.
//!
//! Plain Rust, one file per family. Block layouts are those of ggml. Every value is rounded as ggml's reference rounds
//! it (f32 products, from the block's scale inwards), so that all readers of a file see the same model. Knows blocks; no
//! matrices, no panels.

mod grids;
mod nvfp4;
mod one_bit;
mod ternary;
mod three_bit;
mod two_bit;

use crate::source::Dtype;

/// Writes the values of one block.
pub(super) type Decode = fn(&[u8], &mut [f32]);

/// The reader of a type without kernels; `None` for every other type. It gets exactly one block and room for its values.
pub(super) fn decoder(dtype: Dtype) -> Option<Decode> {
    Some(match dtype {
        Dtype::IQ1_S => one_bit::iq1_s,
        Dtype::IQ1_M => one_bit::iq1_m,
        Dtype::IQ2_XXS => two_bit::iq2_xxs,
        Dtype::IQ2_XS => two_bit::iq2_xs,
        Dtype::IQ2_S => two_bit::iq2_s,
        Dtype::IQ3_XXS => three_bit::iq3_xxs,
        Dtype::IQ3_S => three_bit::iq3_s,
        Dtype::TQ1_0 => ternary::tq1_0,
        Dtype::TQ2_0 => ternary::tq2_0,
        Dtype::NVFP4 => nvfp4::nvfp4,
        _ => return None,
    })
}

fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Seven stored bits to eight signs: the last makes the number of minus signs even.
fn even_signs(bits: u32) -> u8 {
    let bits = (bits & 127) as u8;
    bits | (bits.count_ones() as u8 & 1) << 7
}

/// The value with the sign of bit `j`, 1 meaning minus.
fn signed(value: f32, signs: u8, j: usize) -> f32 {
    if signs >> j & 1 == 1 {
        -value
    } else {
        value
    }
}
