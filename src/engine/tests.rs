//! The engine on tiny models: results do not depend on batch, chunks, threads or neighbours.

use super::*;
use crate::sample::{Chain, SampleContext, SamplerSession, SamplingParams};
use crate::testing::TinyModel;
use crate::types::TokenId;
use crate::{Error, KernelLevel, Precision, RequestError, ResourceError};

pub(super) fn engine(model: &TinyModel, set: impl Fn(EngineBuilder) -> EngineBuilder) -> Engine {
    set(Engine::builder(model.build().unwrap()).threads(1)).build().unwrap()
}

pub(super) fn models() -> Vec<TinyModel> {
    vec![TinyModel::llama(), TinyModel::qwen2(), TinyModel::qwen3(), TinyModel::gemma3()]
}

/// Token prompts of mixed lengths, below every tiny vocabulary's size.
pub(super) fn prompts() -> Vec<Vec<TokenId>> {
    let prompt = |seed: usize, len: usize| (0..len).map(|i| ((i * 37 + seed * 101) % 200 + 20) as TokenId).collect();
    [(0, 1), (1, 5), (2, 33), (3, 70), (4, 40), (5, 2)].map(|(seed, len)| prompt(seed, len)).to_vec()
}

pub(super) fn request(prompt: &[TokenId]) -> Request {
    Request::tokens(prompt).max_tokens(12).ignore_eos(true).logprobs(3)
}

pub(super) fn sampled(prompt: &[TokenId], seed: u64) -> Request {
    request(prompt).temperature(0.9).top_k(40).top_p(0.95).repetition_penalty(1.1).seed(seed)
}

/// Runs all requests together, checking the cache after every step.
pub(super) fn together(engine: &mut Engine, requests: Vec<Request>) -> Vec<Output> {
    let ids: Vec<SequenceId> = requests.into_iter().map(|r| engine.submit(r).unwrap()).collect();
    let mut outputs: Vec<Option<Output>> = ids.iter().map(|_| None).collect();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { id, output, error, .. } = event {
                assert!(error.is_none(), "{error:?}");
                outputs[ids.iter().position(|i| *i == id).unwrap()] = Some(output);
            }
        }
        engine.check_integrity().unwrap();
    }
    assert_eq!(engine.kv_blocks_in_use(), 0);
    outputs.into_iter().map(Option::unwrap).collect()
}

/// What must be equal: tokens, text and the bits of the log-probabilities.
pub(super) fn essence(output: &Output) -> (Vec<TokenId>, String, Vec<u32>, FinishReason) {
    let bits =
        output.logprobs.iter().flatten().flat_map(|l| {
            std::iter::once(l.chosen.log_prob.to_bits()).chain(l.top.iter().map(|t| t.log_prob.to_bits()))
        });
    (output.token_ids.clone(), output.text.clone(), bits.collect(), output.finish_reason)
}

#[test]
fn a_batch_of_mixed_lengths_equals_each_request_alone() {
    for model in models() {
        let requests = || prompts().iter().enumerate().map(|(i, p)| sampled(p, i as u64)).collect::<Vec<_>>();
        let mut alone = engine(&model, |b| b);
        let expected: Vec<_> = requests().into_iter().map(|r| essence(&alone.complete(r).unwrap())).collect();
        let builds: [&dyn Fn(EngineBuilder) -> EngineBuilder; 5] = [
            &|b| b,
            &|b| b.step_tokens(1),
            &|b| b.step_tokens(7).max_sequences(3),
            &|b| b.step_tokens(33).threads(2),
            &|b| b.kv_tokens(160).max_sequences(4),
        ];
        for build in builds {
            let outputs = together(&mut engine(&model, build), requests());
            assert_eq!(outputs.iter().map(essence).collect::<Vec<_>>(), expected);
        }
    }
}

#[test]
fn kernel_levels_agree() {
    for model in models() {
        let run = |level| essence(&engine(&model, |b| b.kernel_level(level)).complete(request(&prompts()[3])).unwrap());
        let expected = run(KernelLevel::Scalar);
        for level in KernelLevel::available() {
            assert_eq!(run(level), expected, "{level}");
        }
    }
}

