//! Directories with safetensors files: the header, the index or the configuration may say anything.

use candlewick::source::{Safetensors, WeightSource};
use candlewick::testing::safetensors_bytes;

use super::source::{check_metadata, check_tensors, Folder};
use super::{check_error, Input};

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "vocab_size": 512, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": true}"#;
const TOKENIZER: &[u8] = include_bytes!("../../data/stories260k/hf/tokenizer.model");

/// `data`: which part is hostile, and its text. Whether the directory opens.
pub(crate) fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let folder = Folder::new();
    let norm = |name: &str| safetensors_bytes(&[(name, "F32", &[2], &[7; 8])]);
    let (mut config, mut weights) = (CONFIG.as_bytes(), Some(norm("model.norm.weight")));
    match input.below(4) {
        0 => config = input.0,
        1 => {
            folder.write("model.safetensors.index.json", input.0);
            folder.write("a.safetensors", &norm("model.norm.weight"));
            folder.write("b.safetensors", &norm("model.layers.0.input_layernorm.weight"));
            weights = None;
        }
        2 => weights = Some(input.0.to_vec()),
        // Without the length, which would be wrong after every change.
        _ => {
            let zeros = input.below(64);
            let length = input.0.len() as u64;
            weights = Some([&length.to_le_bytes()[..], input.0, &vec![0; zeros]].concat());
        }
    }
    folder.write("config.json", config);
    folder.write("tokenizer.model", TOKENIZER);
    if let Some(weights) = &weights {
        folder.write("model.safetensors", weights);
    }
    let source = match Safetensors::open(folder.path()) {
        Ok(source) => source,
        Err(error) => {
            check_error(&error);
            return false;
        }
    };
    check_metadata(source.metadata());
    let (bytes, _) = check_tensors(&source);
    if let Some(weights) = weights {
        assert!(bytes + 8 <= weights.len() as u64);
    }
    true
}
