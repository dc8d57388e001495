//! Damaged and hostile directories: a typed error that names file and part, no panic, bounded memory.

mod checkpoint;
mod counting;
mod temp_dir;

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use candlewick::source::{Dtype, Memory, Safetensors, WeightSource};
use candlewick::testing::{check_weight_source, safetensors_bytes, TinyModel};
use candlewick::{Engine, Error, ModelError, SourceError};
use checkpoint::{logits, with_vocabulary, Checkpoint};
use counting::measured;
use proptest::prelude::*;
use serde_json::{json, Value};
use temp_dir::TempDir;

/// Memory that is not in proportion to the files: first reserves, keys, error texts.
const CONSTANT: isize = 256 * 1024;

fn config(kind: &str) -> Value {
    let mut config = json!({
        "model_type": kind, "vocab_size": 323, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "max_position_embeddings": 128, "hidden_act": "silu", "tie_word_embeddings": false, "sliding_window": 8,
    });
    let more = match kind {
        "llama" => json!({"attention_bias": false, "mlp_bias": false, "rope_scaling": {"rope_type": "llama3",
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}),
        "mistral" => json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
        "qwen2" => json!({"use_sliding_window": true, "max_window_layers": 1}),
        "qwen3" => json!({"use_sliding_window": true, "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": false,
            "attention_factor": 1.1, "rope_theta": 1e4}}),
        _ => json!({"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 4, "sliding_window_pattern": 2,
            "rope_local_base_freq": 1e4, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}),
    };
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

const KINDS: [&str; 5] = ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"];

fn error(result: candlewick::Result<Safetensors>) -> SourceError {
    match result {
        Err(Error::Source(error)) => error,
        other => panic!("expected a source error, found {other:?}"),
    }
}

/// The error is of the variant and its message names all of the words.
macro_rules! assert_error {
    ($error:expr, $variant:ident, $($word:expr),*) => {{
        let error = $error;
        assert!(matches!(error, SourceError::$variant { .. }), "expected {}, found {error:?}", stringify!($variant));
        let message = error.to_string();
        $(assert!(message.contains($word), "`{}` is not in: {message}", $word);)*
    }};
}

/// A directory of a small Llama whose weights are these bytes.
fn directory_of(bytes: &[u8]) -> TempDir {
    let directory = TempDir::new();
    directory.write("config.json", config("llama").to_string().as_bytes());
    directory.write("model.safetensors", bytes);
    directory
}

fn error_of(bytes: &[u8]) -> SourceError {
    let directory = directory_of(bytes);
    let (error, peak, _) = measured(|| error(Safetensors::open(directory.path())));
    assert!(peak <= 8 * bytes.len() as isize + CONSTANT, "{peak} bytes of memory for a file of {}", bytes.len());
    assert!(error.to_string().contains("model.safetensors"), "the file is not named: {error}");
    error
}

/// A file with this header before `data` bytes.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + data, 0);
    out
}

fn small_model() -> Vec<u8> {
    let directory = TempDir::new();
    Checkpoint::seeded(config("llama")).write(directory.path(), 1);
    fs::read(directory.path().join("model.safetensors")).unwrap()
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = small_model();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    assert!(bytes.len() > 3 * header && header > 1000);
    let directory = directory_of(&bytes);
    let path = directory.path().join("model.safetensors");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    // From the end, so that each cut only shortens the file.
    for cut in (0..header + 64).chain((header + 64..bytes.len()).step_by(256)).chain([bytes.len() - 1]).rev() {
        file.set_len(cut as u64).unwrap();
        let (error, peak, _) = measured(|| error(Safetensors::open(directory.path())));
        assert!(peak <= 8 * cut as isize + CONSTANT, "{peak} bytes of memory for a file of {cut}");
        let message = error.to_string();
        let named = match &error {
            SourceError::Truncated { what, file_size, needed, .. } => {
                *file_size == cut as u64 && *needed > cut as u64 && (cut < header) == (what == "the header")
            }
            _ => false,
        };
        assert!(named && message.contains("download it again"), "cut at {cut}: {message}");
    }
}

