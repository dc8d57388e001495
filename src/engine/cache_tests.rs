//! Cache policies through the engine: same results however the work is divided, bounded memory, typed errors.

use super::*;
use crate::cache::{Acts, CacheBounds, CachePolicy, CacheSession, Full, Stateless, Visibility, Window};
use crate::testing::TinyModel;
use crate::TokenId;
use crate::{BuildError, Error, Precision, RequestError};

/// Keeps the last `recent` and one position in `every`, by dropping at every `interval` positions.
#[derive(Clone, Debug)]
struct Thin {
    interval: usize,
    recent: usize,
    every: usize,
    panics: bool,
}

const THIN: Thin = Thin { interval: 16, recent: 24, every: 3, panics: false };

impl CachePolicy for Thin {
    fn name(&self) -> &str {
        "thin"
    }
    fn visibility(&self) -> Visibility {
        Visibility::All
    }
    fn acts(&self) -> Acts {
        Acts::Every(self.interval)
    }
    fn bounds(&self) -> CacheBounds {
        CacheBounds::NONE
    }
    fn recomputable(&self) -> bool {
        true
    }
    fn open(&self) -> Box<dyn CacheSession> {
        let Thin { recent, every, panics, .. } = *self;
        Box::new(Stateless::new(move |view, dropped| {
            assert!(!panics, "by design");
            dropped.extend(view.live().filter(|p| p % every != 0 && p + recent < view.position()));
        }))
    }
}

fn engine(model: &TinyModel, set: impl Fn(EngineBuilder) -> EngineBuilder) -> Engine {
    set(Engine::builder(model.build().unwrap()).threads(1)).build().unwrap()
}

fn prompt(seed: usize, len: usize) -> Vec<TokenId> {
    (0..len).map(|i| ((i * 37 + i / 7 + seed * 101) % 200 + 20) as TokenId).collect()
}

fn requests() -> Vec<Request> {
    let request = |(seed, len): (usize, usize)| {
        let request = Request::tokens(prompt(seed, len)).max_tokens(25).ignore_eos(true).logprobs(2);
        request.temperature(0.8).seed(seed as u64)
    };
    [(1, 120), (2, 1), (3, 33), (4, 300), (5, 63)].map(request).to_vec()
}

/// Tokens and the bits of the log-probabilities.
fn essence(output: &Output) -> (Vec<TokenId>, Vec<u32>) {
    let all = output.logprobs.iter().flatten();
    let bits = all.flat_map(|l| l.top.iter().chain([&l.chosen]).map(|t| t.log_prob.to_bits()));
    (output.token_ids.clone(), bits.collect())
}

/// Runs all requests together, checking the cache after every step.
fn together(engine: &mut Engine, requests: Vec<Request>) -> Vec<(Vec<TokenId>, Vec<u32>)> {
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
    outputs.iter().map(|o| essence(o.as_ref().unwrap())).collect()
}

fn models() -> Vec<TinyModel> {
    let odd = TinyModel { heads: 3, kv_heads: 1, head_dim: 10, hidden: 40, ..TinyModel::llama() };
    // Layers whose own window is larger than the policy's, and smaller.
    let wide = TinyModel { window: Some(200), ..TinyModel::gemma3() };
    vec![TinyModel::llama(), odd, TinyModel::gemma3(), wide]
}

fn divided_any_way(policy: impl CachePolicy + Clone) {
    for model in models() {
        let mut alone = engine(&model, |b| b.cache_policy(policy.clone()));
        let expected: Vec<_> = requests().into_iter().map(|r| essence(&alone.complete(r).unwrap())).collect();
        let mut full = engine(&model, |b| b);
        let unlimited: Vec<_> = requests().into_iter().map(|r| essence(&full.complete(r).unwrap())).collect();
        assert_ne!(expected, unlimited, "{policy:?} drops nothing");
        assert_eq!(expected[1], unlimited[1], "{policy:?} drops something too early");
        for (rows, threads) in [(1, 1), (7, 2), (32, 1), (256, 2)] {
            let set = |b: EngineBuilder| b.cache_policy(policy.clone()).step_tokens(rows).threads(threads);
            let found = together(&mut engine(&model, set), requests());
            assert_eq!(found, expected, "{policy:?}, {rows} rows, {threads} threads");
        }
    }
}

