//! A real model written as a sharded Hugging Face checkpoint: its logits are those of the file that it came from.

use std::fs;
use std::path::Path;

use candlewick::kernel::dequantize;
use candlewick::source::{Metadata, Safetensors, TensorInfo};
use candlewick::testing::safetensors_bytes;
use candlewick::{EncodeOptions, Engine, Gguf, Precision, WeightSource};
use serde_json::{json, Map, Value};

use crate::files::Model;
use crate::golden::cases;
use crate::temp_dir::TempDir;

const SHARDS: usize = 3;

/// The name that transformers has for a tensor of GGUF's `llama`.
fn name(gguf: &str) -> String {
    let (module, kind) = gguf.rsplit_once('.').unwrap();
    let module = match module {
        "token_embd" => "model.embed_tokens".to_string(),
        "output_norm" => "model.norm".to_string(),
        _ => {
            let mut parts = module.split('.');
            let (Some("blk"), Some(layer), Some(part)) = (parts.next(), parts.next(), parts.next()) else {
                panic!("{gguf} has no name here")
            };
            let part = match part {
                "attn_norm" => "input_layernorm",
                "ffn_norm" => "post_attention_layernorm",
                "attn_q" => "self_attn.q_proj",
                "attn_k" => "self_attn.k_proj",
                "attn_v" => "self_attn.v_proj",
                "attn_output" => "self_attn.o_proj",
                "ffn_gate" => "mlp.gate_proj",
                "ffn_up" => "mlp.up_proj",
                "ffn_down" => "mlp.down_proj",
                other => panic!("{other} has no name here"),
            };
            format!("model.layers.{layer}.{part}")
        }
    };
    format!("{module}.{kind}")
}

/// The tensor's values as f32 bytes, rows in transformers' order.
fn values(model: &Gguf, info: &TensorInfo, head_dim: usize) -> Vec<u8> {
    let mut bytes = vec![0; info.size_in_bytes];
    model.read(&info.name, 0, &mut bytes).unwrap();
    let mut values = vec![0.0; info.shape.iter().product()];
    dequantize(info.dtype, &bytes, &mut values).unwrap();
    if info.name.contains("attn_q.") || info.name.contains("attn_k.") {
        let (width, from) = (info.shape[1], values.clone());
        for (row, to) in values.chunks_exact_mut(width).enumerate() {
            let (head, i) = (row / head_dim, row % head_dim);
            let stored = head * head_dim + 2 * (i % (head_dim / 2)) + i / (head_dim / 2);
            to.copy_from_slice(&from[stored * width..][..width]);
        }
    }
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn configuration(metadata: &Metadata) -> Value {
    let number = |key: &str| metadata.unsigned(&format!("llama.{key}")).unwrap().unwrap();
    let float = |key: &str| metadata.float(&format!("llama.{key}")).unwrap().unwrap();
    json!({
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": float("attention.layer_norm_rms_epsilon"),
        "rope_theta": float("rope.freq_base"),
        "hidden_act": "silu",
        "tie_word_embeddings": true,
        "vocab_size": number("vocab_size"),
        "bos_token_id": metadata.unsigned("tokenizer.ggml.bos_token_id").unwrap(),
        "eos_token_id": metadata.unsigned("tokenizer.ggml.eos_token_id").unwrap(),
    })
}

/// A byte-level BPE that cuts digits out first, which is what the file's `smollm` means.
fn tokenizer(metadata: &Metadata) -> Value {
    assert_eq!(metadata.string("tokenizer.ggml.pre").unwrap(), Some("smollm"));
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let types = metadata.integers("tokenizer.ggml.token_type").unwrap().unwrap();
    let control = |(id, _): &(usize, &String)| types[*id] == 3;
    let added = tokens.iter().enumerate().filter(control).map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level],
        },
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": tokens.iter().enumerate().map(|(id, text)| (text.clone(), id.into())).collect::<Map<_, _>>(),
            "merges": metadata.strings("tokenizer.ggml.merges").unwrap().unwrap(),
        },
    })
}

fn export(model: &Gguf, directory: &Path) {
    let metadata = model.metadata();
    let head_dim = (metadata.unsigned("llama.embedding_length").unwrap().unwrap()
        / metadata.unsigned("llama.attention.head_count").unwrap().unwrap()) as usize;
    fs::write(directory.join("config.json"), configuration(metadata).to_string()).unwrap();
    fs::write(directory.join("tokenizer.json"), tokenizer(metadata).to_string()).unwrap();
    let mut map = Map::new();
    let tensors = model.tensors();
    for (i, part) in tensors.chunks(tensors.len().div_ceil(SHARDS)).enumerate() {
        let file = format!("model-{:05}-of-{SHARDS:05}.safetensors", i + 1);
        let named: Vec<_> = part.iter().map(|t| (name(&t.name), &t.shape, values(model, t, head_dim))).collect();
        let entries: Vec<_> = named
            .iter()
            .map(|(name, shape, bytes)| (name.as_str(), "F32", shape.as_slice(), bytes.as_slice()))
            .collect();
        fs::write(directory.join(&file), safetensors_bytes(&entries)).unwrap();
        map.extend(named.into_iter().map(|(name, ..)| (name, Value::from(file.as_str()))));
    }
    let index = json!({"metadata": {}, "weight_map": map});
    fs::write(directory.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn a_sharded_export_has_the_logits_of_its_file() {
    let Some(model) = Model::find("smollm2-135m") else { return };
    let directory = TempDir::new();
    export(&model.source(), directory.path());
    let source = Safetensors::open(directory.path()).unwrap();
    assert_eq!(source.num_files(), SHARDS);
    let golden: Vec<_> = cases("smollm2-135m-instruct").into_iter().filter(|c| c.ids.len() < 300).take(3).collect();
    assert!(!golden.is_empty());
    let mut file = model.engine(|b| b.precision(Precision::F32));
    let mut directory = Engine::builder(source).precision(Precision::F32).build().unwrap();
    for case in golden {
        let ids = directory.tokenizer().encode(&case.text, EncodeOptions::DOCUMENT).unwrap();
        assert_eq!(ids, case.ids, "{}", case.name);
        let [expected, found] = [&mut file, &mut directory].map(|e| e.score(&case.ids, 1).unwrap().last_logits);
        let largest = expected.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let difference = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest;
        println!("{}: {} tokens, logits {difference:.1e}", case.name, case.ids.len());
        assert!(difference < 1e-4, "{}: logits differ by {difference} of the largest", case.name);
    }
}
