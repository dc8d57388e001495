//! Every storage type of weights: its values against another implementation's, a whole model of it against the same model
//! in F32, and weights that no model can have.

mod temp_dir;

use std::cell::Cell;
use std::rc::Rc;

use candlewick::kernel::{self, KvFormat};
use candlewick::quant::Requantize;
use candlewick::source::{Dtype, Gguf, Memory, WeightSource};
use candlewick::testing::{GgufWriter, TinyModel};
use candlewick::{BuildError, Engine, Error, Precision, SourceError};
use half::bf16;
use temp_dir::TempDir;

fn supported() -> impl Iterator<Item = Dtype> {
    Dtype::ALL.iter().copied().filter(|dtype| dtype.is_supported())
}

/// `tests/data/dequantize.py` wrote the file with gguf-py.
#[test]
fn values_are_those_of_another_implementation_bit_for_bit() {
    let mut data: &[u8] = include_bytes!("data/dequantize.bin");
    let mut seen = Vec::new();
    while !data.is_empty() {
        let mut word = || {
            let (word, rest) = data.split_first_chunk().unwrap();
            data = rest;
            u32::from_le_bytes(*word)
        };
        let (id, blocks) = (word(), word() as usize);
        let dtype = Dtype::from_ggml(id).unwrap();
        let (block_bytes, rest) = data.split_at(blocks * dtype.block_bytes());
        let (expected, rest) = rest.split_at(blocks * dtype.block_len() * 4);
        data = rest;
        let mut values = vec![0.0; blocks * dtype.block_len()];
        kernel::dequantize(dtype, block_bytes, &mut values).unwrap();
        for (i, (value, expected)) in values.iter().zip(expected.as_chunks().0).enumerate() {
            let expected = f32::from_le_bytes(*expected);
            assert_eq!(value.to_bits(), expected.to_bits(), "{dtype} value {i}: {value:e}, expected {expected:e}");
        }
        seen.push(dtype);
    }
    // All types without kernels are there, and the packed ones with a table.
    let mut needed: Vec<Dtype> = supported().filter(|dtype| dtype.held_as() == Some(Dtype::BF16)).collect();
    needed.retain(|dtype| *dtype != Dtype::BF16);
    assert_eq!(needed.len(), 10);
    needed.extend([Dtype::IQ4_NL, Dtype::IQ4_XS, Dtype::MXFP4]);
    assert!(needed.iter().all(|dtype| seen.contains(dtype)), "{seen:?}");
}

fn tiny(dtype: Dtype, tied: bool) -> Memory {
    TinyModel { layers: 1, tied, ..TinyModel::llama() }.with_dtype(dtype).build().unwrap()
}

/// The model with every tensor as F32: its values, rounded as the type is held.
fn as_f32(model: &Memory) -> Memory {
    let mut out = Memory::new("f32");
    for (key, value) in model.metadata().iter() {
        out.set(key, value.clone());
    }
    for tensor in model.tensors() {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        kernel::dequantize(tensor.dtype, model.bytes(&tensor.name).unwrap(), &mut values).unwrap();
        if tensor.dtype.held_as() == Some(Dtype::BF16) {
            values.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
        }
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        out.insert(tensor.name.clone(), Dtype::F32, &tensor.shape, bytes).unwrap();
    }
    out
}

fn engine(source: impl WeightSource, precision: Precision) -> Engine {
    Engine::builder(source).threads(2).precision(precision).kv_format(KvFormat::F32).build().unwrap()
}

/// In f32 precision every type's products are the same chain of roundings over its values, so nothing may differ.
#[test]
fn a_model_of_any_type_computes_what_its_values_do_in_f32() {
    let dir = TempDir::new();
    let tokens: Vec<u32> = (20..60).map(|i| i * 7 % 300).collect();
    for dtype in supported() {
        for tied in [false, true] {
            let model = tiny(dtype, tied);
            let path = dir.write("model.gguf", &GgufWriter::new().to_bytes(&model).unwrap());
            let mut stored = engine(Gguf::open(&path).unwrap(), Precision::F32);
            let mut values = engine(as_f32(&model), Precision::F32);
            let (a, b) = (stored.score(&tokens, 1).unwrap(), values.score(&tokens, 1).unwrap());
            assert_eq!(a.last_logits, b.last_logits, "{dtype}");
            assert_eq!(a.log_probs, b.log_probs, "{dtype}");
            assert!(a.last_logits.iter().any(|x| *x != a.last_logits[0]), "{dtype}");

            // The report tells what became of each matrix.
            let held = dtype.held_as().unwrap();
            let format = if held == dtype { dtype.to_string() } else { format!("{dtype} as BF16") };
            let matrices = stored.matrices();
            assert_eq!(matrices.len(), if tied { 8 } else { 9 });
            for matrix in &matrices {
                assert_eq!(matrix.format, format, "{}", matrix.site);
                let bytes = held.size_in_bytes(matrix.rows.next_multiple_of(16) * matrix.cols).unwrap();
                // MXFP4 pads short rows most: half a line of scales.
                assert!((bytes..=bytes + bytes / 16).contains(&matrix.size_in_bytes), "{matrix:?}");
            }

            // With int8 activations the answer is near: they are the only thing that is rounded.
            let mut fast = engine(Gguf::open(&path).unwrap(), Precision::Int8Activations);
            let fast = fast.score(&tokens, 1).unwrap();
            let rms = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let error = rms(&mut fast.last_logits.iter().zip(&a.last_logits).map(|(a, b)| a - b));
            let size = rms(&mut a.last_logits.iter().copied());
            assert!(error <= 0.05 * size, "{dtype}: {error} of {size}");
        }
    }
}