#[test]
fn streamed_equals_collected_and_the_seed_decides() {
    let mut engine = engine(&TinyModel::llama(), |b| b);
    let whole = engine.complete(sampled(&prompts()[2], 7)).unwrap();
    let mut generation = engine.generate(sampled(&prompts()[2], 7)).unwrap();
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for piece in &mut generation {
        let piece = piece.unwrap();
        text.push_str(&piece.text);
        tokens.extend(piece.token);
    }
    assert_eq!((&text, &tokens), (&whole.text, &whole.token_ids));
    assert_eq!(essence(generation.output().unwrap()), essence(&whole));
    drop(generation);
    let other = engine.complete(sampled(&prompts()[2], 8)).unwrap();
    assert_ne!(other.token_ids, whole.token_ids);
    let unseeded = engine.complete(request(&prompts()[2]).temperature(1.0)).unwrap();
    let again = engine.complete(request(&prompts()[2]).temperature(1.0).seed(unseeded.seed)).unwrap();
    assert_eq!(essence(&unseeded), essence(&again));
}

#[test]
fn two_engines_do_not_disturb_each_other() {
    let (a, b) = (TinyModel::llama(), TinyModel::gemma3());
    let mut first = engine(&a, |b| b.threads(2));
    let pool = first.pool();
    let mut second = engine(&b, |b| b.pool(pool.clone()));
    let alone_a = essence(&engine(&a, |b| b).complete(request(&prompts()[3])).unwrap());
    let alone_b = essence(&engine(&b, |b| b).complete(request(&prompts()[4])).unwrap());
    // Interleaved on one thread.
    let (ida, idb) = (first.submit(request(&prompts()[3])).unwrap(), second.submit(request(&prompts()[4])).unwrap());
    let mut found = (None, None);
    while found.0.is_none() || found.1.is_none() {
        for event in first.step().unwrap() {
            if let Event::Finished { id, output, .. } = event {
                assert_eq!(id, ida);
                found.0 = Some(essence(&output));
            }
        }
        for event in second.step().unwrap() {
            if let Event::Finished { id, output, .. } = event {
                assert_eq!(id, idb);
                found.1 = Some(essence(&output));
            }
        }
    }
    assert_eq!((found.0.unwrap(), found.1.unwrap()), (alone_a.clone(), alone_b.clone()));
    // At the same time on two threads that share a pool.
    let thread = std::thread::spawn(move || essence(&first.complete(request(&prompts()[3])).unwrap()));
    assert_eq!(essence(&second.complete(request(&prompts()[4])).unwrap()), alone_b);
    assert_eq!(thread.join().unwrap(), alone_a);
}

#[test]
fn limits_end_an_answer() {
    let model = TinyModel::llama();
    let mut engine = engine(&model, |b| b.max_context(40));
    let prompt = &prompts()[2];
    let full = engine.complete(Request::tokens(prompt.clone()).ignore_eos(true)).unwrap();
    assert_eq!((full.token_ids.len(), full.finish_reason), (40 - prompt.len(), FinishReason::Length));
    assert_eq!(full.usage.prompt_tokens, prompt.len());
    let none = engine.complete(Request::tokens(prompt.clone()).max_tokens(0)).unwrap();
    assert_eq!((none.token_ids.len(), none.finish_reason), (0, FinishReason::Length));
    // A stop token ends and is reported, without text.
    let third = full.token_ids[2];
    let stopped = engine.complete(Request::tokens(prompt.clone()).ignore_eos(true).stop_token(third)).unwrap();
    let at = full.token_ids.iter().position(|t| *t == third).unwrap();
    assert_eq!((stopped.token_ids, stopped.finish_reason), (full.token_ids[..=at].to_vec(), FinishReason::Stop));
    // A stop string ends before its text.
    let stop: String = full.text.chars().skip(1).take(2).collect();
    assert_eq!(stop.chars().count(), 2, "{:?}", full.text);
    let before = &full.text[..full.text.find(&stop).unwrap()];
    let stopped = engine.complete(Request::tokens(prompt.clone()).ignore_eos(true).stop(&stop)).unwrap();
    assert_eq!((stopped.text.as_str(), stopped.finish_reason), (before, FinishReason::Stop));
    assert!(stopped.token_ids.len() < full.token_ids.len());
}

