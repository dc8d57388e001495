//! The formats: what their bits mean, and that packing keeps them.

use half::f16;

use super::{cpu, dtypes, factors, pack, shapes, Random};
use crate::error::KernelError;
use crate::kernel::format::layout;
use crate::kernel::{dequantize, stored, Cpu, KernelLevel, PackedMatrix};
use crate::source::Dtype;

/// Element `e` of a block by the formats' definitions, written down independently of the library: position by
/// position, in f64.
fn element(dtype: Dtype, b: &[u8], e: usize) -> f64 {
    let h = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f64();
    let bit = |at: usize, i: usize| f64::from(b[at + i / 8] >> (i % 8) & 1);
    let nibble = |at: usize| f64::from(if e < 16 { b[at + e] & 15 } else { b[at + e - 16] >> 4 });
    // 6-bit scales of Q4_K and Q5_K: (scale, min) of the sub-block.
    let six = || {
        let j = e / 32;
        let s = &b[4..16];
        let (sc, m) = if j < 4 {
            (s[j] % 64, s[j + 4] % 64)
        } else {
            (s[j + 4] % 16 + s[j - 4] / 64 * 16, s[j + 4] / 16 + s[j] / 64 * 16)
        };
        (f64::from(sc), f64::from(m))
    };
    match dtype {
        Dtype::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Dtype::F16 => h(0),
        Dtype::BF16 => f64::from(f32::from_bits(u32::from(b[0]) << 16 | u32::from(b[1]) << 24)),
        Dtype::Q4_0 => h(0) * (nibble(2) - 8.0),
        Dtype::Q4_1 => h(0) * nibble(4) + h(2),
        Dtype::Q5_0 => h(0) * (nibble(6) + 16.0 * bit(2, e) - 16.0),
        Dtype::Q5_1 => h(0) * (nibble(8) + 16.0 * bit(4, e)) + h(2),
        Dtype::Q8_0 => h(0) * f64::from(b[2 + e] as i8),
        Dtype::Q2_K => {
            let scale = b[e / 16];
            let (half, quarter, l) = (e / 128, e % 128 / 32, e % 32);
            let code = f64::from(b[16 + 32 * half + l] / 4u8.pow(quarter as u32) % 4);
            h(80) * f64::from(scale % 16) * code - h(82) * f64::from(scale / 16)
        }
        Dtype::Q3_K => {
            let (half, quarter, l, i) = (e / 128, e % 128 / 32, e % 32, e / 16);
            let low = f64::from(b[32 + 32 * half + l] / 4u8.pow(quarter as u32) % 4);
            let code = if bit(l, 4 * half + quarter) == 1.0 { low } else { low - 4.0 };
            let four = if i < 8 { b[96 + i] % 16 } else { b[96 + i - 8] / 16 };
            let two = b[96 + 8 + i % 4] / 4u8.pow(i as u32 / 4) % 4;
            h(108) * (f64::from(four) + 16.0 * f64::from(two) - 32.0) * code
        }
        Dtype::Q4_K => {
            let byte = b[16 + e / 64 * 32 + e % 32];
            let code = if e % 64 < 32 { byte % 16 } else { byte / 16 };
            h(0) * six().0 * f64::from(code) - h(2) * six().1
        }
        Dtype::Q5_K => {
            let byte = b[48 + e / 64 * 32 + e % 32];
            let code = f64::from(if e % 64 < 32 { byte % 16 } else { byte / 16 });
            h(0) * six().0 * (code + 16.0 * bit(16 + e % 32, e / 32)) - h(2) * six().1
        }
        Dtype::Q6_K => {
            let (half, l) = (e / 128, e % 32);
            let (low, high) = match e % 128 / 32 {
                0 => (b[64 * half + l] % 16, b[128 + 32 * half + l] % 4),
                1 => (b[64 * half + l + 32] % 16, b[128 + 32 * half + l] / 4 % 4),
                2 => (b[64 * half + l] / 16, b[128 + 32 * half + l] / 16 % 4),
                _ => (b[64 * half + l + 32] / 16, b[128 + 32 * half + l] / 64),
            };
            let scale = f64::from(b[192 + e / 16] as i8);
            h(208) * scale * (f64::from(low) + 16.0 * f64::from(high) - 32.0)
        }
        Dtype::IQ4_NL => h(0) * IQ4[nibble(2) as usize],
        Dtype::IQ4_XS => {
            let (i, in_block) = (e / 32, e % 32);
            let four = b[4 + i / 2] / 16u8.pow(i as u32 % 2) % 16;
            let two = u16::from_le_bytes([b[2], b[3]]) / 4u16.pow(i as u32) % 4;
            let byte = b[8 + 16 * i + in_block % 16];
            let code = if in_block < 16 { byte % 16 } else { byte / 16 };
            h(0) * (f64::from(four) + 16.0 * f64::from(two) - 32.0) * IQ4[usize::from(code)]
        }
        Dtype::MXFP4 => {
            // Sign, two bits of exponent (bias 1), one of mantissa; minus zero is zero.
            let code = nibble(1) as u8;
            let magnitude = match (code / 2 % 4, f64::from(code % 2)) {
                (0, mantissa) => mantissa / 2.0,
                (exponent, mantissa) => (1.0 + mantissa / 2.0) * f64::from(1 << exponent) / 2.0,
            };
            let sign = if code < 8 || magnitude == 0.0 { 1.0 } else { -1.0 };
            sign * magnitude * (f64::from(b[0]) - 127.0).exp2()
        }
        other => panic!("{other}"),
    }
}

