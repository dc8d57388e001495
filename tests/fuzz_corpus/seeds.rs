//! The seeds of the corpus: small, valid inputs of every kind, for the fuzzer to damage.

use candlewick::source::{Array, Dtype, Memory};
use candlewick::testing::{safetensors_bytes, GgufWriter};

/// A target, a file name and its bytes.
pub(crate) type Seed = (&'static str, String, Vec<u8>);

/// All of them.
pub(crate) fn all() -> Vec<Seed> {
    let mut all = Vec::new();
    let mut add = |target: &'static str, seeds: Vec<Vec<u8>>| {
        let named = |(number, bytes)| (target, format!("seed-{number:02}"), bytes);
        all.extend(seeds.into_iter().enumerate().map(named));
    };
    add("gguf", gguf());
    add("safetensors", safetensors());
    add("tokenizer", tokenizers());
    add("chat", chats());
    add("stop", stops());
    all
}

fn model(tensors: &[(&str, Dtype, &[usize])]) -> Memory {
    let mut source = Memory::new("seed");
    source.set("general.architecture", "llama");
    source.set("llama.block_count", 1u32);
    source.set("llama.rope.freq_base", 10_000f32);
    for &(name, dtype, shape) in tensors {
        let values = shape.iter().product();
        let size = dtype.size_in_bytes(values).expect("a known type");
        let bytes = (0..size).map(|at| (at * 31 % 251) as u8).collect();
        source.insert(name, dtype, shape, bytes).expect("a shape that fits its type");
    }
    source
}

fn gguf() -> Vec<Vec<u8>> {
    let bytes = |writer: GgufWriter, source: &Memory| writer.to_bytes(source).expect("memory can be read");
    let plain = || model(&[("output_norm.weight", Dtype::F32, &[4])]);
    let mut seeds = vec![
        bytes(GgufWriter::new(), &model(&[])),
        bytes(GgufWriter::new(), &plain()),
        bytes(GgufWriter::new().version(2), &plain()),
        bytes(GgufWriter::new().alignment(64), &model(&[("a", Dtype::F32, &[1]), ("b", Dtype::F16, &[3])])),
        bytes(GgufWriter::new(), &model(&[("a", Dtype::Q4_0, &[2, 32]), ("b", Dtype::Q8_0, &[1, 1, 2, 32])])),
        bytes(GgufWriter::new(), &model(&[("k", Dtype::Q4_K, &[256]), ("l", Dtype::Q6_K, &[1, 256])])),
    ];
    let mut keys = plain();
    keys.set("tokenizer.ggml.tokens", vec!["a".to_string(), "日本".to_string(), String::new()]);
    keys.set("tokenizer.ggml.scores", vec![0.5f32, -1.0, f32::MAX]);
    keys.set("tokenizer.ggml.token_type", vec![1i32, 3, 6]);
    keys.set("flags", vec![true, false]);
    keys.set("big", u64::MAX);
    keys.set("small", i64::MIN);
    keys.set("pi", std::f64::consts::PI);
    keys.set("nested", Array::Array(vec![Array::U8(vec![1, 2]), Array::Array(vec![Array::I16(vec![-1])])]));
    keys.set("split.no", 0u32);
    keys.set("split.count", 1u32);
    seeds.push(bytes(GgufWriter::new(), &keys));
    let whole = bytes(GgufWriter::new(), &keys);
    // Cut, and with a type that nobody knows.
    seeds.push(whole[..whole.len() - 5].to_vec());
    let mut strange = bytes(GgufWriter::new(), &model(&[("t", Dtype::F32, &[1])]));
    let at = strange.windows(5).position(|bytes| bytes == [b't', 1, 0, 0, 0]).expect("the tensor's name") + 13;
    strange[at] = 200;
    seeds.push(strange);
    seeds
}