#[test]
fn impossible_requests_are_refused_at_submit() {
    let model = TinyModel::llama();
    let mut engine = engine(&model, |b| b.max_context(64).kv_tokens(64));
    let refused = |engine: &mut Engine, request| match engine.submit(request) {
        Err(Error::Request(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&mut engine, Request::tokens(vec![])), RequestError::EmptyPrompt);
    assert_eq!(
        refused(&mut engine, Request::tokens(vec![1; 64])),
        RequestError::ContextExceeded { prompt: 64, context: 64 }
    );
    assert!(matches!(
        refused(&mut engine, Request::tokens(vec![1_000_000])),
        RequestError::TokenOutOfRange { token: 1_000_000, .. }
    ));
    for bad in [
        Request::tokens(vec![1]).temperature(-1.0),
        Request::tokens(vec![1]).temperature(f32::NAN),
        Request::tokens(vec![1]).top_p(0.0),
        Request::tokens(vec![1]).top_p(1.5),
        Request::tokens(vec![1]).min_p(-0.1),
        Request::tokens(vec![1]).repetition_penalty(0.0),
        Request::tokens(vec![1]).logprobs(1 << 30),
        Request::tokens(vec![1]).stop(""),
    ] {
        assert!(matches!(refused(&mut engine, bad), RequestError::InvalidParameter { .. }));
    }
    assert!(engine.is_idle());
    let mut small = self::engine(&model, |b| b.kv_tokens(64));
    assert!(matches!(
        small.submit(Request::tokens(vec![1; 100]).max_tokens(10)),
        Err(Error::Resources(ResourceError::CacheTooSmall { .. }))
    ));
}

#[test]
fn cancelling_frees_the_cache_and_leaves_the_others() {
    let model = TinyModel::qwen2();
    let expected = essence(&engine(&model, |b| b).complete(request(&prompts()[3])).unwrap());
    let mut engine = engine(&model, |b| b.max_sequences(2));
    let kept = engine.submit(request(&prompts()[3])).unwrap();
    let running = engine.submit(request(&prompts()[2])).unwrap();
    let waiting = engine.submit(request(&prompts()[4])).unwrap();
    for _ in 0..3 {
        engine.step().unwrap();
    }
    assert!(engine.cancel(running) && engine.cancel(waiting) && !engine.cancel(running));
    engine.check_integrity().unwrap();
    let mut ends = Vec::new();
    let mut output = None;
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { id, output: o, .. } = event {
                ends.push((id, o.finish_reason));
                output = (id == kept).then_some(o).or(output);
            }
        }
    }
    assert!(ends.contains(&(running, FinishReason::Cancelled)) && ends.contains(&(waiting, FinishReason::Cancelled)));
    assert_eq!(essence(&output.unwrap()), expected);
    // Dropping a generation cancels it.
    let mut generation = engine.generate(request(&prompts()[2])).unwrap();
    generation.next();
    drop(generation);
    assert!(engine.is_idle() && engine.kv_blocks_in_use() == 0);
}

#[test]
fn events_of_other_requests_survive_a_generation() {
    let mut engine = engine(&TinyModel::llama(), |b| b);
    let other = engine.submit(request(&prompts()[1])).unwrap();
    engine.complete(request(&prompts()[2]).max_tokens(30)).unwrap();
    let events = engine.step().unwrap();
    let tokens = events.iter().filter(|e| matches!(e, Event::Token { id, .. } if *id == other)).count();
    assert_eq!(tokens, 12);
    assert!(events.iter().any(|e| matches!(e, Event::Finished { id, .. } if *id == other)));
}