const IQ4: [f64; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

#[test]
fn dequantized_values_follow_the_definitions() {
    let mut random = Random(7);
    for dtype in dtypes() {
        let (len, size) = (dtype.block_len(), dtype.block_bytes());
        let bytes = random.weights(dtype, 1, len * 50);
        let mut values = vec![0f32; len * 50];
        dequantize(dtype, &bytes, &mut values).unwrap();
        for (i, value) in values.iter().enumerate() {
            let expected = element(dtype, &bytes[i / len * size..][..size], i % len) as f32;
            // Each value is one rounding of an exact result, so they are equal, not just close.
            assert_eq!(*value, expected, "{dtype} element {i}");
        }
    }
}

/// Blocks worked out by hand: `(type, bytes set in a zero block, (element, value) pairs)`.
type Example = (Dtype, Vec<(usize, Vec<u8>)>, Vec<(usize, f32)>);

#[test]
fn blocks_worked_out_by_hand() {
    let h = |value: f32| f16::from_f32(value).to_le_bytes().to_vec();
    let examples: Vec<Example> = vec![
        (Dtype::Q4_0, vec![(0, h(0.5)), (2, vec![0x3c])], vec![(0, 2.0), (16, -2.5), (1, -4.0)]),
        (Dtype::Q4_1, vec![(0, h(0.5)), (2, h(-1.0)), (5, vec![0xf1])], vec![(0, -1.0), (1, -0.5), (17, 6.5)]),
        (
            Dtype::Q5_0,
            vec![(0, h(2.0)), (2, vec![1, 0, 0, 0x80]), (6, vec![0x21])],
            vec![(0, 2.0), (16, -28.0), (31, 0.0)],
        ),
        (Dtype::Q5_1, vec![(0, h(2.0)), (2, h(0.25)), (4, vec![2]), (9, vec![0x04])], vec![(1, 40.25), (17, 0.25)]),
        (Dtype::Q8_0, vec![(0, h(0.25)), (2, vec![0x80, 0x7f])], vec![(0, -32.0), (1, 31.75), (2, 0.0)]),
        // Element 160 is code bits 2-3 of byte 32 with scale 10; elements 0.. have scale 0 and min 2.
        (
            Dtype::Q2_K,
            vec![(0, vec![0x20]), (10, vec![0x3a]), (48, vec![0x0c]), (80, h(1.0)), (82, h(0.5))],
            vec![(0, -1.0), (160, 28.5), (176, 0.0)],
        ),
        // Scale of elements 16..32: 1 + 16 * 2 - 32 = 1. Element 16: low 3, high bit set; element 17: low 3, not set.
        (
            Dtype::Q3_K,
            vec![(16, vec![1]), (48, vec![3, 3]), (97, vec![1]), (105, vec![2]), (108, h(0.5))],
            vec![(16, 1.5), (17, -0.5)],
        ),
        // Sub-block 5: scale low bits in byte 9, high in byte 1; min low in byte 9, high in byte 5 of the scales.
        (
            Dtype::Q4_K,
            vec![(0, h(1.0)), (2, h(1.0)), (5, vec![0x40]), (9, vec![0x80]), (13, vec![0x31]), (80, vec![0x20])],
            vec![(160, 17.0 * 2.0 - 35.0), (161, -35.0)],
        ),
        (
            Dtype::Q5_K,
            vec![(0, h(1.0)), (4, vec![3]), (16, vec![1]), (48, vec![0x0f])],
            vec![(0, 93.0), (1, 0.0), (32, 0.0)],
        ),
        // Element 96 = high nibble of byte 32 and bits 6-7 of byte 128; its scale is entry 6.
        (
            Dtype::Q6_K,
            vec![(32, vec![0x50]), (128, vec![0xc0]), (198, vec![0xfe]), (208, h(0.5))],
            vec![(96, -21.0), (97, 32.0)],
        ),
        (Dtype::IQ4_NL, vec![(0, h(0.5)), (2, vec![0xf8, 0x07])], vec![(0, 0.5), (16, 56.5), (1, -5.0), (2, -63.5)]),
        // Scale of block 5: low bits 3 in the high nibble of byte 2, high bits 2: 3 + 32 - 32. Others: -32.
        (
            Dtype::IQ4_XS,
            vec![(0, h(2.0)), (3, vec![0x08]), (6, vec![0x30]), (8, vec![0x90]), (88, vec![0x8f])],
            vec![(160, 678.0), (176, 6.0), (0, 8128.0), (16, -832.0)],
        ),
        // 2^(128 - 127) times 6, -6, 0.5, -0.5.
        (Dtype::MXFP4, vec![(0, vec![128]), (1, vec![0xf7, 0x91])], vec![(0, 12.0), (16, -12.0), (1, 1.0), (17, -1.0)]),
        // Subnormal: 2^-127 and 2^-126 times 6.
        (Dtype::MXFP4, vec![(0, vec![0]), (1, vec![7])], vec![(0, 6.0 * f32::from_bits(0x0040_0000)), (1, 0.0)]),
        (Dtype::MXFP4, vec![(0, vec![1]), (1, vec![7])], vec![(0, 6.0 * f32::MIN_POSITIVE)]),
        (Dtype::MXFP4, vec![(0, vec![250]), (1, vec![1])], vec![(0, 122.0f32.exp2())]),
    ];
    for (dtype, set, expected) in examples {
        let mut block = vec![0u8; dtype.block_bytes()];
        for (at, bytes) in set {
            block[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let mut values = vec![0f32; dtype.block_len()];
        dequantize(dtype, &block, &mut values).unwrap();
        for (e, value) in expected {
            assert_eq!(values[e], value, "{dtype} element {e}");
        }
    }
}

#[test]
fn packing_keeps_every_bit() {
    let mut random = Random(11);
    for dtype in dtypes() {
        for &(rows, cols) in shapes(dtype) {
            // Any bits at all, not only sensible scales.
            let row_bytes = dtype.size_in_bytes(cols).unwrap();
            let bytes: Vec<u8> = (0..rows * row_bytes).map(|_| (random.next() >> 20) as u8).collect();
            let mut matrix = PackedMatrix::allocate(dtype, rows, cols).unwrap();
            // In two parts, by several threads.
            let cpu = cpu(KernelLevel::Scalar, 2);
            let split = (rows / 2).next_multiple_of(16).min(rows) * row_bytes;
            matrix.pack_rows_unchecked(&cpu, 0, &bytes[..split]).unwrap();
            matrix.pack_rows_unchecked(&cpu, split / row_bytes, &bytes[split..]).unwrap_or_else(|error| {
                assert!(split == bytes.len(), "{error}");
            });
            let mut out = vec![0; row_bytes];
            for (row, expected) in bytes.chunks_exact(row_bytes).enumerate() {
                matrix.unpack_row(row, &mut out);
                assert_eq!(out, expected, "{dtype} {rows} x {cols} row {row}");
            }
        }
    }
}

#[test]
fn rows_that_the_threads_read_are_packed_alike_and_the_first_failure_counts() {
    // Many tasks, the last of which has an incomplete panel.
    let (rows, cols) = (4001, 512);
    let mut random = Random(17);
    for dtype in [Dtype::Q5_0, Dtype::Q6_K, Dtype::BF16] {
        let bytes = random.weights(dtype, rows, cols);
        let (row_bytes, expected) = (bytes.len() / rows, pack(dtype, rows, cols, &bytes));
        let cpu = cpu(KernelLevel::Scalar, 3);
        let mut matrix = PackedMatrix::allocate(dtype, rows, cols).unwrap();
        let mut read = |rows: std::ops::Range<usize>, bad: &[usize]| {
            matrix.pack_read::<KernelError>(&cpu, rows, &|first, out| {
                let found = bad.iter().find(|&&row| (first..first + out.len() / row_bytes).contains(&row));
                out.copy_from_slice(&bytes[first * row_bytes..][..out.len()]);
                found.map_or(Ok(()), |&row| Err(KernelError::NotFinite { dtype: "read", row }))
            })
        };
        for bad in [&[4000][..], &[3999, 1700], &[900, 2500, 5]] {
            let row = *bad.iter().min().unwrap();
            assert_eq!(read(0..rows, bad).unwrap_err(), KernelError::NotFinite { dtype: "read", row }, "{dtype}");
        }
        assert!(matches!(read(8..rows, &[]), Err(KernelError::RowRange { .. })));
        assert!(matches!(read(0..rows + 15, &[]), Err(KernelError::RowRange { .. })));
        read(16..rows, &[]).unwrap();
        read(0..16, &[]).unwrap();
        let panels = |matrix: &PackedMatrix| (0..matrix.panels()).map(|p| matrix.panel(p).to_vec()).collect::<Vec<_>>();
        assert!(panels(&matrix) == panels(&expected), "{dtype}");
    }
}

#[test]
fn rows_gathered_from_panels_equal_the_file() {
    let mut random = Random(13);
    for dtype in dtypes() {
        for &(rows, cols) in shapes(dtype) {
            let bytes = random.weights(dtype, rows, cols);
            let matrix = pack(dtype, rows, cols, &bytes);
            let (mut expected, mut row) = (vec![0f32; rows * cols], vec![0f32; cols]);
            dequantize(dtype, &bytes, &mut expected).unwrap();
            for (r, expected) in expected.chunks_exact(cols).enumerate() {
                matrix.dequantize_row(r, &mut row);
                assert!(row.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{dtype} row {r}");
            }
        }
    }
}

#[test]
fn packed_weights_stay_near_the_file_size() {
    for dtype in dtypes() {
        // A 135M model's shapes: 576 columns is 18 blocks; 1536 and 2048 for the types in blocks of 256.
        let cols = if dtype.block_len() == 256 { 1536 } else { 576 };
        let matrix = PackedMatrix::allocate(dtype, 1536, cols).unwrap();
        let file = dtype.size_in_bytes(1536 * cols).unwrap();
        assert!(matrix.size_in_bytes() as f64 <= 1.02 * file as f64, "{dtype}: {} for {file}", matrix.size_in_bytes());
    }
}

#[test]
fn wrong_shapes_and_lengths_are_errors() {
    let allocate = |dtype, rows, cols| PackedMatrix::allocate(dtype, rows, cols).unwrap_err();
    assert_eq!(allocate(Dtype::IQ2_XS, 16, 256), KernelError::UnsupportedDtype { dtype: "IQ2_XS" });
    assert_eq!(allocate(Dtype::Q4_0, 0, 32), KernelError::ZeroDimension { rows: 0, cols: 32 });
    assert_eq!(allocate(Dtype::F32, 3, 0), KernelError::ZeroDimension { rows: 3, cols: 0 });
    assert_eq!(allocate(Dtype::Q4_0, 16, 33), KernelError::PartialBlock { dtype: "Q4_0", cols: 33, block: 32 });
    assert_eq!(allocate(Dtype::Q6_K, 16, 128), KernelError::PartialBlock { dtype: "Q6_K", cols: 128, block: 256 });
    for (rows, cols) in [(usize::MAX, 32), (1, usize::MAX / 32 * 32), (1 << 40, 1 << 40)] {
        assert_eq!(allocate(Dtype::Q8_0, rows, cols), KernelError::TooLarge { dtype: "Q8_0", rows, cols });
    }
    // Inside the address space's arithmetic, outside any machine.
    assert!(matches!(allocate(Dtype::F32, 1 << 40, 1 << 18), KernelError::OutOfMemory { .. }));

    let cpu = Cpu::new(1).unwrap();
    let mut matrix = PackedMatrix::allocate(Dtype::Q4_0, 40, 64).unwrap();
    let rows = |count: usize| vec![0u8; count * 36];
    assert_eq!(
        matrix.pack_rows(&cpu, 0, &[0; 35]).unwrap_err(),
        KernelError::Length { dtype: "Q4_0", expected: 36, actual: 35 }
    );
    for (first_row, count) in [(8, 8), (0, 8), (32, 9), (48, 16), (0, 41), (usize::MAX / 16 * 16, 16)] {
        assert!(
            matches!(matrix.pack_rows(&cpu, first_row, &rows(count)), Err(KernelError::RowRange { .. })),
            "{count} rows from {first_row}"
        );
    }
    matrix.pack_rows(&cpu, 32, &rows(8)).unwrap();

    let mut out = [0f32; 32];
    for length in [17, 19, 36, 0] {
        assert!(matches!(dequantize(Dtype::Q4_0, &vec![0; length], &mut out), Err(KernelError::Length { .. })));
    }
    assert!(dequantize(Dtype::Q4_0, &[0; 18], &mut out[..31]).is_err());
    assert!(dequantize(Dtype::I8, &[0; 32], &mut out).is_err());
}

#[test]
fn factors_of_test_blocks_are_where_the_formats_have_them() {
    // A block whose factors are zero is zero: guards the generator that the other tests use.
    let mut random = Random(3);
    // MXFP4 has powers of two only.
    for dtype in dtypes().filter(|dtype| dtype.is_quantized() && *dtype != Dtype::MXFP4) {
        let mut block = random.weights(dtype, 1, dtype.block_len());
        for &at in factors(dtype) {
            block[at..at + 2].fill(0);
        }
        let mut values = vec![1f32; dtype.block_len()];
        dequantize(dtype, &block, &mut values).unwrap();
        assert!(values.iter().all(|value| *value == 0.0), "{dtype}");
    }
}

#[test]
fn scales_and_weights_that_are_not_finite_are_errors_that_name_the_row() {
    let mut random = Random(47);
    for dtype in dtypes() {
        let (rows, cols) = (70, 512);
        let good = random.weights(dtype, rows, cols);
        let (row_bytes, block) = (good.len() / rows, dtype.block_bytes());
        // Where each factor of a row's last block lies, or the last weight, and what is wrong with it.
        let last = row_bytes - block;
        let half: &[&[u8]] = &[&[0x00, 0x7c], &[0x00, 0xfc], &[0x01, 0x7e], &[0x01, 0xfc]];
        let (places, bits): (Vec<usize>, &[&[u8]]) = match dtype {
            Dtype::F32 => (vec![last], &[&[0, 0, 0x80, 0x7f], &[0, 0, 0x80, 0xff], &[1, 0, 0x80, 0x7f]]),
            Dtype::BF16 => (vec![last], &[&[0x80, 0x7f], &[0x80, 0xff], &[0x81, 0x7f]]),
            Dtype::F16 => (vec![last], half),
            Dtype::MXFP4 => (vec![last], &[&[0xff], &[253]]),
            _ => (factors(dtype).iter().map(|at| last + at).collect(), half),
        };
        assert!(!places.is_empty(), "{dtype}");
        let cpu = cpu(KernelLevel::Scalar, 2);
        let pack = |bytes: &[u8]| {
            let mut matrix = PackedMatrix::allocate(dtype, rows, cols).unwrap();
            matrix.pack_rows(&cpu, 0, &bytes[..16 * row_bytes])?;
            matrix.pack_rows(&cpu, 16, &bytes[16 * row_bytes..])
        };
        pack(&good).unwrap();
        for at in places {
            for bits in bits {
                let mut bytes = good.clone();
                for row in [69, 37] {
                    bytes[row * row_bytes + at..][..bits.len()].copy_from_slice(bits);
                    let expected = KernelError::NotFinite { dtype: dtype.name(), row };
                    assert_eq!(pack(&bytes).unwrap_err(), expected, "{bits:x?} at {at}");
                }
            }
            // The largest and the smallest numbers are none of these.
            let fine: &[&[u8]] = match dtype {
                Dtype::F32 => &[&[0xff, 0xff, 0x7f, 0x7f], &[1, 0, 0, 0x80], &[0; 4]],
                Dtype::BF16 => &[&[0x7f, 0x7f], &[1, 0x80], &[0; 2]],
                Dtype::MXFP4 => &[&[252], &[1], &[0]],
                _ => &[&[0xff, 0x7b], &[0xff, 0xfb], &[1, 0x80], &[0; 2]],
            };
            for bits in fine {
                let mut bytes = good.clone();
                bytes[37 * row_bytes + at..][..bits.len()].copy_from_slice(bits);
                pack(&bytes).unwrap();
            }
        }
    }
}

#[test]
fn panels_with_weights_that_products_of_pairs_take_for_zeros_are_known() {
    let (rows, cols) = (40, 33);
    let mut random = Random(53);
    let fine = random.weights(Dtype::BF16, rows, cols);
    for (bits, tiny) in
        [(0u16, false), (0x8000, false), (0x0001, true), (0x267f, true), (0x2680, false), (0xa67f, true)]
    {
        for row in [0, 20, 39] {
            let mut bytes = fine.clone();
            bytes[(row * cols + 32) * 2..][..2].copy_from_slice(&bits.to_le_bytes());
            let mut matrix = super::pack(Dtype::BF16, rows, cols, &bytes);
            let found: Vec<bool> = (0..3).map(|panel| matrix.has_tiny(panel)).collect();
            let expected: Vec<bool> = (0..3).map(|panel| tiny && panel == row / 16).collect();
            assert_eq!(found, expected, "{bits:#06x} in row {row}");
            // Packed anew, the panel is as its new weights are.
            matrix.pack_rows(&cpu(KernelLevel::Scalar, 1), 0, &fine).unwrap();
            assert!((0..3).all(|panel| !matrix.has_tiny(panel)));
        }
    }
}

#[test]
fn every_type_is_held_as_one_that_has_a_kernel_or_cannot_be_loaded() {
    for &dtype in Dtype::ALL {
        let (packed, read) = (layout(dtype).is_some(), stored::decoder(dtype).is_some());
        assert!(!(packed && read), "{dtype}");
        let expected = packed.then_some(dtype).or(read.then_some(Dtype::BF16));
        assert_eq!(dtype.held_as(), expected, "{dtype}");
        let mut values = vec![0f32; dtype.block_len()];
        assert_eq!(dequantize(dtype, &vec![0; dtype.block_bytes()], &mut values).is_ok(), packed || read, "{dtype}");
    }
}
