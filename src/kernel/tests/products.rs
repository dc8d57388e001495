//! Products: every level against the scalar one, bit for bit, and the scalar one against f64.

use super::{cpu, dtypes, pack, prepare, shapes, Random};
use crate::kernel::matmul::{matmul_portable, matmul_portable_pairs};
use crate::kernel::{matmul, matmul_add, Activations, Cpu, KernelLevel, PackedMatrix, Precision};
use crate::source::Dtype;

type Matmul = fn(&Cpu, &[&PackedMatrix], &Activations, &mut [&mut [f32]]);

/// The levels that run here, besides scalar.
fn levels() -> Vec<(String, KernelLevel, Matmul)> {
    let mut levels: Vec<(String, KernelLevel, Matmul)> = KernelLevel::available()
        .filter(|&level| level != KernelLevel::Scalar)
        .map(|level| (level.to_string(), level, matmul as Matmul))
        .collect();
    levels.push(("portable lanes".into(), KernelLevel::Scalar, matmul_portable as Matmul));
    levels.push(("portable pairs".into(), KernelLevel::Scalar, matmul_portable_pairs as Matmul));
    let names: Vec<&str> = levels.iter().map(|(name, ..)| name.as_str()).collect();
    println!("kernels that run here: scalar, {}; the best is {}", names.join(", "), KernelLevel::detect().detail());
    levels
}

const PRECISIONS: [Precision; 2] = [Precision::Int8Activations, Precision::F32];
const ROWS: [usize; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33];

/// Equal bits, any NaN being equal to any other (their payloads are not arithmetic).
#[track_caller]
fn assert_same(actual: &[f32], expected: &[f32], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (a, b)) in actual.iter().zip(expected).enumerate() {
        assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{what}: [{i}] is {a:e}, expected {b:e}");
    }
}

fn product(matmul: Matmul, cpu: &Cpu, weights: &PackedMatrix, acts: &Activations) -> Vec<f32> {
    // NaN, so that a value left out is seen.
    let mut out = vec![f32::NAN; acts.rows() * weights.rows()];
    matmul(cpu, &[weights], acts, &mut [&mut out]);
    out
}

