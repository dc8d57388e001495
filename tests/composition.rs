//! Every combination of parts: quantizer, cache policy, sampler, drafter, and how the work is divided.
//!
//! A quantizer and a cache policy decide what the answer is; the rest of a row may not change it. So the answers of each
//! pair are compared bit for bit over all the ways to compute them.

use candlewick::cache::{Acts, CacheBounds, CachePolicy, CacheSession, Full, Stateless, Visibility, Window};
use candlewick::draft::{Drafter, Ngram};
use candlewick::quant::{Quantizer, Requantize, Stored};
use candlewick::sample::SamplingParams;
use candlewick::source::Dtype;
use candlewick::testing::TinyModel;
use candlewick::{Engine, EngineBuilder, Event, Output, Request, SequenceId, TokenId};

/// Keeps every third position of the older ones: acts inside drafts and prompts.
#[derive(Clone, Copy, Debug)]
struct Thirds;

impl CachePolicy for Thirds {
    fn name(&self) -> &str {
        "thirds"
    }
    fn visibility(&self) -> Visibility {
        Visibility::All
    }
    fn acts(&self) -> Acts {
        Acts::Every(5)
    }
    fn bounds(&self) -> CacheBounds {
        CacheBounds::NONE
    }
    fn recomputable(&self) -> bool {
        true
    }
    fn open(&self) -> Box<dyn CacheSession> {
        Box::new(Stateless::new(|view, dropped| {
            dropped.extend(view.live().filter(|p| p + 12 < view.position() && p % 3 != 0));
        }))
    }
}

/// Tokens and the bits of their log-probabilities.
type Essence = Vec<(TokenId, u32)>;

fn model() -> TinyModel {
    TinyModel { window: Some(24), ..TinyModel::gemma3() }.with_dtype(Dtype::Q8_0)
}

fn requests() -> Vec<Request> {
    let samplers = [
        SamplingParams::new(),
        SamplingParams::new().with_temperature(0.9).with_top_p(0.9).with_repetition_penalty(1.2),
        SamplingParams::new().with_temperature(0.7).with_dry_multiplier(0.8).with_mirostat_tau(4.0),
    ];
    let mut requests = Vec::new();
    for (i, params) in samplers.into_iter().enumerate() {
        for length in [3, 40, 75] {
            // Everything twice, so that there is something to draft.
            let half = (0..length).map(|j| ((j * 31 + i * 7) % 180 + 20) as TokenId);
            let prompt: Vec<TokenId> = half.clone().chain(half).collect();
            let request = Request::tokens(prompt).max_tokens(20).ignore_eos(true).logprobs(0);
            requests.push(request.params(params.clone()).seed(length as u64));
        }
    }
    requests
}

fn essence(output: &Output) -> Essence {
    let logprobs = output.logprobs.iter().flatten();
    output.token_ids.iter().copied().zip(logprobs.map(|l| l.chosen.log_prob.to_bits())).collect()
}

/// All requests at the same time, with the cache checked after every step; answers, and drafted tokens in all.
fn run(engine: &mut Engine) -> (Vec<Essence>, usize) {
    let ids: Vec<SequenceId> = requests().into_iter().map(|r| engine.submit(r).unwrap()).collect();
    let mut answers = vec![Essence::new(); ids.len()];
    let mut drafted = 0;
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { id, output, error, .. } = event {
                assert!(error.is_none(), "{error:?}");
                drafted += output.usage.drafted_tokens;
                answers[ids.iter().position(|i| *i == id).unwrap()] = essence(&output);
            }
        }
        engine.check_integrity().unwrap();
    }
    assert_eq!(engine.kv_blocks_in_use(), 0);
    (answers, drafted)
}

fn check<Q, C>(name: &str, quantizer: impl Fn() -> Q, policy: impl Fn() -> C)
where
    Q: Quantizer,
    C: CachePolicy,
{
    let build = |set: &dyn Fn(EngineBuilder) -> EngineBuilder| {
        let builder = Engine::builder(model().build().unwrap()).quantizer(quantizer()).cache_policy(policy());
        set(builder.threads(1)).build().unwrap()
    };
    let mut alone = build(&|b| b);
    let expected: Vec<Essence> = requests().into_iter().map(|r| essence(&alone.complete(r).unwrap())).collect();
    assert!(expected.iter().all(|e| e.len() == 20), "{name}");
    fn drafter(b: EngineBuilder, d: impl Drafter) -> EngineBuilder {
        b.drafter(d)
    }
    let ways: [(&str, &dyn Fn(EngineBuilder) -> EngineBuilder); 6] = [
        ("together", &|b| b),
        ("two threads, chunks of 7", &|b| b.threads(2).step_tokens(7)),
        ("chunks of 33, three at a time", &|b| b.step_tokens(33).max_sequences(3)),
        ("drafts", &|b| drafter(b, Ngram::default())),
        ("long drafts, two threads", &|b| drafter(b, Ngram::new(1, 4)).draft_tokens(16).threads(2)),
        ("drafts, chunks of 5, two at a time", &|b| drafter(b, Ngram::new(1, 2)).step_tokens(5).max_sequences(2)),
    ];
    for (way, set) in ways {
        let (answers, drafted) = run(&mut build(set));
        assert_eq!(answers, expected, "{name}, {way}");
        assert_eq!(drafted > 0, way.contains("drafts"), "{name}, {way}");
    }
}

#[test]
fn stored_weights_with_every_policy() {
    check("stored, full", || Stored, || Full);
    check("stored, window", || Stored, || Window { size: 40, sinks: 3 });
    check("stored, thirds", || Stored, || Thirds);
    check("stored, window without sinks", || Stored, || Window { size: 33, sinks: 0 });
}

#[test]
fn requantized_weights_with_every_policy() {
    let q4 = || "blk.*.ffn_*=q4_0,blk.*.attn_*=q8_0".parse::<Requantize>().unwrap();
    check("requantized, full", q4, || Full);
    check("requantized, window", q4, || Window { size: 40, sinks: 3 });
}