/// NVFP4 files have a factor per weight in a tensor of its own.
#[test]
fn a_factor_apart_from_the_blocks_multiplies_the_values() {
    let tokens: Vec<u32> = (20..60).collect();
    let scaled = |dtype: Dtype, factor: f32| {
        let mut model = tiny(dtype, false);
        model.insert("blk.0.ffn_gate.scale", Dtype::F32, &[1], factor.to_le_bytes().to_vec()).unwrap();
        model
    };
    let factor = 0.37f32;
    let mut stored = engine(scaled(Dtype::NVFP4, factor), Precision::F32);
    let name = "blk.0.ffn_gate.weight";
    let original = tiny(Dtype::NVFP4, false);
    let shape = original.tensor(name).unwrap().shape.clone();
    let mut values = vec![0.0; shape.iter().product()];
    kernel::dequantize(Dtype::NVFP4, original.bytes(name).unwrap(), &mut values).unwrap();
    let bytes = values.iter().flat_map(|x| bf16::from_f32(x * factor).to_f32().to_le_bytes()).collect();
    let mut expected = as_f32(&original);
    expected.remove(name).unwrap();
    expected.insert(name, Dtype::F32, &shape, bytes).unwrap();
    let expected = engine(expected, Precision::F32).score(&tokens, 1).unwrap();
    assert_eq!(stored.score(&tokens, 1).unwrap(), expected);
    assert_ne!(engine(original, Precision::F32).score(&tokens, 1).unwrap(), expected);

    // Packed blocks have no place for it; a factor of one is none.
    let build = |model: Memory| Engine::builder(model).threads(1).build();
    let error = build(scaled(Dtype::Q4_0, factor)).unwrap_err();
    assert!(matches!(&error, Error::Build(BuildError::Quantize { tensor, .. }) if tensor == name), "{error:?}");
    let told = Rc::new(Cell::new((0, 1)));
    let seen = Rc::clone(&told);
    let counted = Engine::builder(scaled(Dtype::Q4_0, 1.0)).threads(1).progress(move |done, all| {
        seen.set((done, all));
        true
    });
    counted.build().unwrap();
    let (done, all) = told.get();
    assert_eq!(done, all, "the factors count");
    let rules: Requantize = "*=q8_0".parse().unwrap();
    for dtype in [Dtype::Q4_0, Dtype::Q8_0] {
        Engine::builder(scaled(dtype, factor)).threads(1).quantizer(rules.clone()).build().unwrap();
    }
    let error = build(scaled(Dtype::NVFP4, f32::NAN)).unwrap_err();
    assert!(
        matches!(&error, Error::Build(BuildError::NotFiniteWeight { tensor, .. }) if tensor == "blk.0.ffn_gate.scale")
    );
}

#[test]
fn a_type_without_kernels_can_be_requantized() {
    let model = tiny(Dtype::IQ2_XS, false);
    let rules: Requantize = "blk.*=q8_0,output.weight=stored".parse().unwrap();
    let engine = Engine::builder(model).threads(1).quantizer(rules).build().unwrap();
    let formats: Vec<String> = engine.matrices().into_iter().map(|m| m.format).collect();
    assert_eq!(formats[..2], ["IQ2_XS as BF16"; 2]);
    assert!(formats[2..].iter().all(|format| format == "Q8_0"), "{formats:?}");
}

#[test]
fn other_types_are_refused_by_name() {
    for &dtype in Dtype::ALL.iter().filter(|dtype| !dtype.is_supported()) {
        let mut model = TinyModel { ff: 256, ..TinyModel::llama() }.build().unwrap();
        let name = "blk.1.ffn_down.weight";
        model.remove(name).unwrap();
        model.insert(name, dtype, &[64, 256], vec![0; dtype.size_in_bytes(64 * 256).unwrap()]).unwrap();
        let error = Engine::builder(model).threads(1).build().unwrap_err();
        match &error {
            Error::Source(SourceError::UnsupportedType { tensor, dtype: found, .. }) => {
                assert_eq!((tensor.as_str(), found.as_str()), (name, dtype.name()));
            }
            other => panic!("{dtype}: {other:?}"),
        }
    }
}

