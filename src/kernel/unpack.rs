//! Reads packed groups into lanes: one format per storage type, written over [`Lanes`].
//!
//! The counterpart of `format`: offsets here are those of its table. Knows no products.

use super::activations::Operands;
use super::format::PANEL;
use super::int8::{accumulate, Units};
use super::lanes::{each_column, Lanes};
use super::scalar::{FP4_TABLE, IQ4_TABLE};

/// 32 columns of a panel: 8 units of unsigned codes, and per 16 columns (or, with one sub-block, per 32) the scale
/// and the min of 16 rows. Without a min, and for a second sub-block that is not there, the entries are zero.
pub(crate) struct Block<V: Lanes> {
    pub(crate) units: [V::I; 8],
    pub(crate) scale: [V::F; 2],
    pub(crate) min: [V::F; 2],
}

/// A quantized type in packed form.
pub(crate) trait Format: Copy + 'static {
    /// Blocks of 32 columns per group.
    const BLOCKS: usize;
    /// Bytes per group.
    const BYTES: usize;
    /// Codes are below 2^BITS.
    const BITS: u32;
    /// Subtracted from codes; 0 for types with a min.
    const OFFSET: i32;
    /// Scales per 32 columns.
    const SUBS: usize;
    /// Whether a min follows.
    const HAS_MIN: bool;

    /// Block `j` of a group.
    ///
    /// # Safety
    /// As the functions of [`Lanes`]; `group` holds the fields of block `j < BLOCKS` and of those before it.
    unsafe fn load<V: Lanes>(group: *const u8, j: usize) -> Block<V>;

    /// [`accumulate`] with this format's constants as parameters, which generics cannot pass on by themselves.
    ///
    /// # Safety
    /// As [`accumulate`].
    unsafe fn accumulate<V: Lanes, const C: usize>(
        sums: &mut [[V::F; C]; 1],
        units: Units<V::I>,
        operands: &Operands,
        b: usize,
        factors: &[[(V::F, V::F); 2]; 1],
    );
}

/// # Safety
/// As the functions of [`Lanes`].
#[inline(always)]
unsafe fn zero<V: Lanes>() -> V::F {
    // SAFETY: passed on.
    unsafe { V::splat_f(0.0) }
}

/// The same bits of every byte.
///
/// # Safety
/// As the functions of [`Lanes`].
#[inline(always)]
unsafe fn bits<V: Lanes>(bytes: V::I, shift: u32, mask: u8) -> V::I {
    // SAFETY: passed on.
    unsafe { V::and(V::shr(bytes, shift), V::splat_i(i32::from_ne_bytes([mask; 4]))) }
}

/// Four units of nibbles to eight of codes: the low ones first.
///
/// # Safety
/// As the functions of [`Lanes`]; `from` holds 256 bytes.
#[inline(always)]
unsafe fn nibbles<V: Lanes>(from: *const u8) -> [V::I; 8] {
    // SAFETY: passed on.
    unsafe {
        let mut units = [V::splat_i(0); 8];
        each_column!(4, U => {
            let bytes = V::load_i(from.add(U * 64));
            units[U] = bits::<V>(bytes, 0, 15);
            units[U + 4] = bits::<V>(bytes, 4, 15);
        });
        units
    }
}

/// Four units of nibbles to eight of a table's entries: the low ones first.
///
/// # Safety
/// As [`nibbles`].
#[inline(always)]
unsafe fn entries<V: Lanes>(from: *const u8, table: &[u8; 16]) -> [V::I; 8] {
    // SAFETY: passed on; the table has its 16 bytes.
    unsafe {
        let mut units = nibbles::<V>(from);
        for unit in &mut units {
            *unit = V::lookup(*unit, table.as_ptr());
        }
        units
    }
}

/// 2^(e - 128) of 16 bytes e, as the product of two powers that are normal numbers.
///
/// # Safety
/// As the functions of [`Lanes`]; `from` holds 16 bytes.
#[inline(always)]
unsafe fn half_powers<V: Lanes>(from: *const u8) -> V::F {
    // SAFETY: passed on.
    unsafe {
        let e = V::load_u8(from);
        let half = V::shr(e, 1);
        // 2^(x - 64) has the bits (x + 63) << 23.
        let power = |x: V::I| V::from_bits(V::shl(V::sub(x, V::splat_i(-63)), 23));
        V::mul(power(half), power(V::sub(e, half)))
    }
}