#[test]
fn a_window_gives_the_same_however_the_work_is_divided() {
    divided_any_way(Window { size: 30, sinks: 3 });
}

#[test]
fn a_large_window_without_sinks_gives_the_same_however_the_work_is_divided() {
    divided_any_way(Window { size: 65, sinks: 0 });
}

#[test]
fn dropping_gives_the_same_however_the_work_is_divided() {
    divided_any_way(Thin { recent: 26, ..THIN });
}

#[test]
fn a_window_that_holds_everything_is_full_attention() {
    for model in models() {
        let expected = together(&mut engine(&model, |b| b.cache_policy(Full)), requests());
        let policy = Window { size: 300, sinks: 25 };
        assert_eq!(together(&mut engine(&model, |b| b.cache_policy(policy)), requests()), expected);
    }
}

#[test]
fn dropping_all_but_the_newest_equals_a_window_without_sinks() {
    for model in &models()[..2] {
        let newest = Newest(Thin { interval: 1, recent: 19, ..THIN });
        let requests = || vec![Request::tokens(prompt(9, 90)).max_tokens(40).ignore_eos(true).logprobs(2)];
        let dropped = together(&mut engine(model, |b| b.cache_policy(newest.clone()).step_tokens(8)), requests());
        let mut windowed = engine(model, |b| b.cache_policy(Window { size: 20, sinks: 0 }));
        assert_eq!(together(&mut windowed, requests()), dropped);
    }
}

/// Keeps nothing but the last `recent` positions.
#[derive(Clone, Debug)]
struct Newest(Thin);

impl CachePolicy for Newest {
    fn name(&self) -> &str {
        "newest"
    }
    fn visibility(&self) -> Visibility {
        Visibility::All
    }
    fn acts(&self) -> Acts {
        self.0.acts()
    }
    fn bounds(&self) -> CacheBounds {
        CacheBounds::always(self.0.recent, 1)
    }
    fn recomputable(&self) -> bool {
        true
    }
    fn open(&self) -> Box<dyn CacheSession> {
        let recent = self.0.recent;
        Box::new(Stateless::new(move |view, dropped| {
            dropped.extend(view.live().filter(|p| p + recent < view.position()));
        }))
    }
}

/// Keys and values of a single layer depend on their own token alone. So a windowed query must answer as a fresh
/// sequence of the sinks and the window, which stand at the positions that sinks and window count as.
#[test]
fn sinks_stand_at_their_places_in_the_window() {
    let gemma = TinyModel { window: Some(200), ..TinyModel::gemma3() };
    for model in [TinyModel::llama(), TinyModel::qwen2(), gemma] {
        let model = TinyModel { layers: 1, ..model };
        for (size, sinks) in [(40, 4), (33, 40), (40, 0)] {
            let f32 = |b: EngineBuilder| b.precision(Precision::F32);
            let mut windowed = engine(&model, |b| f32(b).cache_policy(Window { size, sinks }).step_tokens(50));
            let mut full = engine(&model, f32);
            for len in [size + sinks, size + sinks + 1, 130, 700] {
                let tokens = prompt(3, len);
                let kept: Vec<TokenId> = tokens[..sinks].iter().chain(&tokens[len - size..]).copied().collect();
                let found = windowed.score(&tokens, len).unwrap().last_logits;
                let expected = full.score(&kept, kept.len()).unwrap().last_logits;
                let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-4, "{size} {sinks} {len}: {worst}");
            }
        }
    }
}

#[test]
fn twenty_thousand_tokens_hold_a_constant_number_of_blocks() {
    let model = TinyModel { layers: 2, hidden: 32, heads: 2, kv_heads: 1, ff: 32, ..TinyModel::llama() };
    let run = |tokens: usize, set: &dyn Fn(EngineBuilder) -> EngineBuilder| {
        let mut engine = engine(&model, |b| set(b).max_sequences(1));
        let request = Request::tokens(prompt(1, 50)).max_tokens(tokens).ignore_eos(true);
        engine.submit(request).unwrap();
        let (mut most, mut produced) = (0, 0);
        while !engine.is_idle() {
            let events = engine.step().unwrap();
            produced += events.iter().filter(|e| matches!(e, Event::Token { .. })).count();
            most = most.max(engine.kv_blocks_in_use());
            if produced % 64 == 0 {
                engine.check_integrity().unwrap();
            }
        }
        assert_eq!(produced, tokens);
        most
    };
    let window = Window { size: 60, sinks: 4 };
    let most = run(20_000, &|b| b.cache_policy(window));
    // Per layer: a block of sinks, and a window that may begin and end inside a block.
    assert_eq!((most, run(300, &|b| b.cache_policy(window))), (2 * 4, 2 * 4));
    let newest = Newest(Thin { interval: 32, recent: 60, ..THIN });
    assert_eq!(run(3_000, &|b| b.cache_policy(newest.clone())), run(300, &|b| b.cache_policy(newest.clone())));
}