/// Where the factors of a block lie; `None` for a type whose factors are always numbers.
fn factor(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::Q2_K => Some(82),
        Dtype::Q3_K => Some(108),
        Dtype::Q6_K => Some(208),
        Dtype::TQ1_0 => Some(52),
        Dtype::TQ2_0 => Some(64),
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4_K | Dtype::Q5_K => Some(2),
        // The pattern that would be NaN is a zero.
        Dtype::NVFP4 => None,
        _ => Some(0),
    }
}

/// Makes a row's last block one whose factor has these bits, as f16 (the other formats: what comes nearest).
fn set_factor(dtype: Dtype, row: &mut [u8], bits: u16) -> bool {
    let Some(at) = factor(dtype) else { return false };
    let at = row.len() - dtype.block_bytes() + at;
    match dtype {
        Dtype::F32 => row[at..at + 4].copy_from_slice(&half::f16::from_bits(bits).to_f32().to_le_bytes()),
        Dtype::BF16 => {
            let value = bf16::from_f32(half::f16::from_bits(bits).to_f32());
            row[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        Dtype::MXFP4 => row[at] = if bits & 0x7c00 == 0x7c00 { 255 } else { 0 },
        Dtype::IQ1_M => {
            for w in 0..4 {
                let byte = &mut row[at + 49 + 2 * w];
                *byte = *byte & 15 | ((bits >> (4 * w) & 15) as u8) << 4;
            }
        }
        _ => row[at..at + 2].copy_from_slice(&bits.to_le_bytes()),
    }
    true
}

fn with_factor(dtype: Dtype, name: &str, row: usize, bits: u16) -> Option<Memory> {
    let mut model = tiny(dtype, false);
    let shape = model.tensor(name).unwrap().shape.clone();
    let mut bytes = model.remove(name).unwrap();
    let row_bytes = bytes.len() / shape[0];
    let set = set_factor(dtype, &mut bytes[row * row_bytes..(row + 1) * row_bytes], bits);
    model.insert(name, dtype, &shape, bytes).unwrap();
    set.then_some(model)
}

#[test]
fn weights_that_are_no_numbers_are_errors_of_the_build_and_zero_or_tiny_scales_are_not() {
    let mut refused = 0;
    for dtype in supported() {
        for (name, row) in [("blk.0.ffn_down.weight", 37), ("token_embd.weight", 322)] {
            for bits in [0x7c00, 0xfc00, 0x7e00, 0xfc01] {
                let Some(model) = with_factor(dtype, name, row, bits) else { continue };
                let error = Engine::builder(model).threads(2).build().unwrap_err();
                match &error {
                    Error::Build(BuildError::NotFiniteWeight { tensor, dtype: found, row: at }) => {
                        assert_eq!((tensor.as_str(), found.as_str(), *at), (name, dtype.name(), row));
                    }
                    other => panic!("{dtype} {bits:x}: {other:?}"),
                }
                refused += 1;
            }
        }
        for bits in [0x0000, 0x8000, 0x0001, 0x83ff] {
            let Some(model) = with_factor(dtype, "blk.0.ffn_down.weight", 37, bits) else { continue };
            let logits = engine(model, Precision::default()).score(&[5, 6, 7], 1).unwrap().last_logits;
            assert!(logits.iter().all(|x| x.is_finite()), "{dtype} {bits:x}");
        }
    }
    assert_eq!(refused, (supported().count() - 1) * 2 * 4);
}

#[test]
fn norms_and_requantized_weights_that_are_no_numbers_are_errors_too() {
    let mut model = TinyModel::llama().build().unwrap();
    let mut norm = model.remove("blk.1.ffn_norm.weight").unwrap();
    norm[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
    model.insert("blk.1.ffn_norm.weight", Dtype::F32, &[64], norm).unwrap();
    let error = Engine::builder(model).threads(1).build().unwrap_err();
    let named = |error: &Error, name: &str, at: usize| matches!(error, Error::Build(BuildError::NotFiniteWeight { tensor, row, .. }) if tensor == name && *row == at);
    assert!(named(&error, "blk.1.ffn_norm.weight", 0), "{error:?}");

    let name = "blk.0.ffn_down.weight";
    let model = with_factor(Dtype::IQ4_XS, name, 37, 0x7c00).unwrap();
    let rules: Requantize = "*=q8_0".parse().unwrap();
    let error = Engine::builder(model).threads(2).quantizer(rules).build().unwrap_err();
    assert!(named(&error, name, 37), "{error:?}");
    assert!(error.to_string().contains("IQ4_XS"), "{error}");
}