#[derive(Debug)]
struct Broken(&'static str);

impl Sampler for Broken {
    fn name(&self) -> &str {
        "broken"
    }
    fn open(&self, _: &SamplingParams) -> Result<Box<dyn SamplerSession>> {
        Ok(Box::new(Broken(self.0)))
    }
}

impl SamplerSession for Broken {
    fn distribution(&mut self, context: &SampleContext<'_>, logits: &mut [f32], out: &mut Distribution) -> Result<()> {
        out.clear();
        match self.0 {
            "panics" if context.generated.len() == 2 => panic!("by design"),
            "masked" => out.push(logits.iter().position(|l| *l == f32::NEG_INFINITY).unwrap_or(0) as TokenId, 1.0),
            "halves" => out.push(1, 0.5),
            _ => out.push(1, 1.0),
        }
        Ok(())
    }
    fn observe(&mut self, _: TokenId) {}
    fn can_fork(&self) -> bool {
        false
    }
    fn fork(&self) -> Option<Box<dyn SamplerSession>> {
        None
    }
}

#[test]
fn a_broken_sampler_ends_its_request_only() {
    let model = TinyModel::llama();
    let expected = essence(&engine(&model, |b| b).complete(request(&prompts()[3])).unwrap());
    let mut engine = engine(&model, |b| b);
    Arc::make_mut(&mut engine.legal).remove(7);
    let bad = engine.submit(request(&prompts()[2]).sampler(Broken("panics"))).unwrap();
    let good = engine.submit(request(&prompts()[3])).unwrap();
    let mut seen = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { id, output, error, .. } = event {
                seen.push((id, essence(&output), error.map(|e| e.to_string())));
            }
        }
        engine.check_integrity().unwrap();
    }
    let of = |id| seen.iter().find(|(i, ..)| *i == id).unwrap();
    assert_eq!(of(bad).1 .0, [1, 1]);
    assert!(of(bad).2.as_ref().unwrap().contains("broken") && of(bad).2.as_ref().unwrap().contains("by design"));
    assert_eq!(of(good).1, expected);
    for kind in ["masked", "halves"] {
        let error = engine.complete(request(&prompts()[1]).sampler(Broken(kind))).unwrap_err();
        assert!(matches!(error, Error::Request(RequestError::InvalidDistribution { .. })), "{kind}: {error}");
    }
}

#[test]
fn scores_equal_the_log_probabilities_of_generation() {
    for model in models() {
        let mut engine = engine(&model, |b| b.step_tokens(9));
        let output = engine.complete(request(&prompts()[3])).unwrap();
        let all: Vec<TokenId> = output.prompt_ids.iter().chain(&output.token_ids).copied().collect();
        let score = engine.score(&all, output.prompt_ids.len()).unwrap();
        let generated: Vec<f32> = output.logprobs.iter().flatten().map(|l| l.chosen.log_prob).collect();
        assert_eq!(score.log_probs, generated);
        assert_eq!(score.last_logits.len(), engine.vocab_size());
        let whole = engine.score(&all, 0).unwrap();
        assert_eq!(whole.log_probs.len(), all.len() - 1);
        assert_eq!(whole.log_probs[output.prompt_ids.len() - 1..], score.log_probs);
        assert!(engine.score(&all[..1], 0).unwrap().log_probs.is_empty());
        engine.check_integrity().unwrap();
    }
}

#[test]
fn a_sliding_window_bounds_the_cache_and_changes_the_answer() {
    let model = TinyModel::gemma3();
    let prompt: Vec<TokenId> = (0..100).map(|i| (i * 31 % 200 + 20) as TokenId).collect();
    let run = |window: Option<usize>| {
        let model = TinyModel { window, ..model.clone() };
        let mut engine = engine(&model, |b| b.step_tokens(16).precision(Precision::F32));
        let id = engine.submit(request(&prompt).max_tokens(20)).unwrap();
        let (mut most, mut tokens) = (0, Vec::new());
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Event::Finished { id: ended, output, .. } = event {
                    assert_eq!(ended, id);
                    tokens = output.token_ids;
                }
            }
            most = most.max(engine.kv_blocks_in_use());
        }
        (most, tokens)
    };
    let (all_blocks, all) = run(None);
    let (few_blocks, few) = run(Some(8));
    assert!(few_blocks < all_blocks && few != all, "{few_blocks} {all_blocks}");
    assert_eq!(run(Some(1000)).1.len(), 20);
}