#[test]
fn every_level_equals_scalar_for_every_type() {
    let mut random = Random(17);
    let levels = levels();
    for dtype in dtypes() {
        for &(n, k) in shapes(dtype) {
            let weights = pack(dtype, n, k, &random.weights(dtype, n, k));
            for precision in PRECISIONS {
                for m in ROWS {
                    let x = random.input(m * k);
                    let scalar = cpu(KernelLevel::Scalar, 1);
                    let acts = prepare(&scalar, &x, m, &[&weights], precision);
                    let expected = product(matmul, &scalar, &weights, &acts);
                    assert!(expected.iter().all(|value| value.is_finite()), "{dtype} {n} x {k}");
                    for (name, level, matmul) in &levels {
                        let cpu = cpu(*level, 1);
                        let acts = prepare(&cpu, &x, m, &[&weights], precision);
                        let actual = product(*matmul, &cpu, &weights, &acts);
                        assert_same(&actual, &expected, &format!("{name} {dtype} {n} x {k}, {m} rows, {precision:?}"));
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_alone_equals_the_row_in_a_batch() {
    let mut random = Random(19);
    for (name, level, matmul) in levels() {
        let cpu = cpu(level, 1);
        for dtype in dtypes() {
            let &(n, k) = shapes(dtype).last().unwrap();
            let weights = pack(dtype, n, k, &random.weights(dtype, n, k));
            for precision in PRECISIONS {
                let x = random.input(33 * k);
                let batch = product(matmul, &cpu, &weights, &prepare(&cpu, &x, 33, &[&weights], precision));
                for row in 0..33 {
                    let x = &x[row * k..(row + 1) * k];
                    let alone = product(matmul, &cpu, &weights, &prepare(&cpu, x, 1, &[&weights], precision));
                    assert_same(&alone, &batch[row * n..(row + 1) * n], &format!("{name} {dtype} row {row}"));
                }
            }
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same() {
    let mut random = Random(23);
    for (name, level, matmul) in levels() {
        let (one, three) = (cpu(level, 1), cpu(level, 3));
        for dtype in dtypes() {
            let (n, k) = (200, 1280);
            let weights = pack(dtype, n, k, &random.weights(dtype, n, k));
            for m in [1, 40] {
                for precision in PRECISIONS {
                    let x = random.input(m * k);
                    let a = product(matmul, &one, &weights, &prepare(&one, &x, m, &[&weights], precision));
                    let b = product(matmul, &three, &weights, &prepare(&three, &x, m, &[&weights], precision));
                    assert_same(&a, &b, &format!("{name} {dtype} {m} rows"));
                }
            }
        }
    }
}

#[test]
fn more_rows_than_one_pass_of_sums_holds() {
    let mut random = Random(29);
    let (n, k, m) = (20, 96, 523);
    let weights = pack(Dtype::Q5_0, n, k, &random.weights(Dtype::Q5_0, n, k));
    let x = random.input(m * k);
    for precision in PRECISIONS {
        let scalar = cpu(KernelLevel::Scalar, 1);
        let expected = product(matmul, &scalar, &weights, &prepare(&scalar, &x, m, &[&weights], precision));
        for (name, level, matmul) in levels() {
            let cpu = cpu(level, 2);
            let actual = product(matmul, &cpu, &weights, &prepare(&cpu, &x, m, &[&weights], precision));
            assert_same(&actual, &expected, &name);
        }
    }
}

#[test]
fn rows_longer_than_what_is_unpacked_at_once() {
    let mut random = Random(37);
    // Panels: two, one and a half of one. Groups of 8, 8 and 3 rows.
    let (n, m) = (56, 19);
    for dtype in dtypes().filter(|dtype| dtype.is_quantized()) {
        // More than any level unpacks at once, and half a packed group at the end where there are such.
        let k = if dtype.block_len() == 32 { 5152 } else { 5120 };
        let weights = pack(dtype, n, k, &random.weights(dtype, n, k));
        let (x, before) = (random.input(m * k), random.input(m * n));
        let scalar = cpu(KernelLevel::Scalar, 1);
        let precision = Precision::Int8Activations;
        let expected = product(matmul, &scalar, &weights, &prepare(&scalar, &x, m, &[&weights], precision));
        let added: Vec<f32> = before.iter().zip(&expected).map(|(before, product)| before + product).collect();
        for (name, level, matmul) in levels() {
            let cpu = cpu(level, 2);
            let acts = prepare(&cpu, &x, m, &[&weights], precision);
            assert_same(&product(matmul, &cpu, &weights, &acts), &expected, &format!("{name} {dtype}"));
            if level != KernelLevel::Scalar {
                let mut sums = before.clone();
                matmul_add(&cpu, &[&weights], &acts, &mut [&mut sums]);
                assert_same(&sums, &added, &format!("{name} {dtype}, added"));
            }
        }
    }
}

#[test]
fn a_panel_with_tiny_weights_beside_others() {
    let mut random = Random(41);
    let (n, k, m) = (80, 67, 11);
    for tiny in [vec![1], vec![0, 2], vec![4], vec![0, 1, 2, 3, 4]] {
        let mut bytes = random.weights(Dtype::BF16, n, k);
        for panel in &tiny {
            // 2^-60 in the last row of the panel.
            let at = ((panel * 16 + 15) * k + 7) * 2;
            bytes[at..at + 2].copy_from_slice(&((127u16 - 60) << 7).to_le_bytes());
        }
        let weights = pack(Dtype::BF16, n, k, &bytes);
        let x = random.input(m * k);
        let scalar = cpu(KernelLevel::Scalar, 1);
        let precision = Precision::Int8Activations;
        let expected = product(matmul, &scalar, &weights, &prepare(&scalar, &x, m, &[&weights], precision));
        for (name, level, matmul) in levels() {
            let cpu = cpu(level, 1);
            let actual = product(matmul, &cpu, &weights, &prepare(&cpu, &x, m, &[&weights], precision));
            assert_same(&actual, &expected, &format!("{name}, tiny in {tiny:?}"));
        }
    }
}

#[test]
fn several_matrices_of_several_types_share_one_input() {
    let mut random = Random(31);
    let shapes = [
        (Dtype::Q6_K, 33),
        (Dtype::F16, 5),
        (Dtype::BF16, 23),
        (Dtype::Q4_K, 70),
        (Dtype::Q8_0, 16),
        (Dtype::Q2_K, 40),
        (Dtype::Q4_0, 17),
        (Dtype::Q3_K, 1),
    ];
    let k = 512;
    let weights: Vec<PackedMatrix> =
        shapes.iter().map(|&(dtype, n)| pack(dtype, n, k, &random.weights(dtype, n, k))).collect();
    let weights: Vec<&PackedMatrix> = weights.iter().collect();
    for (name, level, matmul) in levels() {
        let cpu = cpu(level, 2);
        // Buffers of a larger and different input before must not show.
        let mut acts = Activations::new();
        acts.prepare(&cpu, &random.input(50 * 512), 50, k, &weights, Precision::F32);
        for m in [19, 3] {
            let x = random.input(m * k);
            acts.prepare(&cpu, &x, m, k, &weights, Precision::Int8Activations);
            let mut outs: Vec<Vec<f32>> = shapes.iter().map(|&(_, n)| vec![f32::NAN; m * n]).collect();
            let mut slices: Vec<&mut [f32]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
            matmul(&cpu, &weights, &acts, &mut slices);
            for (weights, out) in weights.iter().zip(&outs) {
                let acts = prepare(&cpu, &x, m, &[weights], Precision::Int8Activations);
                assert_same(out, &product(matmul, &cpu, weights, &acts), &format!("{name} {weights:?}"));
            }
        }
    }
}

#[test]
fn int8_codes_are_the_documented_ones() {
    let scalar = cpu(KernelLevel::Scalar, 1);
    let weights = PackedMatrix::allocate(Dtype::Q4_0, 16, 64).unwrap();
    let mut x = vec![0f32; 64];
    x[..4].copy_from_slice(&[2.0, -2.0, 0.5, 0.99]);
    x[33] = 1e-31;
    let acts = prepare(&scalar, &x, 1, &[&weights], Precision::Int8Activations);
    // 0.5 * 63.5 = 31.75; 0.99 * 63.5 = 62.865.
    assert_eq!([0, 1, 2, 3, 4].map(|k| acts.code(0, k)), [127, -127, 32, 63, 0]);
    assert_eq!(acts.scale(0, 0), 2.0 / 127.0);
    assert_eq!((acts.code(0, 33), acts.scale(0, 1)), (0, 0.0), "too small to count");
    // Ties go to even: 127 / 254 = 0.5 exactly per unit.
    let x: Vec<f32> = (0..64).map(|i| if i % 32 == 31 { 254.0 } else { i as f32 }).collect();
    let acts = prepare(&scalar, &x, 1, &[&weights], Precision::Int8Activations);
    assert_eq!([1, 3, 5, 7].map(|k| acts.code(0, k)), [0, 2, 2, 4]);
}

#[test]
fn scalar_is_close_to_f64() {
    let mut random = Random(37);
    let cpu = cpu(KernelLevel::Scalar, 1);
    for dtype in dtypes() {
        let (n, k, m) = (18, 1024, 3);
        let bytes = random.weights(dtype, n, k);
        let weights = pack(dtype, n, k, &bytes);
        let mut values = vec![0f32; n * k];
        crate::kernel::dequantize(dtype, &bytes, &mut values).unwrap();
        let x = random.input(m * k);
        for precision in PRECISIONS {
            let acts = prepare(&cpu, &x, m, &[&weights], precision);
            let out = product(matmul, &cpu, &weights, &acts);
            for row in 0..m {
                for r in 0..n {
                    let (mut sum, mut size) = (0f64, 0f64);
                    for i in 0..k {
                        let a = if dtype.is_quantized() && precision == Precision::Int8Activations {
                            f64::from(acts.code(row, i)) * f64::from(acts.scale(row, i / 32))
                        } else if dtype == Dtype::BF16 && precision == Precision::Int8Activations {
                            f64::from(half::bf16::from_f32(x[row * k + i]))
                        } else {
                            f64::from(x[row * k + i])
                        };
                        let term = f64::from(values[r * k + i]) * a;
                        sum += term;
                        size += term.abs();
                    }
                    let error = (f64::from(out[row * n + r]) - sum).abs();
                    assert!(error <= 4e-6 * size, "{dtype} {precision:?}: error {error:e} of {size:e}");
                }
            }
        }
        // And the codes stand for the input: half a step of the block's scale.
        if dtype.is_quantized() {
            let acts = prepare(&cpu, &x, m, &[&weights], Precision::Int8Activations);
            for (i, value) in x.iter().enumerate() {
                let scale = acts.scale(i / k, i % k / 32);
                let error = (f32::from(acts.code(i / k, i % k)) * scale - value).abs();
                assert!(error <= 0.501 * scale, "code {i}");
            }
        }
    }
}

#[test]
fn extreme_codes_do_not_overflow() {
    // All bits set gives the largest codes; inputs of one size give codes of 127.
    for (name, level, matmul) in levels() {
        let (scalar, cpu) = (cpu(KernelLevel::Scalar, 1), cpu(level, 1));
        for dtype in dtypes().filter(|dtype| dtype.is_quantized()) {
            for fill in [0xff, 0x00, 0x80, 0x7f, 0x77, 0x88] {
                let (n, k, m) = (17, 768, 18);
                let mut bytes = vec![fill; dtype.size_in_bytes(n * k).unwrap()];
                for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                    for &at in super::factors(dtype) {
                        block[at..at + 2].copy_from_slice(&half::f16::from_f32(0.5).to_le_bytes());
                    }
                }
                let weights = pack(dtype, n, k, &bytes);
                for sign in [1.0, -1.0] {
                    let x = vec![3.0 * sign; m * k];
                    let acts = prepare(&cpu, &x, m, &[&weights], Precision::Int8Activations);
                    let expected = product(crate::kernel::matmul, &scalar, &weights, &acts);
                    let actual = product(matmul, &cpu, &weights, &acts);
                    assert_same(&actual, &expected, &format!("{name} {dtype} {fill:#x}"));
                }
            }
        }
    }
}

#[test]
fn inputs_that_are_not_finite_give_nan_in_their_row_only() {
    let mut random = Random(41);
    for (name, level, matmul) in levels() {
        let cpu = cpu(level, 1);
        for dtype in dtypes() {
            let (n, k) = (20, 512);
            let weights = pack(dtype, n, k, &random.weights(dtype, n, k));
            for m in [3, 19] {
                for precision in PRECISIONS {
                    let clean = random.input(m * k);
                    let expected = product(matmul, &cpu, &weights, &prepare(&cpu, &clean, m, &[&weights], precision));
                    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                        let mut x = clean.clone();
                        x[k + 70] = poison;
                        let actual = product(matmul, &cpu, &weights, &prepare(&cpu, &x, m, &[&weights], precision));
                        let what = format!("{name} {dtype} {precision:?} {poison}");
                        assert_same(&actual[..n], &expected[..n], &what);
                        assert_same(&actual[2 * n..], &expected[2 * n..], &what);
                        if dtype.is_quantized() && precision == Precision::Int8Activations || poison.is_nan() {
                            assert!(actual[n..2 * n].iter().all(|value| value.is_nan()), "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn extreme_magnitudes_agree_between_levels() {
    let mut random = Random(43);
    for (name, level, matmul) in levels() {
        let (scalar, cpu) = (cpu(KernelLevel::Scalar, 1), cpu(level, 1));
        for dtype in dtypes() {
            let (n, k, m) = (16, 256, 2);
            let mut bytes = random.weights(dtype, n, k);
            // Infinite, NaN, subnormal and zero scales in some blocks.
            for (i, block) in bytes.chunks_exact_mut(dtype.block_bytes()).enumerate() {
                for &at in super::factors(dtype).iter().take(1) {
                    let bits = [0x7c00u16, 0x7e00, 0x0001, 0x8000, 0xfbff][i % 5];
                    block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                }
                if dtype == Dtype::MXFP4 {
                    block[0] = [0, 1, 2, 254, 255][i % 5];
                }
            }
            let weights = pack(dtype, n, k, &bytes);
            for magnitude in [f32::MAX, 1e38, 1e-29, 1e-30, 1e-38, f32::from_bits(1), 0.0, -0.0] {
                for precision in PRECISIONS {
                    let x: Vec<f32> = random.input(m * k).iter().map(|v| v / 20.0 * magnitude).collect();
                    let acts = prepare(&cpu, &x, m, &[&weights], precision);
                    let expected = product(crate::kernel::matmul, &scalar, &weights, &acts);
                    let actual = product(matmul, &cpu, &weights, &acts);
                    assert_same(&actual, &expected, &format!("{name} {dtype} {magnitude:e} {precision:?}"));
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "not prepared")]
fn an_input_prepared_for_other_types_is_refused() {
    let cpu = cpu(KernelLevel::Scalar, 1);
    let (a, b) = (pack(Dtype::Q4_0, 1, 32, &[0; 18]), pack(Dtype::Q8_0, 1, 32, &[0; 34]));
    let acts = prepare(&cpu, &[1.0; 32], 1, &[&a], Precision::Int8Activations);
    product(matmul, &cpu, &b, &acts);
}