/// Adds the fifth bits: bit u of each byte of the plane belongs to unit u.
///
/// # Safety
/// As the functions of [`Lanes`]; `from` holds 64 bytes.
#[inline(always)]
unsafe fn add_plane<V: Lanes>(units: &mut [V::I; 8], from: *const u8) {
    // SAFETY: passed on.
    unsafe {
        let plane = V::load_i(from);
        let mask = V::splat_i(0x1010_1010);
        for (u, unit) in units.iter_mut().enumerate() {
            // Bits that the shift carries into a neighbouring byte are masked away.
            let shifted = if u < 4 { V::shl(plane, 4 - u as u32) } else { V::shr(plane, u as u32 - 4) };
            *unit = V::or(*unit, V::and(shifted, mask));
        }
    }
}

/// Q4_K's and Q5_K's scales and mins of block `j`: 6 bits each in 12 bytes per row.
///
/// # Safety
/// As the functions of [`Lanes`]; `group` holds the two factors and the 12 bytes of 16 rows.
#[inline(always)]
unsafe fn six_bit_scales<V: Lanes>(group: *const u8, j: usize) -> (V::F, V::F) {
    // SAFETY: passed on.
    unsafe {
        let s = |i: usize| V::load_u8(group.add(64 + i * PANEL));
        let low = |bytes, shift, mask| V::and(V::shr(bytes, shift), V::splat_i(mask));
        let (scale, min) = if j < 4 {
            (low(s(j), 0, 63), low(s(j + 4), 0, 63))
        } else {
            let both = s(j + 4);
            let (scale, min) = (low(s(j - 4), 6, 3), low(s(j), 6, 3));
            (V::or(low(both, 0, 15), V::shl(scale, 4)), V::or(low(both, 4, 15), V::shl(min, 4)))
        };
        let scale = V::mul(V::load_f16(group), V::to_f(scale));
        let min = V::neg(V::mul(V::load_f16(group.add(32)), V::to_f(min)));
        (scale, min)
    }
}

macro_rules! format {
    ($(#[$doc:meta])* $name:ident: $blocks:literal blocks, $bytes:literal bytes, $bits:literal bits,
     offset $offset:literal, $subs:literal sub, min $min:literal; |$group:ident, $j:ident, $v:ident| $body:block) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types)] // ggml's names
        pub(crate) struct $name;

        // Kernels may take codes of 8 bits as signed numbers, 128 less, and have a tile for 8 bits, none for 6 or 7, where
        // blocks have no parts.
        const _: () = assert!($bits < 8 || $offset == 128 && !$min);
        const _: () = assert!($bits <= 5 || $bits == 8 || $subs == 2);

        impl Format for $name {
            const BLOCKS: usize = $blocks;
            const BYTES: usize = $bytes;
            const BITS: u32 = $bits;
            const OFFSET: i32 = $offset;
            const SUBS: usize = $subs;
            const HAS_MIN: bool = $min;

            #[inline(always)]
            unsafe fn load<$v: Lanes>($group: *const u8, $j: usize) -> Block<$v> {
                // SAFETY: offsets stay inside the group; the rest is the caller's promise.
                unsafe { $body }
            }

            #[inline(always)]
            unsafe fn accumulate<V: Lanes, const C: usize>(
                sums: &mut [[V::F; C]; 1],
                units: Units<V::I>,
                operands: &Operands,
                b: usize,
                factors: &[[(V::F, V::F); 2]; 1],
            ) {
                // SAFETY: passed on.
                unsafe { accumulate::<V, 1, C, C, $subs, $min, $bits>(sums, units, operands, (b, 0), factors) }
            }
        }
    };
}

format! {
    /// d [2][16], then 4 units per block.
    Q4_0: 2 blocks, 576 bytes, 4 bits, offset 8, 1 sub, min false; |group, j, V| {
        let units = nibbles::<V>(group.add(64 + j * 256));
        Block { units, scale: [V::load_f16(group.add(j * 32)), zero::<V>()], min: [zero::<V>(); 2] }
    }
}

format! {
    /// d [2][16], m [2][16], then 4 units per block.
    Q4_1: 2 blocks, 640 bytes, 4 bits, offset 0, 1 sub, min true; |group, j, V| {
        let units = nibbles::<V>(group.add(128 + j * 256));
        let min = V::load_f16(group.add(64 + j * 32));
        Block { units, scale: [V::load_f16(group.add(j * 32)), zero::<V>()], min: [min, zero::<V>()] }
    }
}