#[test]
fn a_bounded_cache_outgrows_the_context_where_asked_to() {
    let model = TinyModel { context: 64, ..TinyModel::llama() };
    let mut bounded = engine(&model, |b| b.cache_policy(Window { size: 50, sinks: 4 }));
    // The default stays the rest of the context.
    let rest = bounded.complete(Request::tokens(prompt(1, 40)).ignore_eos(true)).unwrap();
    assert_eq!((rest.token_ids.len(), rest.finish_reason), (24, FinishReason::Length));
    let more = bounded.complete(Request::tokens(prompt(1, 200)).ignore_eos(true).max_tokens(70)).unwrap();
    assert_eq!(more.token_ids.len(), 70);
    assert_eq!(bounded.score(&prompt(1, 200), 1).unwrap().log_probs.len(), 199);
    let error = bounded.submit(Request::tokens(prompt(1, 64))).unwrap_err();
    assert!(matches!(error, Error::Request(RequestError::InvalidParameter { name: "max_tokens", .. })), "{error}");
    // Nothing overflows; the request may be cancelled.
    let id = bounded.submit(Request::tokens(prompt(1, 5)).max_tokens(usize::MAX)).unwrap();
    bounded.step().unwrap();
    assert!(bounded.cancel(id));
    // Without a bound the context ends all.
    let mut thin = engine(&model, |b| b.cache_policy(THIN));
    let error = thin.submit(Request::tokens(prompt(1, 64)).max_tokens(1)).unwrap_err();
    assert!(matches!(error, Error::Request(RequestError::ContextExceeded { .. })), "{error}");
    assert!(thin.score(&prompt(1, 65), 1).is_err());
}

#[test]
fn policies_that_do_not_fit_are_refused_by_name() {
    let refused = |policy: Window| {
        let model = TinyModel::llama().build().unwrap();
        Engine::builder(model).threads(1).cache_policy(policy).build().unwrap_err()
    };
    let error = refused(Window { size: 0, sinks: 4 });
    assert!(matches!(&error, Error::Build(BuildError::InvalidCachePolicy { policy, .. }) if policy == "window"));
    let error = refused(Window { size: 510, sinks: 4 });
    assert!(matches!(&error, Error::Build(BuildError::CachePolicyContext { kept: 514, context: 512, .. })), "{error}");
    assert!(error.to_string().contains("smaller window"), "{error}");
}

#[test]
fn a_failing_policy_ends_the_requests_that_meet_it() {
    let mut engine = engine(&TinyModel::llama(), |b| b.cache_policy(Thin { interval: 40, panics: true, ..THIN }));
    let long = engine.submit(Request::tokens(prompt(1, 30)).max_tokens(50).ignore_eos(true)).unwrap();
    let short = engine.submit(Request::tokens(prompt(2, 10)).max_tokens(20).ignore_eos(true)).unwrap();
    let mut seen = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { id, output, error, .. } = event {
                seen.push((id, output.token_ids.len(), error.map(|e| e.to_string())));
            }
        }
        engine.check_integrity().unwrap();
    }
    let of = |id| seen.iter().find(|(i, ..)| *i == id).unwrap();
    assert!(of(long).2.as_ref().unwrap().contains("`thin` panicked: by design"), "{seen:?}");
    assert_eq!((of(short).1, &of(short).2), (20, &None));
    assert!(engine.score(&prompt(1, 60), 1).unwrap_err().to_string().contains("by design"));
    assert_eq!(engine.kv_blocks_in_use(), 0);
}