#[test]
fn what_is_not_safetensors() {
    assert_error!(error_of(b"version https://git-lfs.github.com/spec/v1\n"), NotSafetensors, "LFS");
    assert_error!(error_of(b"<!DOCTYPE html><html></html>"), NotSafetensors, "web page");
    assert_error!(error_of(b"GGUF\x03\0\0\0\0\0\0\0"), NotSafetensors, "Gguf::open");
    assert_error!(error_of(b"PK\x03\x04\0\0\0\0\0\0"), NotSafetensors, "zip");
    assert_error!(error_of(b""), Truncated, "header");
    assert_error!(error_of(&u64::MAX.to_le_bytes()), LimitExceeded, "18446744073709551615", "100000000");
    assert_error!(error_of(&100_000_001u64.to_le_bytes()), LimitExceeded, "100000001");
    assert_error!(error_of(&99_999_999u64.to_le_bytes()), Truncated, "100000007");
}

#[test]
fn headers_that_are_not_what_they_should_be() {
    let header = |text: &str| error_of(&with_header(text, 16));
    for text in
        ["", "[]", "null", "{", "{\"a\"}", "{\"a\":1}", "{\"a\":{}}", "{} x", "{\"a\":{\"dtype\":\"F32\"}}", "\u{0}{}"]
    {
        assert_error!(header(text), InvalidJson, "the header", "at byte");
    }
    let entry = |entry: &str| header(&format!("{{\"blk\":{{{entry}}}}}"));
    let all = "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]";
    for wrong in [
        "\"dtype\":\"F32\",\"shape\":[4]",
        "\"dtype\":3,\"shape\":[4],\"data_offsets\":[0,16]",
        "\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]",
        "\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]",
        "\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[0,16]",
        "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]",
        "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16,16]",
        "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,99999999999999999999]",
        &format!("{all},\"dtype\":\"F32\""),
        &format!("{all},\"scale\":1"),
    ] {
        assert_error!(entry(wrong), InvalidJson, "the header");
    }
    let invalid_utf8 = [&12u64.to_le_bytes()[..], b"{\"a\xFF\":{}}   "].concat();
    assert_error!(error_of(&invalid_utf8), InvalidJson, "UTF-8");
    let deep = format!("{{\"__metadata__\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_error!(header(&deep), InvalidJson, "an object");
    let deep = format!("{{\"a\":{}", "{\"dtype\":".repeat(50_000));
    assert_error!(header(&deep), InvalidJson, "a string");
    assert_error!(header(&format!("{{\"a\\u001b[2J\":{{{}}}}}", "\"dtype\":1")), InvalidJson, "a string");
}

#[test]
fn places_of_tensors() {
    let at = |entries: &[(&str, &str, &str)], data: usize| {
        let entries: Vec<_> = entries
            .iter()
            .map(|(name, shape, range)| {
                format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":{range}}}")
            })
            .collect();
        error_of(&with_header(&format!("{{{}}}", entries.join(",")), data))
    };
    assert_error!(at(&[("blk", "[4]", "[0,16]")], 8), Truncated, "`blk`", "download it again");
    assert_error!(at(&[("blk", "[4]", "[16,0]")], 16), Truncated, "`blk`");
    assert_error!(at(&[("blk", "[4]", "[18446744073709551599,18446744073709551615]")], 16), Truncated, "`blk`");
    assert_error!(at(&[("blk", "[4]", "[0,12]")], 12), TensorBytes, "`blk`", "16 bytes", "12");
    assert_error!(at(&[("blk", "[4294967296,4294967296]", "[0,16]")], 16), InvalidShape, "`blk`", "F32");
    assert_error!(at(&[("blk", "[18446744073709551615]", "[0,16]")], 16), InvalidShape, "`blk`");
    let (a, b) = (("a", "[4]", "[0,16]"), ("b", "[2]", "[8,16]"));
    assert_error!(at(&[a, b], 16), OverlappingTensors, "`a`", "`b`");
    assert_error!(at(&[b, a], 16), OverlappingTensors, "`a`", "`b`");
    assert_error!(at(&[a, ("b", "[4]", "[0,16]")], 16), OverlappingTensors, "`a`", "`b`");
    assert_error!(at(&[a, ("b", "[2]", "[24,32]")], 32), UnclaimedBytes, "8 bytes at byte 16");
    assert_error!(at(&[a], 20), UnclaimedBytes, "4 bytes at byte 16");
    assert_error!(at(&[("a", "[4]", "[4,20]")], 20), UnclaimedBytes, "4 bytes at byte 0");
    let twice = [a, ("a", "[4]", "[16,32]")];
    let directory = TempDir::new();
    let header = twice.map(|(n, s, r)| format!("\"{n}\":{{\"dtype\":\"F32\",\"shape\":{s},\"data_offsets\":{r}}}"));
    directory.write("config.json", config("llama").to_string().as_bytes());
    directory.write("model.safetensors", &with_header(&format!("{{{}}}", header.join(",")), 32));
    assert_error!(error(Safetensors::open(directory.path())), DuplicateTensor, "`a`", "twice");
}