format! {
    /// d [2][16], then a plane and 4 units per block.
    Q5_0: 2 blocks, 704 bytes, 5 bits, offset 16, 1 sub, min false; |group, j, V| {
        let mut units = nibbles::<V>(group.add(128 + j * 320));
        add_plane::<V>(&mut units, group.add(64 + j * 320));
        Block { units, scale: [V::load_f16(group.add(j * 32)), zero::<V>()], min: [zero::<V>(); 2] }
    }
}

format! {
    /// d [2][16], m [2][16], then a plane and 4 units per block.
    Q5_1: 2 blocks, 768 bytes, 5 bits, offset 0, 1 sub, min true; |group, j, V| {
        let mut units = nibbles::<V>(group.add(192 + j * 320));
        add_plane::<V>(&mut units, group.add(128 + j * 320));
        let min = V::load_f16(group.add(64 + j * 32));
        Block { units, scale: [V::load_f16(group.add(j * 32)), zero::<V>()], min: [min, zero::<V>()] }
    }
}

format! {
    /// d [2][16], then 8 units per block.
    Q8_0: 2 blocks, 1088 bytes, 8 bits, offset 128, 1 sub, min false; |group, j, V| {
        let mut units = [V::splat_i(0); 8];
        each_column!(8, U => {
            units[U] = V::load_i(group.add(64 + j * 512 + U * 64));
        });
        Block { units, scale: [V::load_f16(group.add(j * 32)), zero::<V>()], min: [zero::<V>(); 2] }
    }
}

format! {
    /// d, dmin, scales [16][16] (low nibble scale, high nibble min), 16 units of four 2-bit codes.
    Q2_K: 8 blocks, 1344 bytes, 2 bits, offset 0, 2 sub, min true; |group, j, V| {
        let mut units = [V::splat_i(0); 8];
        each_column!(8, U => {
            units[U] = bits::<V>(V::load_i(group.add(320 + (j / 4 * 8 + U) * 64)), j as u32 % 4 * 2, 3);
        });
        let (d, dmin) = (V::load_f16(group), V::load_f16(group.add(32)));
        let (mut scale, mut min) = ([zero::<V>(); 2], [zero::<V>(); 2]);
        for sub in 0..2 {
            let both = V::load_u8(group.add(64 + (2 * j + sub) * PANEL));
            scale[sub] = V::mul(d, V::to_f(V::and(both, V::splat_i(15))));
            min[sub] = V::neg(V::mul(dmin, V::to_f(V::shr(both, 4))));
        }
        Block { units, scale, min }
    }
}

format! {
    /// d, scales [12][16], 8 units of third bits (bit j for block j), 16 units of four 2-bit codes.
    Q3_K: 8 blocks, 1792 bytes, 3 bits, offset 4, 2 sub, min false; |group, j, V| {
        let mut units = [V::splat_i(0); 8];
        each_column!(8, U => {
            let low = bits::<V>(V::load_i(group.add(768 + (j / 4 * 8 + U) * 64)), j as u32 % 4 * 2, 3);
            let high = bits::<V>(V::load_i(group.add(256 + U * 64)), j as u32, 1);
            units[U] = V::or(low, V::shl(high, 2));
        });
        let d = V::load_f16(group);
        let mut scale = [zero::<V>(); 2];
        for (sub, scale) in scale.iter_mut().enumerate() {
            let i = 2 * j + sub;
            let s = |i: usize| V::load_u8(group.add(32 + i * PANEL));
            let low = if i < 8 { V::and(s(i), V::splat_i(15)) } else { V::shr(s(i - 8), 4) };
            let high = V::and(V::shr(s(8 + i % 4), i as u32 / 4 * 2), V::splat_i(3));
            let code = V::sub(V::or(low, V::shl(high, 4)), V::splat_i(32));
            *scale = V::mul(d, V::to_f(code));
        }
        Block { units, scale, min: [zero::<V>(); 2] }
    }
}

format! {
    /// d, dmin, scales [12][16], 32 units of two nibbles.
    Q4_K: 8 blocks, 2304 bytes, 4 bits, offset 0, 1 sub, min true; |group, j, V| {
        let mut units = [V::splat_i(0); 8];
        each_column!(8, U => {
            units[U] = bits::<V>(V::load_i(group.add(256 + (j / 2 * 8 + U) * 64)), j as u32 % 2 * 4, 15);
        });
        let (scale, min) = six_bit_scales::<V>(group, j);
        Block { units, scale: [scale, zero::<V>()], min: [min, zero::<V>()] }
    }
}