/// A byte that says which part follows: 0 config.json, 1 the index, 2 the weights, 3 their header.
fn safetensors() -> Vec<Vec<u8>> {
    let part = |number: u8, bytes: &[u8]| [&[number], bytes].concat();
    let weights = safetensors_bytes(&[
        ("model.embed_tokens.weight", "BF16", &[2, 2], &[1; 8]),
        ("model.layers.0.mlp.up_proj.weight", "F16", &[1, 2], &[2; 4]),
        ("model.norm.weight", "F32", &[1], &[3; 4]),
        ("other", "I64", &[1], &[4; 8]),
        ("empty", "F32", &[0, 3], &[]),
    ]);
    let header_end = 8 + u64::from_le_bytes(weights[..8].try_into().expect("eight bytes")) as usize;
    let header = [&[24], &weights[8..header_end]].concat();
    let llama = br#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
"tie_word_embeddings": true, "rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}, "eos_token_id": [1, 2]}"#;
    let yarn = br#"{"model_type": "qwen3", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6, "vocab_size": 512, "max_position_embeddings": 64,
"rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_theta": 1e6, "hidden_act": "silu",
"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}"#;
    let gemma = br#"{"model_type": "gemma3_text", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 7,
"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 512, "max_position_embeddings": 64,
"rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 10000.0, "sliding_window": 16, "sliding_window_pattern": 6,
"query_pre_attn_scalar": 4, "hidden_activation": "gelu_pytorch_tanh"}"#;
    let index = br#"{"metadata": {"total_size": 16}, "weight_map": {"model.norm.weight": "a.safetensors",
"model.layers.0.input_layernorm.weight": "b.safetensors"}}"#;
    let one = br#"{"weight_map": {"model.norm.weight": "a.safetensors"}}"#;
    let outside = br#"{"weight_map": {"model.norm.weight": "../a.safetensors"}}"#;
    vec![
        part(0, llama),
        part(0, yarn),
        part(0, gemma),
        part(1, index),
        part(1, one),
        part(1, outside),
        part(2, &weights),
        part(2, &weights[..weights.len() - 3]),
        part(3, &header),
    ]
}

/// Writes what `properties::Input` reads.
#[derive(Default)]
struct Output(Vec<u8>);

impl Output {
    fn byte(mut self, byte: u8) -> Output {
        self.0.push(byte);
        self
    }

    fn bytes(self, bytes: &[u8]) -> Output {
        bytes.iter().fold(self, |out, &byte| out.byte(byte))
    }

    fn text(self, text: &str) -> Output {
        self.byte(text.len() as u8).bytes(text.as_bytes())
    }

    fn texts(self, texts: &[&str]) -> Output {
        texts.iter().fold(self.byte(texts.len() as u8), |out, text| out.text(text))
    }
}

struct Vocabulary<'a> {
    model: u8,
    pre: u8,
    is_complete: bool,
    tokens: &'a [&'a str],
    types: Option<&'a [u8]>,
    scores: Option<&'a [u8]>,
    merges: &'a [&'a str],
    roles: [u8; 6],
    flags: [u8; 3],
    text: &'a str,
}

impl Vocabulary<'_> {
    fn write(&self) -> Vec<u8> {
        let mut out =
            Output::default().byte(self.model).byte(self.pre).byte(self.is_complete.into()).texts(self.tokens);
        for (values, always) in [(self.types, false), (self.scores, self.model == 1)] {
            if !always {
                out = out.byte(values.is_some().into());
            }
            if let Some(values) = values {
                out = out.byte(0).byte(0).bytes(values);
            }
        }
        out = out.byte(self.merges.len() as u8);
        out = self.merges.iter().fold(out, |out, merge| out.byte(0).text(merge));
        out.bytes(&self.roles).bytes(&self.flags).byte(0).bytes(self.text.as_bytes()).0
    }
}

