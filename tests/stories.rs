//! One trained model as a GGUF file and as a Hugging Face directory: the same answers, bit for bit.

use std::path::{Path, PathBuf};

use candlewick::source::{Dtype, Gguf, Memory, Safetensors};
use candlewick::testing::{check_weight_source, normal, TinyModel};
use candlewick::{EncodeOptions, Engine, KvFormat, Precision, Request, TokenId, WeightSource};

const TEXT: &str =
    ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball.";

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/stories260k").join(name)
}

fn gguf() -> Gguf {
    Gguf::open(data("model.gguf")).unwrap()
}

fn directory() -> Safetensors {
    Safetensors::open(data("hf")).unwrap()
}

fn engine(source: impl WeightSource, precision: Precision) -> Engine {
    Engine::builder(source).precision(precision).threads(1).build().unwrap()
}

fn engines(precision: Precision) -> [Engine; 2] {
    [engine(gguf(), precision), engine(directory(), precision)]
}

fn prompts() -> Vec<Vec<TokenId>> {
    let long = |seed: u32, len: u32| (0..len).map(|i| (i * 37 + seed * 101) % 480 + 20).collect();
    vec![vec![1], vec![1, 403, 407, 261, 378], vec![5, 5, 5, 5], long(1, 33), long(2, 200), long(3, 511)]
}

#[test]
fn both_sources_give_the_same_logits_bit_for_bit() {
    for precision in [Precision::F32, Precision::Int8Activations] {
        let [mut file, mut directory] = engines(precision);
        for prompt in prompts() {
            let [a, b] = [&mut file, &mut directory].map(|engine| engine.score(&prompt, 1).unwrap());
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(a.last_logits.len(), 512);
            assert_eq!(bits(&a.last_logits), bits(&b.last_logits), "{} tokens, {precision:?}", prompt.len());
            assert_eq!(bits(&a.log_probs), bits(&b.log_probs), "{} tokens, {precision:?}", prompt.len());
        }
    }
}

#[test]
fn both_sources_tell_the_known_story() {
    let outputs = engines(Precision::F32).map(|mut engine| {
        let output = engine.complete(Request::prompt("Once upon a time").max_tokens(60)).unwrap();
        assert!(output.text.starts_with(TEXT), "{}", output.text);
        output
    });
    assert_eq!(outputs[0].token_ids, outputs[1].token_ids);
    assert_eq!(outputs[0].text, outputs[1].text);
    // Half the memory for keys and values, the same beginning.
    let mut engine = Engine::builder(gguf()).kv_format(KvFormat::Bf16).threads(1).build().unwrap();
    let output = engine.complete(Request::prompt("Once upon a time").max_tokens(20)).unwrap();
    assert!(output.text.starts_with(&TEXT[..30]), "{}", output.text);
}

/// The file says that 1 ends a text, the directory says 2: each is taken at its word.
#[test]
fn each_source_ends_where_it_says() {
    let [file, directory] = engines(Precision::F32);
    assert_eq!((file.tokenizer().eos(), directory.tokenizer().eos()), (Some(1), Some(2)));
    assert!(file.tokenizer().is_end_of_generation(1) && !directory.tokenizer().is_end_of_generation(1));
    assert!(directory.tokenizer().is_end_of_generation(2));
    for text in ["Once upon a time", "", "  Lily's \u{e9}t\u{e9}\n"] {
        let [a, b] = [&file, &directory].map(|e| e.tokenizer().encode(text, EncodeOptions::DOCUMENT).unwrap());
        assert_eq!(a, b, "{text}");
    }
}

#[test]
fn both_sources_keep_the_contract() {
    check_weight_source(&gguf()).unwrap();
    check_weight_source(&directory()).unwrap();
}

#[test]
fn the_directory_has_the_names_and_keys_of_the_file() {
    let (file, directory) = (gguf(), directory());
    let names = |source: &dyn WeightSource| {
        // The file repeats the embedding as its head, the directory says that the head is the embedding.
        let tensors = source.tensors().iter().filter(|t| t.name != "output.weight");
        let mut names: Vec<_> = tensors.map(|t| (t.name.clone(), t.shape.clone(), t.dtype)).collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        names
    };
    assert_eq!(names(&file), names(&directory));
    assert_eq!(directory.num_files(), 1);
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
    ] {
        let key = format!("llama.{key}");
        let [a, b] = [file.metadata(), directory.metadata()].map(|m| m.unsigned(&key).unwrap());
        assert!(a.is_some() && a == b, "{key}: {a:?}, {b:?}");
    }
}

/// Rows of one tensor in the order that the decoder computes with: written out here, apart from the library's rule.
fn halves(bytes: &[u8], rows: usize, head_dim: usize) -> Vec<u8> {
    let row = bytes.len() / rows;
    let mut out = vec![0; bytes.len()];
    for head in 0..rows / head_dim {
        for pair in 0..head_dim / 2 {
            for side in 0..2 {
                let from = head * head_dim + 2 * pair + side;
                let to = head * head_dim + side * head_dim / 2 + pair;
                out[to * row..][..row].copy_from_slice(&bytes[from * row..][..row]);
            }
        }
    }
    out
}

/// Weights and biases, quantized or not, fused or not: interleaved rows give the bits that rows in halves give.
#[test]
fn interleaved_rows_are_put_in_order_in_every_form() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Q4_0, Dtype::Q5_1] {
        let model = TinyModel { dtype, heads: 4, head_dim: 40, kv_heads: 2, ..TinyModel::llama() };
        let parts = [("attn_q", 160), ("attn_k", 80), ("attn_v", 80)];
        let mut interleaved = model.build().unwrap();
        for layer in 0..model.layers {
            for (part, rows) in parts {
                let name = format!("blk.{layer}.{part}.bias");
                let bytes = normal(3, &name, rows).iter().flat_map(|x| x.to_le_bytes()).collect();
                interleaved.insert(name, Dtype::F32, &[rows], bytes).unwrap();
            }
        }
        let mut ordered = interleaved.clone();
        ordered.set("llama.candlewick.rotary_rows", "halves");
        let mut fused = interleaved.clone();
        for layer in 0..model.layers {
            for kind in ["weight", "bias"] {
                let shape = |rows: usize| if kind == "bias" { vec![rows] } else { vec![rows, model.hidden] };
                let dtype = if kind == "bias" { Dtype::F32 } else { dtype };
                let mut whole = Vec::new();
                for (part, rows) in parts {
                    let name = format!("blk.{layer}.{part}.{kind}");
                    let bytes = fused.remove(&name).unwrap();
                    if part != "attn_v" {
                        ordered.remove(&name);
                        ordered.insert(&name, dtype, &shape(rows), halves(&bytes, rows, 40)).unwrap();
                    }
                    whole.extend(bytes);
                }
                fused.insert(format!("blk.{layer}.attn_qkv.{kind}"), dtype, &shape(320), whole).unwrap();
            }
        }
        let bits = |source: Memory| {
            let score = engine(source, Precision::F32).score(&[1, 5, 9, 40, 7, 8], 1).unwrap();
            score.last_logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let expected = bits(interleaved.clone());
        assert_eq!(bits(ordered), expected, "{dtype}");
        assert_eq!(bits(fused), expected, "{dtype}");
        // Rows that are taken as they are give another model.
        interleaved.set("llama.candlewick.rotary_rows", "halves");
        assert_ne!(bits(interleaved), expected, "{dtype}");
    }
}
