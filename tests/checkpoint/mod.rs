//! Checkpoints as Hugging Face transformers saves them, written for a test, shared by the test binaries that read them.

// Each binary uses its own part of this module.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;

use candlewick::source::{Metadata, Safetensors, TensorInfo};
use candlewick::testing::{normal, safetensors_bytes, TinyModel};
use candlewick::{Engine, Precision, Result, TokenId, WeightSource};
use serde_json::{json, Value};

/// F32 tensors with a configuration.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Checkpoint {
    /// Random weights for a configuration: those that its `model_type` has. `vocab_size`, `hidden_size`,
    /// `intermediate_size`, `num_hidden_layers`, `num_attention_heads`, `num_key_value_heads` and `head_dim` must be
    /// there.
    pub(crate) fn seeded(config: Value) -> Checkpoint {
        let number = |key: &str| config[key].as_u64().unwrap_or_else(|| panic!("no {key}")) as usize;
        let (vocab, hidden, ff) = (number("vocab_size"), number("hidden_size"), number("intermediate_size"));
        let q = number("num_attention_heads") * number("head_dim");
        let kv = number("num_key_value_heads") * number("head_dim");
        let kind = config["model_type"].as_str().unwrap().to_string();
        let gemma = kind == "gemma3_text";
        let mut tensors = BTreeMap::new();
        let mut matrix = |name: String, rows: usize, columns: usize| {
            let scale = 1.0 / (columns as f32).sqrt();
            let values = normal(7, &name, rows * columns).into_iter().map(|x| x * scale).collect();
            tensors.insert(name, (vec![rows, columns], values));
        };
        let mut vectors = Vec::new();
        matrix("model.embed_tokens.weight".into(), vocab, hidden);
        vectors.push(("model.norm.weight".to_string(), hidden));
        if config["tie_word_embeddings"] == json!(false) {
            matrix("lm_head.weight".into(), vocab, hidden);
        }
        for layer in 0..number("num_hidden_layers") {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            for (part, rows, columns) in [
                ("self_attn.q_proj.weight", q, hidden),
                ("self_attn.k_proj.weight", kv, hidden),
                ("self_attn.v_proj.weight", kv, hidden),
                ("self_attn.o_proj.weight", hidden, q),
                ("mlp.gate_proj.weight", ff, hidden),
                ("mlp.up_proj.weight", ff, hidden),
                ("mlp.down_proj.weight", hidden, ff),
            ] {
                matrix(name(part), rows, columns);
            }
            let mut norms = vec!["input_layernorm.weight", "post_attention_layernorm.weight"];
            if gemma {
                norms.extend(["pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"]);
            }
            vectors.extend(norms.into_iter().map(|norm| (name(norm), hidden)));
            if gemma || kind == "qwen3" {
                vectors.extend(
                    ["self_attn.q_norm.weight", "self_attn.k_norm.weight"].map(|n| (name(n), number("head_dim"))),
                );
            }
            if kind == "qwen2" {
                for (part, rows) in [("q", q), ("k", kv), ("v", kv)] {
                    vectors.push((name(&format!("self_attn.{part}_proj.bias")), rows));
                }
            }
        }
        // Gemma's norms are stored around 0; biases are too.
        for (name, len) in vectors {
            let center = if gemma || name.ends_with(".bias") { 0.0 } else { 1.0 };
            let values = normal(7, &name, len).into_iter().map(|x| center + 0.1 * x).collect();
            tensors.insert(name, (vec![len], values));
        }
        Checkpoint { config, tensors }
    }

    /// Writes config.json and the weights, in one file or in `files` with an index.
    pub(crate) fn write(&self, directory: &Path, files: usize) {
        std::fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
        let all: Vec<_> = self.tensors.iter().collect();
        let mut map = serde_json::Map::new();
        for (i, part) in all.chunks(all.len().div_ceil(files)).enumerate() {
            let name = match files {
                1 => "model.safetensors".to_string(),
                _ => format!("model-{:05}-of-{files:05}.safetensors", i + 1),
            };
            let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            let data: Vec<_> = part.iter().map(|(name, (shape, values))| (name, shape, bytes(values))).collect();
            let entries: Vec<_> = data
                .iter()
                .map(|(name, shape, bytes)| (name.as_str(), "F32", shape.as_slice(), bytes.as_slice()))
                .collect();
            std::fs::write(directory.join(&name), safetensors_bytes(&entries)).unwrap();
            map.extend(part.iter().map(|(tensor, _)| (tensor.to_string(), Value::from(name.as_str()))));
        }
        if files > 1 {
            let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
            std::fs::write(directory.join("model.safetensors.index.json"), index.to_string()).unwrap();
        }
    }
}

/// A source with other metadata.
#[derive(Debug)]
pub(crate) struct WithMetadata {
    pub(crate) source: Box<dyn WeightSource>,
    pub(crate) metadata: Metadata,
}

impl WeightSource for WithMetadata {
    fn name(&self) -> &str {
        self.source.name()
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorInfo] {
        self.source.tensors()
    }
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.source.tensor(name)
    }
    fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.source.read(name, offset, buffer)
    }
}

/// The source with the tokenizer's keys of another.
pub(crate) fn with_vocabulary(source: impl WeightSource, of: &Metadata) -> WithMetadata {
    let mut metadata = source.metadata().clone();
    for (key, value) in of.iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        metadata.insert(key, value.clone());
    }
    WithMetadata { source: Box::new(source), metadata }
}

/// An engine in f32 of a directory, with a tiny vocabulary: tests of weights speak in ids.
pub(crate) fn engine(directory: &Path) -> Result<Engine> {
    let vocabulary = TinyModel::llama().build()?;
    let source = with_vocabulary(Safetensors::open(directory)?, vocabulary.metadata());
    Engine::builder(source).precision(Precision::F32).threads(1).build()
}

/// The logits after the last of `ids`.
pub(crate) fn logits(engine: &mut Engine, ids: &[TokenId]) -> Vec<f32> {
    engine.score(ids, 1).unwrap().last_logits
}

/// The largest difference as a share of the largest magnitude of `expected`.
pub(crate) fn deviation(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f64, |m, &x| m.max(f64::from(x).abs()));
    let difference = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).fold(0.0, f64::max);
    difference / largest
}