#[test]
fn options_out_of_range_are_refused() {
    let build = |set: &dyn Fn(EngineBuilder) -> EngineBuilder| {
        let error = set(Engine::builder(TinyModel::llama().build().unwrap())).build().unwrap_err();
        assert!(matches!(error, Error::Build(_)), "{error}");
        error.to_string()
    };
    assert!(build(&|b| b.threads(0)).contains("threads"));
    assert!(build(&|b| b.max_context(0)).contains("max_context"));
    assert!(build(&|b| b.max_context(1 << 40)).contains("max_context"));
    assert!(build(&|b| b.max_sequences(0)).contains("max_sequences"));
    assert!(build(&|b| b.step_tokens(0)).contains("step_tokens"));
    assert!(build(&|b| b.kv_tokens(1)).contains("kv_tokens"));
    if let Some(level) = KernelLevel::ALL.iter().find(|l| !l.is_available()) {
        assert!(build(&|b| b.kernel_level(*level)).contains(level.as_str()));
    }
    let mut calls = 0;
    let cancelled = Engine::builder(TinyModel::llama().build().unwrap())
        .progress(move |done, total| {
            assert!(done <= total);
            calls += 1;
            calls < 3
        })
        .build();
    assert!(cancelled.unwrap_err().to_string().contains("cancelled"));
    // An error of the tokenizer comes first, also where it is built beside the weights.
    for threads in [1, 2] {
        let mut source = TinyModel::llama().build().unwrap();
        source.unset("tokenizer.ggml.model").unwrap();
        source.remove("output_norm.weight").unwrap();
        let error = Engine::builder(source).threads(threads).build().unwrap_err();
        assert!(error.to_string().contains("tokenizer.ggml.model"), "{error}");
    }
    assert!(engine(&TinyModel::llama(), |b| b.sampler(Chain::new())).complete(request(&[5])).is_ok());
}

/// A clock that a test sets.
#[derive(Clone, Debug, Default)]
struct Manual(Arc<std::sync::Mutex<std::time::Duration>>);

impl Clock for Manual {
    fn elapsed(&self) -> std::time::Duration {
        *self.0.lock().unwrap()
    }
    fn date(&self) -> std::time::SystemTime {
        std::time::SystemTime::UNIX_EPOCH
    }
}

#[test]
fn time_ends_requests_and_fills_the_bill_but_changes_no_token() {
    use std::time::Duration;
    let model = TinyModel::llama();
    let expected = engine(&model, |b| b).complete(request(&prompts()[2])).unwrap();
    let clock = Manual::default();
    let mut engine = engine(&model, |b| b.clock(clock.clone()).step_tokens(16).max_sequences(1));
    let id = engine.submit(request(&prompts()[2])).unwrap();
    let late = engine.submit(request(&prompts()[1]).deadline(Duration::from_secs(5))).unwrap();
    let mut outputs = Vec::new();
    while !engine.is_idle() {
        *clock.0.lock().unwrap() += Duration::from_secs(1);
        for event in engine.step().unwrap() {
            if let Event::Finished { id, output, .. } = event {
                outputs.push((id, output));
            }
        }
    }
    let of = |id| &outputs.iter().find(|(i, _)| *i == id).unwrap().1;
    assert_eq!((of(late).finish_reason, of(late).token_ids.len()), (FinishReason::Deadline, 0));
    assert_eq!(essence(of(id)), essence(&expected));
    // 33 tokens in steps of 16 take three steps, and the clock moves once before each.
    let usage = &of(id).usage;
    assert_eq!((usage.ttft, usage.prefill), (Duration::from_secs(3), Duration::from_secs(2)));
    assert_eq!((usage.decode, usage.completion_tokens), (Duration::from_secs(11), 12));
}

#[test]
fn a_dropped_generation_leaves_no_event() {
    let mut engine = engine(&TinyModel::llama(), |b| b);
    drop(engine.generate(Request::tokens(vec![5]).max_tokens(0)).unwrap());
    assert!(engine.is_idle());
}