#[test]
fn order_does_not_matter_and_odd_tensors_are_listed() {
    let directory = TempDir::new();
    Checkpoint::seeded(config("llama")).write(directory.path(), 1);
    let path = directory.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let end = bytes.len() - 8 - length;
    // Before what is there in the header, behind it in the data; a scalar, an empty tensor, and types that do not run.
    let text = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    let odd = format!(
        "{{\"__metadata__\":{{\"format\":\"pt\"}},\"count\":{{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[{end},{}]}},\
         \"none\":{{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[{},{}]}},\
         \"eight\":{{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[{},{}]}},",
        end + 8,
        end + 8,
        end + 8,
        end + 8,
        end + 11
    );
    let header = text.replacen('{', &odd, 1);
    bytes.splice(..8 + length, (header.len() as u64).to_le_bytes().into_iter().chain(header.bytes()));
    bytes.extend([9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
    fs::write(&path, &bytes).unwrap();
    let source = Safetensors::open(directory.path()).unwrap();
    check_weight_source(&source).unwrap();
    let info = |name: &str| source.tensor(name).unwrap();
    assert_eq!((info("count").dtype, info("none").size_in_bytes), (Dtype::I64, 0));
    assert_eq!((info("eight").dtype.to_string().as_str(), info("eight").size_in_bytes), ("F8_E4M3", 3));
    let mut eight = [0; 3];
    source.read("eight", 0, &mut eight).unwrap();
    assert_eq!(eight, [1, 2, 3]);
    let mut engine = checkpoint::engine(directory.path()).unwrap();
    assert!(logits(&mut engine, &[1, 2, 3]).iter().all(|x| x.is_finite()));
}

#[test]
fn a_type_that_does_not_run_is_named_when_it_is_used() {
    for (from, to) in [("F32", "F8_E5M2"), ("F32", "C64"), ("F32", "U32")] {
        let mut checkpoint = Checkpoint::seeded(config("llama"));
        checkpoint.tensors.retain(|name, _| !name.contains("layers.1.mlp.up_proj"));
        let directory = TempDir::new();
        checkpoint.write(directory.path(), 1);
        // In a file of its own, so that the bytes may be of any type.
        fs::rename(directory.path().join("model.safetensors"), directory.path().join("one.safetensors")).unwrap();
        let name = "model.layers.1.mlp.up_proj.weight";
        directory.write("two.safetensors", &safetensors_bytes(&[(name, to, &[24, 16], &[0; 24 * 16 * 4])]));
        let map: serde_json::Map<_, _> =
            checkpoint.tensors.keys().map(|name| (name.clone(), json!("one.safetensors"))).collect();
        let mut index = json!({ "weight_map": map });
        index["weight_map"][name] = json!("two.safetensors");
        directory.write("model.safetensors.index.json", index.to_string().as_bytes());
        assert!(Safetensors::open(directory.path()).is_ok(), "{from}");
        let Err(Error::Source(error)) = checkpoint::engine(directory.path()) else { panic!("{to} runs") };
        assert_error!(error, UnsupportedType, "`blk.1.ffn_up.weight`", to);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_headers_do_no_harm(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..6),
        digits in prop::option::of((any::<prop::sample::Index>(), "[0-9,\\[\\]{}\":\\\\]{1,20}")),
    ) {
        static MODEL: LazyLock<Vec<u8>> = LazyLock::new(small_model);
        let mut bytes = MODEL.clone();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for (index, bit) in flips {
            bytes[index.index(header)] ^= 1 << bit;
        }
        if let Some((index, text)) = digits {
            let at = 8 + index.index(header - 8 - text.len());
            bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
        let directory = directory_of(&bytes);
        let (result, peak, _) = measured(|| Safetensors::open(directory.path()));
        prop_assert!(peak <= 8 * bytes.len() as isize + CONSTANT, "{} bytes of memory", peak);
        match result {
            Ok(source) => check_weight_source(&source).map_err(TestCaseError::fail)?,
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

/// An index over two files of a small model, with the map changed.
fn indexed(change: impl FnOnce(&Path, &mut Value)) -> candlewick::Result<Safetensors> {
    let directory = TempDir::new();
    Checkpoint::seeded(config("llama")).write(directory.path(), 2);
    let path = directory.path().join("model.safetensors.index.json");
    let mut index: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(directory.path(), &mut index);
    fs::write(&path, index.to_string()).unwrap();
    Safetensors::open(directory.path())
}

#[test]
fn indices() {
    const FIRST: &str = "model-00001-of-00002.safetensors";
    let norm = "model.norm.weight";
    assert_eq!(indexed(|_, _| ()).unwrap().num_files(), 2);
    for outside in
        ["../model.safetensors", "/etc/passwd", "..", ".", "", "a/../../b", "c:\\x", "..\\x", "./x", "a\u{0}b"]
    {
        let found = indexed(|_, index| index["weight_map"][norm] = outside.into());
        match error(found) {
            // `./x` stays inside on every system, but is no name of a file.
            SourceError::OutsideDirectory { .. } | SourceError::MissingFile { .. } => {}
            other => panic!("{outside}: {other}"),
        }
    }
    let absent = indexed(|_, index| index["weight_map"][norm] = "model-00003.safetensors".into());
    assert_error!(error(absent), MissingFile, "`model-00003.safetensors`", "download it");
    let lost = indexed(|_, index| index["weight_map"]["model.layers.9.x.weight"] = FIRST.into());
    assert_error!(error(lost), InconsistentIndex, "`model.layers.9.x.weight`", FIRST, "index.json");
    let swapped = indexed(|_, index| index["weight_map"]["lm_head.weight"] = "model-00002-of-00002.safetensors".into());
    assert_error!(error(swapped), InconsistentIndex, "`lm_head.weight`");
    let twice = indexed(|path, index| {
        fs::copy(path.join(FIRST), path.join("copy.safetensors")).unwrap();
        index["weight_map"]["lm_head.weight"] = "copy.safetensors".into();
    });
    assert_error!(error(twice), DuplicateTensor, "twice");
    let many = indexed(|_, index| {
        let map = index["weight_map"].as_object_mut().unwrap();
        map.extend((0..2000).map(|i| (format!("t{i}"), json!(format!("f{i}.safetensors")))));
    });
    assert_error!(error(many), LimitExceeded, "files", "1000");
    for (index, words) in [(json!({}), "weight_map"), (json!([]), "object"), (json!({"weight_map": []}), "object")] {
        assert!(indexed(|_, old| *old = index).unwrap_err().to_string().contains(words));
    }
    let nested = (0..100).fold(json!(1), |inner, _| json!([inner]));
    assert_error!(error(indexed(|_, index| index["metadata"] = nested)), InvalidJson, "levels deep");
    let number = indexed(|_, index| index["weight_map"][norm] = json!(1));
    assert_error!(error(number), InvalidJson, "a string");
}

#[test]
fn directories_that_lack_something() {
    let directory = TempDir::new();
    assert_error!(error(Safetensors::open(directory.path())), MissingFile, "`config.json`");
    assert_error!(error(Safetensors::open(directory.path().join("none"))), Io, "none");
    let file = directory.write("config.json", config("llama").to_string().as_bytes());
    assert_error!(error(Safetensors::open(&file)), NotADirectory, "config.json");
    assert_error!(error(Safetensors::open(directory.path())), MissingFile, "model.safetensors.index.json");
    fs::create_dir(directory.path().join("model.safetensors")).unwrap();
    assert_error!(error(Safetensors::open(directory.path())), NotAFile, "a directory");
    directory.write("config.json", &vec![b' '; (1 << 20) + 1]);
    assert_error!(error(Safetensors::open(directory.path())), LimitExceeded, "1048576");
    for text in ["", "{", "[]", "\u{fffd}", "nul", &"[".repeat(100_000)] {
        directory.write("config.json", text.as_bytes());
        assert_error!(error(Safetensors::open(directory.path())), InvalidJson, "config.json");
    }
}

#[test]
fn quantized_checkpoints_are_named() {
    for (change, method) in [
        (json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}), "gptq"),
        (json!({"quantization_config": {"quant_method": "fp8"}}), "fp8"),
        (json!({"quantization_config": {"bits": 4}}), "unnamed"),
        (json!({"text_config": {"quantization_config": {"quant_method": "awq"}}}), "awq"),
        (json!({"compression_config": {"quant_method": "compressed-tensors"}}), "compressed-tensors"),
    ] {
        let mut checkpoint = Checkpoint::seeded(config("llama"));
        checkpoint.config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let directory = TempDir::new();
        checkpoint.write(directory.path(), 1);
        assert_error!(error(Safetensors::open(directory.path())), QuantizedCheckpoint, method, "not supported yet");
    }
    // Without a word in config.json.
    let mut checkpoint = Checkpoint::seeded(config("llama"));
    let directory = TempDir::new();
    checkpoint.write(directory.path(), 1);
    directory.write("quantize_config.json", b"{}");
    assert_error!(error(Safetensors::open(directory.path())), QuantizedCheckpoint, "gptq");
    fs::remove_file(directory.path().join("quantize_config.json")).unwrap();
    checkpoint.tensors.insert("model.layers.0.mlp.up_proj.weight_scale".into(), (vec![1], vec![1.0]));
    checkpoint.write(directory.path(), 1);
    assert_error!(error(Safetensors::open(directory.path())), QuantizedCheckpoint, "up_proj.weight_scale");
}

#[test]
fn variants_that_are_not_there_are_named() {
    for (kind, change, words) in [
        ("llama", json!({"model_type": "mamba"}), &["mamba", "qwen3"][..]),
        ("llama", json!({"hidden_act": "relu"}), &["relu"]),
        ("gemma3_text", json!({"hidden_activation": "gelu"}), &["gelu"]),
        ("llama", json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}), &["dynamic"]),
        ("qwen2", json!({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}), &["longrope"]),
        ("qwen3", json!({"layer_types": ["linear_attention", "full_attention"]}), &["linear_attention"]),
        ("gemma3_text", json!({"use_bidirectional_attention": true}), &["bidirectional"]),
    ] {
        let directory = TempDir::new();
        let mut checkpoint = Checkpoint::seeded(config(kind));
        checkpoint.config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        checkpoint.write(directory.path(), 1);
        let Err(Error::Model(error)) = Safetensors::open(directory.path()) else { panic!("{change} opens") };
        assert!(matches!(error, ModelError::Unsupported { .. } | ModelError::UnknownArchitecture { .. }));
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    }
}

#[test]
fn biases_and_heads_that_the_configuration_promises_are_missed() {
    let open = |kind: &str, change: Value, remove: &str| {
        let directory = TempDir::new();
        let mut checkpoint = Checkpoint::seeded(config(kind));
        checkpoint.config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        checkpoint.tensors.remove(remove);
        checkpoint.write(directory.path(), 1);
        Safetensors::open(directory.path())
    };
    assert_error!(error(open("llama", json!({"attention_bias": true}), "")), MissingTensor, "blk.0.attn_q.bias");
    assert_error!(error(open("llama", json!({"mlp_bias": true}), "")), MissingTensor, "blk.0.ffn_gate.bias");
    let lost = open("qwen2", json!({}), "model.layers.1.self_attn.k_proj.bias");
    assert_error!(error(lost), MissingTensor, "blk.1.attn_k.bias");
    assert_error!(error(open("llama", json!({}), "lm_head.weight")), MissingTensor, "lm_head.weight", "tie_word");
    // The class's default is an own head.
    let absent = open("llama", json!({"tie_word_embeddings": null}), "lm_head.weight");
    assert_error!(error(absent), MissingTensor, "lm_head.weight");
    let tied = open("llama", json!({"tie_word_embeddings": true}), "").unwrap();
    assert!(tied.tensor("output.weight").is_none());
}

/// Whatever config.json says, the model is refused with a reason or runs.
fn refused_or_runs(directory: &TempDir, config: &Value) -> Option<String> {
    directory.write("config.json", config.to_string().as_bytes());
    static VOCABULARY: LazyLock<Memory> = LazyLock::new(|| TinyModel::llama().build().unwrap());
    let build = || {
        let source = with_vocabulary(Safetensors::open(directory.path())?, VOCABULARY.metadata());
        Engine::builder(source).threads(1).max_sequences(1).build()
    };
    match build() {
        Ok(mut engine) => {
            // Logits that are not finite are an error of the request.
            let _ = engine.score(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 1);
            None
        }
        Err(error) => Some(error.to_string()),
    }
}

#[test]
fn a_configuration_without_a_key_or_with_another_value_is_refused_or_runs() {
    let values = [
        json!(0),
        json!(1),
        json!(-1),
        json!(7),
        json!(u64::MAX),
        json!(1e300),
        json!(0.5),
        json!(true),
        json!(""),
        json!("\u{1b}x"),
        json!([]),
        json!(["full_attention", 3]),
        json!({}),
        json!({"rope_type": 5}),
        Value::Null,
    ];
    for kind in KINDS {
        let whole = config(kind);
        let directory = TempDir::new();
        Checkpoint::seeded(whole.clone()).write(directory.path(), 1);
        assert_eq!(refused_or_runs(&directory, &whole), None, "{kind}");
        let required = ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"];
        for key in whole.as_object().unwrap().keys() {
            let mut without = whole.clone();
            without.as_object_mut().unwrap().remove(key);
            let refused = refused_or_runs(&directory, &without);
            if required.contains(&key.as_str()) && (kind != "gemma3_text" || key == "model_type") {
                let text = refused.unwrap_or_else(|| panic!("{kind} runs without {key}"));
                assert!(text.contains(key.as_str()), "{kind} without {key}: {text}");
            }
            for value in &values {
                let mut other = whole.clone();
                other[key] = value.clone();
                if let Some(text) = refused_or_runs(&directory, &other) {
                    assert!(!text.contains('\u{1b}'), "{kind} with {key} {value}: {text}");
                }
            }
        }
        // Nested.
        for outer in ["rope_scaling", "rope_parameters"] {
            let Some(inner) = whole.get(outer).and_then(Value::as_object) else { continue };
            for key in inner.keys() {
                for value in &values {
                    let mut other = whole.clone();
                    other[outer][key] = value.clone();
                    let _ = refused_or_runs(&directory, &other);
                }
                let mut without = whole.clone();
                without[outer].as_object_mut().unwrap().remove(key);
                let _ = refused_or_runs(&directory, &without);
            }
        }
    }
}
