//! One trained model as a GGUF file and as a Hugging Face directory: the same answers, bit for bit.

mod checkpoint;

use std::path::{Path, PathBuf};

use candlewick::source::{Gguf, Safetensors};
use candlewick::testing::check_weight_source;
use candlewick::{Engine, KvFormat, Precision, Request, TokenId, WeightSource};
use checkpoint::with_vocabulary;

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

/// The file's tokenizer on the directory's weights: what the weights give is compared id by id.
fn engines(precision: Precision) -> [Engine; 2] {
    let file = gguf();
    let directory = with_vocabulary(directory(), file.metadata());
    [engine(file, precision), engine(directory, precision)]
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
    let [file, directory] = engines(Precision::F32);
    for mut engine in [file, directory] {
        let output = engine.complete(Request::prompt("Once upon a time").max_tokens(60)).unwrap();
        assert!(output.text.starts_with(TEXT), "{}", output.text);
    }
    // Half the memory for keys and values, the same beginning.
    let mut engine = Engine::builder(gguf()).kv_format(KvFormat::Bf16).threads(1).build().unwrap();
    let output = engine.complete(Request::prompt("Once upon a time").max_tokens(20)).unwrap();
    assert!(output.text.starts_with(&TEXT[..30]), "{}", output.text);
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