format! {
    /// d, dmin, scales [12][16], 8 units of fifth bits (bit j for block j), 32 units of two nibbles.
    Q5_K: 8 blocks, 2816 bytes, 5 bits, offset 0, 1 sub, min true; |group, j, V| {
        let mut units = [V::splat_i(0); 8];
        each_column!(8, U => {
            let low = bits::<V>(V::load_i(group.add(768 + (j / 2 * 8 + U) * 64)), j as u32 % 2 * 4, 15);
            let high = bits::<V>(V::load_i(group.add(256 + U * 64)), j as u32, 1);
            units[U] = V::or(low, V::shl(high, 4));
        });
        let (scale, min) = six_bit_scales::<V>(group, j);
        Block { units, scale: [scale, zero::<V>()], min: [min, zero::<V>()] }
    }
}

format! {
    /// d, scales i8 [16][16], then per half 8 units of four 2-bit high parts and 16 units of two nibbles: the order in
    /// which they are first read.
    Q6_K: 8 blocks, 3392 bytes, 6 bits, offset 32, 2 sub, min false; |group, j, V| {
        let (half, part) = (j / 4, j % 4);
        let mut units = [V::splat_i(0); 8];
        each_column!(8, U => {
            let high = V::load_i(group.add(320 + half * 1536 + U * 64));
            let low = V::load_i(group.add(832 + half * 1536 + (part % 2 * 8 + U) * 64));
            let high = bits::<V>(high, part as u32 * 2, 3);
            units[U] = V::or(bits::<V>(low, part as u32 / 2 * 4, 15), V::shl(high, 4));
        });
        let d = V::load_f16(group);
        let mut scale = [zero::<V>(); 2];
        for (sub, scale) in scale.iter_mut().enumerate() {
            *scale = V::mul(d, V::to_f(V::load_i8(group.add(32 + (2 * j + sub) * PANEL))));
        }
        Block { units, scale, min: [zero::<V>(); 2] }
    }
}

format! {
    /// d [2][16], then 4 units per block.
    IQ4_NL: 2 blocks, 576 bytes, 8 bits, offset 128, 1 sub, min false; |group, j, V| {
        let units = entries::<V>(group.add(64 + j * 256), &IQ4_TABLE);
        Block { units, scale: [V::load_f16(group.add(j * 32)), zero::<V>()], min: [zero::<V>(); 2] }
    }
}

format! {
    /// d, high scale bits [2][16] (four blocks per byte), low scale bits [4][16] (two per byte), 4 units per block.
    IQ4_XS: 8 blocks, 2176 bytes, 8 bits, offset 128, 1 sub, min false; |group, j, V| {
        let units = entries::<V>(group.add(128 + j * 256), &IQ4_TABLE);
        let high = V::shr(V::load_u8(group.add(32 + j / 4 * PANEL)), j as u32 % 4 * 2);
        let low = V::shr(V::load_u8(group.add(64 + j / 2 * PANEL)), j as u32 % 2 * 4);
        let high = V::shl(V::and(high, V::splat_i(3)), 4);
        let code = V::sub(V::or(V::and(low, V::splat_i(15)), high), V::splat_i(32));
        let scale = V::mul(V::load_f16(group), V::to_f(code));
        Block { units, scale: [scale, zero::<V>()], min: [zero::<V>(); 2] }
    }
}

format! {
    /// e [4][16], then 4 units per block.
    MXFP4: 4 blocks, 1088 bytes, 5 bits, offset 12, 1 sub, min false; |group, j, V| {
        let units = entries::<V>(group.add(64 + j * 256), &FP4_TABLE);
        Block { units, scale: [half_powers::<V>(group.add(j * 16)), zero::<V>()], min: [zero::<V>(); 2] }
    }
}

/// Runs an expression with `$format` as the format of a quantized type; `$other` for the dense types.
macro_rules! with_format {
    ($dtype:expr, $format:ident => $body:expr, else $other:expr) => {
        with_format!(@ $dtype, $format, $body, $other, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K
            IQ4_NL IQ4_XS MXFP4)
    };
    (@ $dtype:expr, $format:ident, $body:expr, $other:expr, $($name:ident)*) => {
        match $dtype {
            $( crate::source::Dtype::$name => { type $format = crate::kernel::unpack::$name; $body } )*
            _ => $other,
        }
    };
}
pub(crate) use with_format;
