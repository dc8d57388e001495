//! Rules, their errors, and what requantized models compute.

use super::*;
use crate::engine::Engine;
use crate::kernel;
use crate::quant::{Role, Site, Stored};
use crate::source::{Memory, WeightSource};
use crate::testing::{normal, quantize_blocks, TinyModel};
use crate::Error;

fn info(name: &str, dtype: Dtype, rows: usize, cols: usize) -> WeightInfo {
    WeightInfo::new(Site::new(Some(0), Role::Down, name), dtype, rows, cols)
}

#[test]
fn rules_are_read_and_what_is_wrong_is_told() {
    let rules: Requantize = " blk.*.attn_*=q8_0 , *=Q4_K,a=b=stored".parse().unwrap();
    let expected =
        [("blk.*.attn_*", Target::Q8_0), ("*", Target::Q4_K), ("a=b", Target::Stored)].map(|(p, t)| Rule::new(p, t));
    assert_eq!(rules.rules(), expected);
    assert_eq!(rules.rules()[0].to_string(), "blk.*.attn_*=q8_0");
    for (text, expected) in [
        ("", "expected a name pattern"),
        ("q4_k", "expected a name pattern"),
        ("*=q4_k,", "expected a name pattern"),
        ("=q4_k", "the name pattern is empty"),
        ("*=q4_k_m", "`q4_k_m` is not a type to quantize to; known are stored, q8_0, q6_k, q5_0, q4_k, q4_0"),
        ("*=", "`` is not a type"),
    ] {
        let error = text.parse::<Requantize>().unwrap_err();
        assert!(matches!(error, BuildError::InvalidRule { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{text}: {error}");
    }
}

#[test]
fn the_first_rule_decides_and_fallbacks_keep_more_bits() {
    let rules: Requantize = "*ffn_down*=q6_k,*=q4_k".parse().unwrap();
    let down = |cols| rules.choose(&info("blk.0.ffn_down.weight", Dtype::F16, 8, cols)).unwrap();
    let choice = |dtype, rule, is_fallback| Choice { dtype, rule: Some(rule), is_fallback };
    assert_eq!(down(512), choice(Dtype::Q6_K, 0, false));
    assert_eq!(down(576), choice(Dtype::Q8_0, 0, true));
    let query = |cols| {
        rules.choose(&WeightInfo::new(Site::new(Some(0), Role::Query, "blk.0.attn_q.weight"), Dtype::F16, 8, cols))
    };
    assert_eq!(query(256).unwrap(), choice(Dtype::Q4_K, 1, false));
    assert_eq!(query(896).unwrap(), choice(Dtype::Q5_0, 1, true));
    let text = query(40).unwrap_err().to_string();
    assert!(text.contains("blk.0.attn_q.weight") && text.contains("blocks of 32") && text.contains("stored"), "{text}");
    let none: Requantize = "output.weight=q8_0".parse().unwrap();
    let choice = none.choose(&info("blk.0.ffn_down.weight", Dtype::F16, 8, 40)).unwrap();
    assert_eq!((choice.dtype, choice.rule, choice.is_fallback), (Dtype::F16, None, false));
}

#[test]
fn rules_that_never_apply_are_errors_of_the_build() {
    let error = |rules: &str| {
        let builder = Engine::builder(TinyModel::llama().build().unwrap()).threads(1);
        builder.quantizer(rules.parse::<Requantize>().unwrap()).build().unwrap_err()
    };
    let typo = error("*=q8_0,blk.*.atn_q.weight=q4_0");
    assert!(matches!(&typo, Error::Build(BuildError::InvalidRule { .. })), "{typo:?}");
    let text = typo.to_string();
    assert!(text.contains("atn_q") && text.contains("`output.weight`") && text.contains("blk.1.ffn_down"), "{text}");
    let text = error("*=q8_0,blk.*=q4_0").to_string();
    assert!(text.contains("`blk.*=q4_0`: rules before it take every weight"), "{text}");
    // An embedding that is not the head is no linear.
    assert!(error("token_embd.weight=q8_0").to_string().contains("no weight fits"));
    let width = Engine::builder(TinyModel { ff: 40, ..TinyModel::llama() }.build().unwrap())
        .quantizer(Requantize::all(Target::Q8_0))
        .build()
        .unwrap_err();
    assert!(matches!(&width, Error::Build(BuildError::Quantize { .. })), "{width:?}");
    assert!(width.to_string().contains("blk.0.ffn_down.weight"), "{width}");
}

/// Converts on some threads.
fn converted(dtype: Dtype, view: &WeightView<'_>, threads: usize) -> Vec<Vec<u8>> {
    let cpu = Cpu::new(threads).unwrap();
    let matrix = convert(&cpu, view, dtype).unwrap();
    let mut bytes = vec![0; view.cols() / dtype.block_len() * dtype.block_bytes()];
    (0..view.rows())
        .map(|row| {
            matrix.unpack_row(row, &mut bytes);
            bytes.clone()
        })
        .collect()
}

#[test]
fn every_row_is_the_encoding_of_its_values_whatever_the_parts_and_threads() {
    // 16,500 rows of 256 values: several parts of 8 MiB as F32 and as Q8_0, the last one no whole panel.
    let (rows, cols) = (16_500 + 3, 256);
    for stored in [Dtype::F32, Dtype::Q8_0] {
        let bytes = quantize_blocks(stored, &normal(3, "part", rows * cols));
        let view = WeightView::from_bytes(info("x", stored, rows, cols), &bytes).unwrap();
        let values = view.dequantize().unwrap();
        let one = converted(Dtype::Q4_0, &view, 1);
        for row in [0, 1, 15, 16, 8191, 8192, rows - 17, rows - 1] {
            assert_eq!(one[row], quantize_blocks(Dtype::Q4_0, &values[row * cols..(row + 1) * cols]), "row {row}");
        }
        assert_eq!(converted(Dtype::Q4_0, &view, 2), one);
    }
}

#[test]
fn values_that_no_block_can_hold_are_errors_that_name_the_row() {
    for (value, problem) in
        [(f32::NAN, "not numbers"), (f32::INFINITY, "infinite"), (9e8, "too large"), (f32::MAX, "too large")]
    {
        let mut values = vec![0.25f32; 20 * 256];
        (values[17 * 256 + 3], values[19 * 256]) = (value, f32::NAN);
        let bytes = quantize_blocks(Dtype::F32, &values);
        let view = WeightView::from_bytes(info("blk.0.ffn_down.weight", Dtype::F32, 20, 256), &bytes).unwrap();
        for dtype in [Dtype::Q4_0, Dtype::Q4_K, Dtype::Q6_K] {
            let text = convert(&Cpu::new(2).unwrap(), &view, dtype).unwrap_err().to_string();
            assert!(text.contains("`blk.0.ffn_down.weight`") && text.contains("row 17"), "{text}");
            assert!(text.contains(problem), "{text}");
        }
    }
}

/// The model's tensors, each rewritten beforehand.
fn rewritten(model: &Memory, dtype_of: impl Fn(&str) -> Option<Dtype>) -> Memory {
    let mut out = Memory::new("rewritten");
    for (key, value) in model.metadata().iter() {
        out.set(key, value.clone());
    }
    for tensor in model.tensors() {
        let bytes = model.bytes(&tensor.name).unwrap();
        let (dtype, bytes) = match dtype_of(&tensor.name) {
            Some(dtype) => {
                let mut values = vec![0.0; tensor.shape.iter().product()];
                kernel::dequantize(tensor.dtype, bytes, &mut values).unwrap();
                (dtype, quantize_blocks(dtype, &values))
            }
            None => (tensor.dtype, bytes.to_vec()),
        };
        out.insert(tensor.name.clone(), dtype, &tensor.shape, bytes).unwrap();
    }
    out
}

#[test]
fn a_model_requantized_at_load_is_the_model_that_was_quantized_before() {
    let shape = TinyModel { layers: 1, ..TinyModel::llama() }.with_dtype(Dtype::Q6_K);
    let model = TinyModel { dtype: Dtype::F16, embedding_dtype: Dtype::F32, ..shape }.build().unwrap();
    let rules: Requantize = "*attn_v*=stored,*attn*=q8_0,output.weight=q6_k,*down*=q5_0,*=q4_k".parse().unwrap();
    let before = rewritten(&model, |name| {
        let dtype = match name {
            "output.weight" => Dtype::Q6_K,
            "blk.0.ffn_down.weight" => Dtype::Q5_0,
            "blk.0.ffn_gate.weight" | "blk.0.ffn_up.weight" => Dtype::Q4_K,
            "blk.0.attn_q.weight" | "blk.0.attn_k.weight" | "blk.0.attn_output.weight" => Dtype::Q8_0,
            _ => return None,
        };
        Some(dtype)
    });
    let mut at_load = Engine::builder(model).threads(2).quantizer(rules).build().unwrap();
    let mut before = Engine::builder(before).threads(1).quantizer(Stored).build().unwrap();
    assert_eq!(at_load.matrices(), before.matrices());
    let tokens: Vec<u32> = (20..60).collect();
    assert_eq!(at_load.score(&tokens, 1).unwrap().log_probs, before.score(&tokens, 1).unwrap().log_probs);
}