fn tokenizers() -> Vec<Vec<u8>> {
    let plain = Vocabulary {
        model: 0,
        pre: 1,
        is_complete: true,
        tokens: &["he", "ll", "hell", "<|end|>", "<tool>"],
        types: Some(&[1, 1, 1, 3, 4]),
        scores: None,
        merges: &["h e", "l l", "he ll"],
        roles: [0, 4, 0, 0, 0, 0],
        flags: [0, 1, 0],
        text: "hello <tool> world\n\n 123 <|end|> Grüße 你好",
    };
    let pieces = Vocabulary {
        model: 1,
        tokens: &["<unk>", "<s>", "</s>", "\u{2581}", "h", "e", "he", "\u{2581}he", "<x>"],
        types: Some(&[2, 3, 3, 1, 1, 1, 1, 1, 4]),
        scores: Some(&[0, 0, 0, 1, 2, 3, 4, 5, 0]),
        merges: &[],
        roles: [2, 3, 1, 0, 0, 0],
        flags: [1, 2, 1],
        text: "he he<x> he </s> é",
        ..plain
    };
    let mut seeds = vec![plain.write(), pieces.write()];
    // The rules that split text in different ways.
    for pre in [0, 2, 3, 4, 5, 6, 7, 8, 10, 12] {
        seeds.push(Vocabulary { pre, text: "I'LL we've 1234567 \r\n\t x_y.z  一二 ไทย éÀ", ..plain }.write());
    }
    seeds.push(
        Vocabulary {
            tokens: &["h", "e", "he", "\u{2581}he", "l", "\u{2581}"],
            types: Some(&[1; 6]),
            scores: Some(&[1, 2, 4, 5, 1, 0]),
            roles: [0; 6],
            flags: [0; 3],
            text: " he hello  é\n",
            ..pieces
        }
        .write(),
    );
    // Without bytes: what the vocabulary lacks is unknown or an error.
    let few = &["h", "e", "l", "he", "ll", "?"];
    seeds.push(Vocabulary { is_complete: false, tokens: few, types: None, ..plain }.write());
    seeds.push(
        Vocabulary {
            is_complete: false,
            tokens: &["?", "h", "e", "he"],
            types: Some(&[1, 1, 1, 1]),
            scores: Some(&[0, 1, 2, 3]),
            roles: [0, 0, 1, 0, 0, 0],
            ..pieces
        }
        .write(),
    );
    seeds.push(Vocabulary { flags: [2, 2, 2], text: " leading", ..pieces }.write());
    seeds.push(Vocabulary { model: 2, ..plain }.write());
    seeds.push(Vocabulary { types: None, scores: Some(&[9, 255, 3, 4, 1]), ..plain }.write());
    seeds
}

/// A question, an answer and a tool's result, then the template.
fn chat(template: &str) -> Vec<u8> {
    let message = |out: Output, role: u8, content: &str| out.byte(role).text(content).byte(3);
    let mut out = Output::default().byte(3);
    out = message(out, 0, "Hi <|im_end|> there");
    out = message(out, 1, "Hello!");
    out = out.byte(3).text("{\"a\": 1}").byte(0).text("id").text("k").byte(7);
    out.byte(1).text("f").byte(1).bytes(template.as_bytes()).0
}

fn chats() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = [
        include_str!("../data/chat/turns.jinja"),
        include_str!("../data/chat/tagged_roles.jinja"),
        include_str!("../data/chat/thinking.jinja"),
        include_str!("../data/chat/flags.jinja"),
        include_str!("../data/chat/header_tools.jinja"),
    ]
    .map(chat)
    .to_vec();
    let small = [
        "{% for m in messages %}{{ m.role ~ ': ' ~ m.content | trim }}\n{% endfor %}",
        "{%- if tools %}{{ tools | tojson(indent=2) }}{% endif -%}{{ bos_token }}{{ messages[-1]['content'][::-1] }}",
        "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(9) }}",
        "{% set ns = namespace(n=0) %}{% for i in range(20) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
        "{{ raise_exception('no ' + messages[0].role) }}",
        "{% for k, v in messages[0] | items %}{{ loop.index0 }}{{ k }}={{ v }}{% if loop.last %}{% break %}{% endif %}{% endfor %}",
        "{{ messages | map(attribute='role') | join(', ') | upper }}{{ strftime_now('%d %b %Y') }}",
        "{{ 'a,b'.split(',')[1].replace('b', 'c').strip() }}{{ messages[0].content.startswith('Hi') }}",
        "{% set a = [1, 2] %}{% set b = [a, a] %}{{ b + b }}{{ {'k': b} | tojson }}{{ 3 ** 2 // 2 % 5 }}",
        "{# note #}{% raw %}{{ x }}{% endraw %}{{ undefined_name is defined }}{{ messages | length * 'ab' }}",
    ];
    seeds.extend(small.map(chat));
    seeds
}

fn stops() -> Vec<Vec<u8>> {
    let seed = |stops: &[&str], pieces: &[&str]| {
        pieces.iter().fold(Output::default().texts(stops), |out, piece| out.text(piece)).0
    };
    vec![
        seed(&[], &["hello", " world"]),
        seed(&["END"], &["the E", "N", "D", "after"]),
        seed(&["abc", "bc", "c"], &["xa", "ab", "c"]),
        seed(&["\n\nUser:", "</s>"], &["a\n", "\nUse", "r", "</", "s>"]),
        seed(&["né", "日本"], &["nè", "n", "é日", "本"]),
        seed(&["aaab", "aaa"], &["aa", "a", "b"]),
        seed(&["abab", "babb"], &["aba", "bb", "abab"]),
        seed(&["x", "x", "yx"], &["y", "x"]),
        seed(&["no", ""], &["never"]),
    ]
}
