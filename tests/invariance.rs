//! A token's logits do not depend on how they were computed: alone or in a batch of 64, in prefill chunks of 1, 7, 32 or
//! 512 tokens, with 1, 2 or 3 threads, at every kernel level of this machine: for every type of weights and every format
//! of keys and values, bit for bit.

use candlewick::source::Dtype;
use candlewick::testing::TinyModel;
use candlewick::{Engine, EngineBuilder, Event, KernelLevel, KvFormat, Output, Request, SequenceId, TokenId};

/// Tokens, and the bits of the five largest log-probabilities at every position of prompt and answer.
type Essence = (Vec<TokenId>, Vec<u32>);

fn request(len: usize, start: usize) -> Request {
    let prompt: Vec<TokenId> = (0..len).map(|i| ((i * 31 + start * 17 + i * i % 7) % 200 + 20) as TokenId).collect();
    Request::tokens(prompt).max_tokens(6).ignore_eos(true).logprobs(5).prompt_logprobs(5)
}

fn essence(output: &Output) -> Essence {
    let answer = output.logprobs.iter().flatten();
    let prompt = output.prompt_logprobs.iter().flatten();
    let all = prompt.chain(answer).flat_map(|at| at.top.iter().chain([&at.chosen]));
    (output.token_ids.clone(), all.map(|token| token.log_prob.to_bits()).collect())
}

/// The first of many requests that run together.
fn first_of(engine: &mut Engine, requests: Vec<Request>) -> Essence {
    let ids: Vec<SequenceId> = requests.into_iter().map(|request| engine.submit(request).unwrap()).collect();
    let mut first = None;
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { id, output, error, .. } = event {
                assert!(error.is_none(), "{error:?}");
                first = (id == ids[0]).then(|| essence(&output)).or(first);
            }
        }
    }
    first.unwrap()
}

/// Compares all ways to compute one answer to a prompt of `len` tokens.
fn check(name: &str, model: &TinyModel, len: usize, set: impl Fn(EngineBuilder) -> EngineBuilder) {
    let build = |threads: usize, chunk: usize| {
        let builder = Engine::builder(model.build().unwrap()).threads(threads).step_tokens(chunk).max_sequences(64);
        set(builder.max_context(len + 8).kv_tokens(64 * (len + 40)))
    };
    let expected = essence(&build(1, 512).build().unwrap().complete(request(len, 0)).unwrap());
    assert_eq!(expected.0.len(), 6, "{name}");
    assert_eq!(expected.1.len(), (len - 1 + 6) * 6, "{name}: positions");
    for threads in 1..=3 {
        for chunk in [1, 7, 32, 512] {
            let alone = build(threads, chunk).build().unwrap().complete(request(len, 0)).unwrap();
            assert_eq!(essence(&alone), expected, "{name}: alone, {threads} threads, chunks of {chunk}");
        }
        // Beside short and long ones, of which some end early.
        let others = (1..64).map(|i| request(1 + i * 5 % len, i).max_tokens(1 + i % 6));
        let requests = std::iter::once(request(len, 0)).chain(others).collect();
        let chunk = [512, 32, 7][threads - 1];
        let together = first_of(&mut build(threads, chunk).build().unwrap(), requests);
        assert_eq!(together, expected, "{name}: in a batch of 64, {threads} threads, chunks of {chunk}");
    }
    for &level in KernelLevel::ALL.iter().filter(|level| level.is_available()) {
        let alone = build(2, 32).kernel_level(level).build().unwrap().complete(request(len, 0)).unwrap();
        assert_eq!(essence(&alone), expected, "{name}: {level}");
    }
}

#[test]
fn with_every_type_of_weights() {
    let types: Vec<Dtype> = Dtype::ALL.iter().copied().filter(|dtype| dtype.is_supported()).collect();
    assert!(types.len() >= 26, "types with kernels or held as BF16");
    for dtype in types {
        // One layer; Gemma's spec has norms behind the products too.
        let model = TinyModel { layers: 1, ..TinyModel::llama() }.with_dtype(dtype);
        check(dtype.name(), &model, 43, |builder| builder);
    }
}

#[test]
fn with_every_format_of_keys_and_values() {
    for &format in KvFormat::ALL {
        // Longer than a part of the attention's sums; windows too.
        let llama = TinyModel { layers: 1, kv_heads: 1, ..TinyModel::llama() }.with_dtype(Dtype::Q8_0);
        check(format.as_str(), &llama, 290, |builder| builder.kv_format(format));
        let gemma = TinyModel { layers: 2, window: Some(40), window_pattern: Some(2), ..TinyModel::gemma3() };
        check(format.as_str(), &gemma.with_dtype(Dtype::Q4_0), 90, |builder| builder.kv_format(format));
    }
}
