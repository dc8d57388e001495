//! Random tiny checkpoints through candle-transformers' f32 models and through ours: one directory, two implementations.
//!
//! Widths are odd on purpose (heads of 24 and 40 values, 1, 2, 3 and 7 query heads to one of keys).

mod checkpoint;
mod temp_dir;

use candle_nn::VarBuilder;
use candle_transformers::models::{gemma3, llama, mistral, qwen2, qwen3};
use candlewick::candle::{DType, Device, Tensor};
use candlewick::TokenId;
use checkpoint::{deviation, logits, Checkpoint};
use serde_json::{json, Value};
use temp_dir::TempDir;

/// Both compute in f32; what differs is the order of sums and the tables of angles.
const BOUND: f64 = 1e-4;
const LENGTHS: [usize; 5] = [1, 2, 7, 33, 90];

/// A model of candle-transformers: the logits after the last of some ids.
type Peer = Box<dyn FnMut(&Tensor) -> candlewick::candle::Result<Tensor>>;

fn prompt(len: usize) -> Vec<TokenId> {
    (0..len as u32).map(|i| (i * 37 + 11) % 300).collect()
}

fn config(kind: &str, hidden: usize, [heads, kv_heads, head_dim]: [usize; 3], more: Value) -> Value {
    let mut config = json!({
        "model_type": kind, "vocab_size": 323, "hidden_size": hidden, "intermediate_size": 80, "num_hidden_layers": 3,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 256, "hidden_act": "silu", "tie_word_embeddings": false,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

/// The peer of a configuration, on the weights in `path`.
fn peer(config: &Value, path: &std::path::Path) -> Peer {
    let weights = std::fs::read(path.join("model.safetensors")).unwrap();
    let vb = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu).unwrap();
    let config = config.clone();
    match config["model_type"].as_str().unwrap() {
        "llama" => {
            let config: llama::LlamaConfig = serde_json::from_value(config).unwrap();
            let config = config.into_config(false);
            let model = llama::Llama::load(vb, &config).unwrap();
            Box::new(move |ids| {
                model.forward(ids, 0, &mut llama::Cache::new(false, DType::F32, &config, &Device::Cpu)?)
            })
        }
        "mistral" => {
            let mut model = mistral::Model::new(&serde_json::from_value(config).unwrap(), vb).unwrap();
            Box::new(move |ids| {
                model.clear_kv_cache();
                model.forward(ids, 0)
            })
        }
        "qwen2" => {
            let mut model = qwen2::ModelForCausalLM::new(&serde_json::from_value(config).unwrap(), vb).unwrap();
            Box::new(move |ids| {
                model.clear_kv_cache();
                model.forward(ids, 0)
            })
        }
        "qwen3" => {
            let mut model = qwen3::ModelForCausalLM::new(&serde_json::from_value(config).unwrap(), vb).unwrap();
            Box::new(move |ids| {
                model.clear_kv_cache();
                model.forward(ids, 0)
            })
        }
        "gemma3_text" => {
            let mut model = gemma3::Model::new(false, &serde_json::from_value(config).unwrap(), vb).unwrap();
            Box::new(move |ids| {
                model.clear_kv_cache();
                model.forward(ids, 0)
            })
        }
        other => panic!("{other} has no peer here"),
    }
}

/// The largest deviation over all lengths, of our model of `ours` from the peer's of `theirs` on the same weights.
fn largest_deviation(ours: Value, theirs: &Value) -> f64 {
    let directory = TempDir::new();
    Checkpoint::seeded(ours).write(directory.path(), 1);
    let mut engine = checkpoint::engine(directory.path()).unwrap();
    let mut peer = peer(theirs, directory.path());
    let deviations = LENGTHS.map(|len| {
        let ids = prompt(len);
        let input = Tensor::new(ids.as_slice(), &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        let expected = peer(&input).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        deviation(&logits(&mut engine, &ids), &expected)
    });
    let shown = deviations.map(|d| format!("{d:.1e}")).join(" ");
    println!("{} {}: {shown}", theirs["model_type"], theirs["head_dim"]);
    deviations.into_iter().fold(0.0, f64::max)
}

#[track_caller]
fn equal(config: Value) {
    let deviation = largest_deviation(config.clone(), &config);
    assert!(deviation < BOUND, "{config}: logits differ by {deviation:.1e} of the largest");
}

/// candle's mask shows each query one key more than the window that it is given (in the window of transformers and of
/// llama.cpp a query counts itself): given one less, it shows the same.
#[track_caller]
fn equal_with_window(config: Value, window: u64) {
    let with = |window: u64| {
        let mut config = config.clone();
        config["sliding_window"] = window.into();
        config
    };
    let deviation = largest_deviation(with(window), &with(window - 1));
    assert!(deviation < BOUND, "{config}: logits differ by {deviation:.1e} of the largest");
    // A window that is wrong by one does not pass.
    let wrong = largest_deviation(with(window), &with(window));
    assert!(wrong > BOUND, "{config}: the window has no effect ({wrong:.1e})");
}

#[test]
fn llama() {
    equal(config("llama", 96, [4, 4, 24], json!({})));
    equal(config("llama", 240, [6, 2, 40], json!({"tie_word_embeddings": true})));
}

#[test]
fn llama_3_scaled() {
    // The original context is short, so that some frequencies are kept, some blended, some stretched.
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    let scaled = config("llama", 168, [7, 1, 24], json!({"rope_scaling": scaling}));
    equal(scaled.clone());
    let plain = config("llama", 168, [7, 1, 24], json!({}));
    assert!(largest_deviation(plain, &scaled) > BOUND, "the scaling has no effect");
    // The newer layout says the same.
    let mut parameters = scaled["rope_scaling"].clone();
    parameters["rope_theta"] = json!(10000.0);
    let mut newer = config("llama", 168, [7, 1, 24], json!({"rope_parameters": parameters}));
    newer.as_object_mut().unwrap().remove("rope_theta");
    assert!(largest_deviation(newer, &scaled) < BOUND);
}

#[test]
fn mistral() {
    equal(config("mistral", 96, [6, 3, 40], json!({"sliding_window": null})));
    equal(config("mistral", 96, [7, 1, 24], json!({"sliding_window": null, "tie_word_embeddings": false})));
    equal_with_window(config("mistral", 96, [6, 3, 40], json!({})), 9);
}

#[test]
fn qwen2() {
    let more = json!({"use_sliding_window": false, "max_window_layers": 3, "sliding_window": 4096});
    equal(config("qwen2", 120, [3, 1, 40], more));
    let tied = json!({
        "use_sliding_window": false, "max_window_layers": 3, "sliding_window": 4096, "tie_word_embeddings": true,
    });
    equal(config("qwen2", 168, [7, 7, 24], tied));
    // candle gives the window to every layer.
    equal_with_window(config("qwen2", 120, [3, 1, 40], json!({"use_sliding_window": true, "max_window_layers": 0})), 9);
}

#[test]
fn qwen3() {
    let more = json!({
        "attention_bias": false, "use_sliding_window": false, "max_window_layers": 3, "sliding_window": null,
        "rope_theta": 1000000.0,
    });
    for (hidden, heads) in [(64, [7, 1, 24]), (96, [6, 2, 40]), (64, [4, 4, 24]), (80, [4, 2, 40])] {
        equal(config("qwen3", hidden, heads, more.clone()));
    }
}

#[test]
fn gemma3() {
    // candle's Gemma scales scores by the heads' width, so the scalar must say the same; its head is the embedding, and
    // its cache takes prompts with one KV head only.
    let more = |head_dim: usize| {
        json!({
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": head_dim, "attention_bias": false,
            "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 3,
            "tie_word_embeddings": true, "final_logit_softcapping": null, "attn_logit_softcapping": null,
        })
    };
    for heads in [1, 2, 3] {
        equal_with_window(config("gemma3_text", 96, [heads, 1, 24], more(24)), 9);
    }
    let mut capped = more(40);
    capped["final_logit_softcapping"] = json!(3.0);
    capped["attn_logit_softcapping"] = json!(2.0);
    equal_with_window(config("gemma3_text", 64, [7, 1, 40], capped), 9);
    // Another scalar than the heads' width is another model.
    let mut ours = config("gemma3_text", 96, [3, 1, 24], more(24));
    ours["sliding_window"] = json!(200);
    let theirs = ours.clone();
    ours["query_pre_attn_scalar"] = json!(30);
    assert!(largest_deviation(ours, &theirs) > BOUND);
}
