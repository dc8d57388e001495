//! Models whose files are readable but wrong: every fault is a typed error that names it, and never a panic.

mod temp_dir;

use candlewick::source::{Array, Dtype, Memory, Value};
use candlewick::testing::{GgufWriter, TinyModel};
use candlewick::{Engine, Error, Event, Gguf, Message, ModelError, Request, SourceError, WeightSource};
use proptest::prelude::*;
use temp_dir::TempDir;

fn models() -> Vec<(&'static str, Memory)> {
    let [llama, qwen2] = [("llama", TinyModel::llama()), ("qwen2", TinyModel::qwen2())];
    let [qwen3, gemma3] = [("qwen3", TinyModel::qwen3()), ("gemma3", TinyModel::gemma3())];
    [llama, qwen2, qwen3, gemma3].map(|(name, model)| (name, model.build().unwrap())).to_vec()
}

fn build(source: impl WeightSource) -> candlewick::Result<Engine> {
    Engine::builder(source).threads(1).build()
}

/// Whatever a model's file says, running it ends in tokens or in an error.
fn run(engine: &mut Engine) {
    let requests = [Request::tokens(vec![1, 5, 9]).max_tokens(3), Request::chat([Message::user("hi")]).max_tokens(2)];
    for request in requests {
        if engine.submit(request).is_err() {
            continue;
        }
    }
    for _ in 0..50 {
        if engine.is_idle() {
            break;
        }
        for event in engine.step().unwrap() {
            if let Event::Finished { error: Some(error), .. } = event {
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(engine.is_idle());
    engine.check_integrity().unwrap();
}

fn keys(source: &Memory) -> Vec<String> {
    let mut keys: Vec<String> = source.metadata().iter().map(|(key, _)| key.to_string()).collect();
    keys.sort();
    keys
}

fn tensors(source: &Memory) -> Vec<(String, Dtype, Vec<usize>)> {
    source.tensors().iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone())).collect()
}

#[test]
fn a_missing_key_is_named_or_has_a_default() {
    for (name, model) in models() {
        let needed = ["general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.tokens"].map(str::to_string);
        let of_the_architecture = [
            "block_count",
            "context_length",
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
            "attention.layer_norm_rms_epsilon",
        ];
        let needed: Vec<String> =
            needed.into_iter().chain(of_the_architecture.map(|key| format!("{name}.{key}"))).collect();
        for key in keys(&model) {
            let mut model = model.clone();
            model.unset(&key);
            match build(model) {
                Ok(mut engine) => {
                    assert!(!needed.contains(&key), "{key} is needed");
                    run(&mut engine);
                }
                Err(error) => {
                    let text = error.to_string();
                    // Defaults may contradict the tensors or another key: then a shape or a variant is named.
                    let contradicts = matches!(
                        error,
                        Error::Source(SourceError::TensorShape { .. }) | Error::Model(ModelError::Unsupported { .. })
                    );
                    let names = text.contains(&key) || contradicts;
                    let related = text.contains("merges") || text.contains("scores") || text.contains("token");
                    assert!(names || related, "{key}: {text}");
                    if needed.contains(&key) {
                        assert!(
                            matches!(&error, Error::Source(SourceError::MissingKey { key: k, .. }) if *k == key),
                            "{key}: {text}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_key_of_any_other_value_is_an_error_or_runs() {
    let values = || {
        vec![
            Value::Unsigned(0),
            Value::Unsigned(1),
            Value::Unsigned(7),
            Value::Unsigned(u64::MAX),
            Value::Signed(-1),
            Value::Float(0.0),
            Value::Float(-1.0),
            Value::Float(f64::NAN),
            Value::Float(1e300),
            Value::Bool(true),
            Value::String(String::new()),
            Value::String("\u{0}\u{fffd} {{ {% {#".to_string()),
            Value::Array(Array::String(vec![])),
            Value::Array(Array::String(vec![String::new(); 400])),
            Value::Array(Array::U32(vec![u32::MAX; 400])),
            Value::Array(Array::F32(vec![f32::NAN; 323])),
            Value::Array(Array::Array(vec![Array::Bool(vec![true])])),
        ]
    };
    for (_, model) in models() {
        for key in keys(&model) {
            for value in values() {
                let mut model = model.clone();
                model.set(key.as_str(), value);
                match build(model) {
                    Ok(mut engine) => run(&mut engine),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
    }
}

#[test]
fn a_missing_tensor_is_named_unless_it_is_optional() {
    for (_, model) in models() {
        for (tensor, ..) in tensors(&model) {
            let mut altered = model.clone();
            altered.remove(&tensor);
            match build(altered) {
                Ok(mut engine) => {
                    assert!(tensor == "output.weight" || tensor.ends_with(".bias"), "{tensor}");
                    run(&mut engine);
                }
                // Without its gate, `ffn_up` is taken for both and has the wrong shape.
                Err(Error::Source(SourceError::TensorShape { tensor: named, .. })) => {
                    assert!(tensor.ends_with("ffn_gate.weight") && named.ends_with("ffn_up.weight"), "{tensor}");
                }
                Err(Error::Source(SourceError::MissingTensor { tensor: named, .. })) => assert_eq!(named, tensor),
                Err(other) => panic!("{tensor}: {other}"),
            }
        }
    }
}

#[test]
fn a_wrong_shape_or_type_names_the_tensor() {
    for (_, model) in models() {
        for (tensor, _, shape) in tensors(&model) {
            if shape.contains(&0) {
                continue;
            }
            let grown: Vec<usize> = shape.iter().map(|d| d + 32).collect();
            let mut flipped: Vec<usize> = shape.iter().rev().copied().collect();
            flipped.push(1);
            for wrong in [grown, flipped] {
                let mut altered = model.clone();
                altered.remove(&tensor);
                let len: usize = wrong.iter().product();
                altered.insert(&tensor, Dtype::F32, &wrong, vec![0; len * 4]).unwrap();
                match build(altered) {
                    Err(Error::Source(SourceError::TensorShape { tensor: named, found, .. })) => {
                        // A larger embedding changes what the output must be.
                        if tensor != "token_embd.weight" {
                            assert_eq!((named.as_str(), &found), (tensor.as_str(), &wrong));
                        }
                    }
                    Err(other) => panic!("{tensor}: {other}"),
                    Ok(_) => assert_eq!(tensor, "token_embd.weight"),
                }
            }
            // One value per block of 256 or of one, never one that kernels compute with.
            let len: usize = shape.iter().product();
            let mut altered = model.clone();
            altered.remove(&tensor);
            altered.insert(&tensor, Dtype::I16, &shape, vec![0; len * 2]).unwrap();
            match build(altered) {
                Err(Error::Source(SourceError::UnsupportedType { tensor: named, dtype, .. })) => {
                    assert_eq!((named.as_str(), dtype.as_str()), (tensor.as_str(), "I16"));
                }
                other => panic!("{tensor}: {:?}", other.map(|_| ()).map_err(|e| e.to_string())),
            }
        }
    }
}

#[test]
fn an_unknown_architecture_names_the_known_ones() {
    let (_, mut model) = models().remove(0);
    model.set("general.architecture", "mamba");
    let Err(Error::Model(error)) = build(model) else { panic!("mamba was built") };
    assert!(matches!(&error, ModelError::UnknownArchitecture { architecture, .. } if architecture == "mamba"));
    assert!(["llama", "mistral", "qwen2", "qwen3", "gemma3"].iter().all(|name| error.to_string().contains(name)));
    let (_, mut experts) = models().remove(0);
    experts.set("llama.expert_count", 8u32);
    assert!(build(experts).unwrap_err().to_string().contains("mixture of experts"));
    let (_, mut scaled) = models().remove(0);
    scaled.set("llama.rope.scaling.type", "longrope");
    assert!(build(scaled).unwrap_err().to_string().contains("longrope"));
}

#[test]
fn a_broken_template_is_an_error_of_its_own() {
    let (_, mut model) = models().remove(0);
    model.set("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}");
    // Before any weight is read.
    let built = Engine::builder(model).progress(|_, _| unreachable!("no weights are read")).build();
    assert!(matches!(built, Err(Error::Template(_))));
    let (_, mut model) = models().remove(0);
    model.set("tokenizer.chat_template", "{{ raise_exception('only questions, please') }}");
    let error = build(model).unwrap().submit(Request::chat([Message::user("hi")])).unwrap_err();
    assert!(matches!(error, Error::Template(_)) && error.to_string().contains("only questions, please"), "{error}");
    let (_, mut model) = models().remove(0);
    model
        .set("tokenizer.chat_template", "{% for i in range(1000000000) %}{{ messages[0].content * 1000 }}{% endfor %}");
    assert!(matches!(build(model).unwrap().submit(Request::chat([Message::user("hi")])), Err(Error::Template(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Flipped bits anywhere in a file: in the header they are errors, in the weights they give other answers, or
    /// logits that are not finite, which fail the request.
    #[test]
    fn flipped_bits_never_panic(
        which in 0usize..4,
        dtype in prop::sample::select(vec![Dtype::F32, Dtype::F16, Dtype::Q4_1, Dtype::Q8_0]),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..40),
    ) {
        let model = [TinyModel::llama(), TinyModel::qwen2(), TinyModel::qwen3(), TinyModel::gemma3()][which].clone().with_dtype(dtype);
        let mut bytes = GgufWriter::new().to_bytes(&model.build().unwrap()).unwrap();
        for (index, bit) in flips {
            let at = index.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        let folder = TempDir::new();
        let path = folder.write("model.gguf", &bytes);
        if let Ok(mut engine) = Gguf::open(&path).and_then(build) {
            run(&mut engine);
        }
    }
}
