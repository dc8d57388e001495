//! What config.json says, as the metadata that the model reads: layouts, defaults and names by family.

mod checkpoint;
mod temp_dir;

use candlewick::source::{Safetensors, Value as Key, WeightSource};
use checkpoint::Checkpoint;
use serde_json::{json, Value};
use temp_dir::TempDir;

fn base(kind: &str, more: Value) -> Value {
    let mut config = json!({
        "model_type": kind, "vocab_size": 323, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "tie_word_embeddings": true,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn open(weights: Value, config: Value) -> Safetensors {
    let directory = TempDir::new();
    Checkpoint { config, ..Checkpoint::seeded(weights) }.write(directory.path(), 1);
    Safetensors::open(directory.path()).unwrap()
}

fn opened(config: Value) -> Safetensors {
    open(config.clone(), config)
}

fn float(source: &Safetensors, key: &str) -> Option<f64> {
    source.metadata().float(key).unwrap()
}

#[test]
fn rope_has_two_layouts() {
    for config in [
        json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4}}),
        json!({"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        json!({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}),
        json!({"rope_theta": 1.0, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}),
    ] {
        let source = opened(base("qwen3", config));
        assert_eq!(float(&source, "qwen3.rope.freq_base"), Some(5e5));
        assert_eq!(float(&source, "qwen3.rope.scaling.factor"), Some(4.0));
        assert_eq!(source.metadata().string("qwen3.rope.scaling.type").unwrap(), Some("linear"));
    }
    let plain = opened(base("llama", json!({"rope_scaling": null})));
    assert_eq!(float(&plain, "llama.rope.freq_base"), Some(1e4));
    assert!(plain.metadata().value("llama.rope.scaling.type").is_none());
    let default = opened(base("llama", json!({"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}})));
    assert_eq!(float(&default, "llama.rope.freq_base"), Some(2e4));
    let partial = opened(base("llama", json!({"partial_rotary_factor": 0.5, "head_dim": 8})));
    assert_eq!(partial.metadata().unsigned("llama.rope.dimension_count").unwrap(), Some(4));
}

#[test]
fn two_layouts_that_differ_are_refused() {
    let both = |older: Value| {
        let newer =
            json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, "original_max_position_embeddings": 64});
        let config = base("qwen3", json!({"rope_parameters": newer, "rope_scaling": older}));
        let directory = TempDir::new();
        Checkpoint { config: config.clone(), ..Checkpoint::seeded(config) }.write(directory.path(), 1);
        Safetensors::open(directory.path()).map(drop)
    };
    both(json!({"type": "yarn", "factor": 4.0})).unwrap();
    for older in [json!({"type": "linear", "factor": 4.0}), json!({"type": "yarn", "factor": 8.0})] {
        let message = both(older).unwrap_err().to_string();
        assert!(message.contains("rope_scaling") && message.contains("rope_parameters"), "{message}");
    }
}

#[test]
fn gemma_has_two_bases_in_both_layouts() {
    let older =
        json!({"rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}});
    let newer = json!({"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }});
    for config in [older, newer] {
        let source = opened(base("gemma3_text", config));
        assert_eq!(float(&source, "gemma3.rope.freq_base"), Some(1e6));
        assert_eq!(float(&source, "gemma3.rope.freq_base_swa"), Some(2e4));
        assert_eq!(float(&source, "gemma3.rope.scaling.factor"), Some(8.0));
    }
    let absent = opened(base("gemma3_text", json!({})));
    assert_eq!(float(&absent, "gemma3.rope.freq_base"), Some(1e6));
    assert_eq!(float(&absent, "gemma3.rope.freq_base_swa"), Some(1e4));
    assert_eq!(float(&absent, "gemma3.attention.scale"), Some(1.0 / 16.0));
    assert_eq!(float(&absent, "gemma3.candlewick.norm_offset"), Some(1.0));
}

#[test]
fn windows_by_family() {
    let windows = |kind: &str, more: Value| {
        let source = opened(base(kind, more));
        let name = source.metadata().string("general.architecture").unwrap().unwrap().to_string();
        let window = source.metadata().unsigned(&format!("{name}.attention.sliding_window")).unwrap();
        window.map(|w| {
            (w, source.metadata().bools(&format!("{name}.attention.sliding_window_pattern")).unwrap().unwrap())
        })
    };
    assert_eq!(windows("mistral", json!({"sliding_window": null})), None);
    assert_eq!(windows("mistral", json!({"sliding_window": 8})), Some((8, vec![true; 4])));
    assert_eq!(windows("mistral", json!({})), Some((4096, vec![true; 4])));
    assert_eq!(windows("llama", json!({"sliding_window": 8})), None, "transformers' Llama has no window");
    let qwen = |more: Value| windows("qwen2", more);
    assert_eq!(qwen(json!({"sliding_window": 8, "max_window_layers": 2})), None);
    let on = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2});
    assert_eq!(qwen(on), Some((8, vec![false, false, true, true])));
    assert_eq!(qwen(json!({"use_sliding_window": true, "sliding_window": 8})), None, "28 layers see everything");
    let zero = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0});
    assert_eq!(windows("qwen3", zero), Some((8, vec![true; 4])));
    let types = json!(["sliding_attention", "full_attention", "full_attention", "sliding_attention"]);
    let listed = json!({"use_sliding_window": true, "sliding_window": 8, "layer_types": types});
    assert_eq!(windows("qwen3", listed), Some((8, vec![true, false, false, true])));
    let gemma = |more: Value| windows("gemma3_text", more);
    assert_eq!(gemma(json!({"sliding_window": 8})), Some((8, vec![true; 4])));
    let pattern = json!({"sliding_window": 8, "sliding_window_pattern": 2});
    assert_eq!(gemma(pattern), Some((8, vec![true, false, true, false])));
    let newer = json!({"sliding_window": 8, "_sliding_window_pattern": 2, "layer_types": types});
    assert_eq!(gemma(newer), Some((8, vec![true, false, false, true])));
}

#[test]
fn heads_have_defaults_by_family() {
    let source = |more: Value| open(base("llama", json!({})), base("llama", more));
    let key = |source: &Safetensors, key: &str| source.metadata().unsigned(&format!("llama.{key}")).unwrap();
    let absent = source(json!({"head_dim": null, "num_key_value_heads": null}));
    assert_eq!(key(&absent, "attention.key_length"), Some(6));
    assert_eq!(key(&absent, "attention.head_count_kv"), Some(4));
    assert_eq!(key(&absent, "context_length"), Some(2048));
    let mut config = base("mistral", json!({}));
    config.as_object_mut().unwrap().remove("num_key_value_heads");
    let mistral = open(base("mistral", json!({})), config);
    assert_eq!(mistral.metadata().unsigned("mistral.attention.head_count_kv").unwrap(), Some(8));
    assert_eq!(mistral.metadata().unsigned("mistral.context_length").unwrap(), Some(131_072));
    let mut config = base("qwen3", json!({}));
    config.as_object_mut().unwrap().remove("head_dim");
    let qwen = open(base("qwen3", json!({})), config);
    assert_eq!(qwen.metadata().unsigned("qwen3.attention.key_length").unwrap(), Some(128));
}

#[test]
fn a_model_of_several_modalities_is_its_text_part() {
    let weights = Checkpoint::seeded(base("gemma3_text", json!({})));
    let text = base("gemma3_text", json!({"sliding_window": 8, "sliding_window_pattern": 2}));
    for prefix in ["language_model.", "model.language_model."] {
        let mut checkpoint = weights.clone();
        checkpoint.config = json!({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 3}});
        checkpoint.tensors = weights
            .tensors
            .iter()
            .map(|(name, tensor)| {
                let name = if prefix.starts_with("model") { name.trim_start_matches("model.") } else { name };
                (format!("{prefix}{name}"), tensor.clone())
            })
            .collect();
        for ignored in ["vision_tower.vision_model.embeddings.patch_embedding.weight", "multi_modal_projector.x.weight"]
        {
            checkpoint.tensors.insert(ignored.to_string(), (vec![1, 1, 1, 1, 2], vec![1.0, 2.0]));
        }
        let directory = TempDir::new();
        checkpoint.write(directory.path(), 1);
        let nested = Safetensors::open(directory.path()).unwrap();
        let flat = opened(text.clone());
        assert_eq!(nested.tensors().len(), flat.tensors().len());
        assert!(flat.tensors().iter().all(|t| nested.tensor(&t.name).is_some_and(|n| n.shape == t.shape)));
        let mut keys: Vec<(&str, &Key)> = nested.metadata().iter().collect();
        keys.sort_by_key(|(key, _)| *key);
        assert!(!keys.is_empty());
        for (key, value) in keys {
            assert_eq!(flat.metadata().value(key), Some(value), "{key}");
        }
        let ids = [1, 5, 9, 40, 41, 42, 43, 44, 45, 46, 47];
        let mut engine = checkpoint::engine(directory.path()).unwrap();
        let found = checkpoint::logits(&mut engine, &ids);
        let alone = TempDir::new();
        Checkpoint { config: text.clone(), ..weights.clone() }.write(alone.path(), 3);
        let expected = checkpoint::logits(&mut checkpoint::engine(alone.path()).unwrap(), &ids);
        assert_eq!(found, expected);
    }
}
