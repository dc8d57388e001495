//! Decoding in its steady state asks for no memory beyond small change: buffers are kept from step to step.
//!
//! One test, alone in its process: the allocator counts for all threads.

mod counting;

use candlewick::draft::Ngram;
use candlewick::sample::SamplingParams;
use candlewick::source::Dtype;
use candlewick::testing::TinyModel;
use candlewick::{Engine, EngineBuilder, KvFormat, Request, TokenId};
use counting::largest;

/// A page: what a vector of bookkeeping may take.
const PAGE: usize = 4096;

/// Wide enough that every buffer of rows, logits or weights is larger than a page.
fn model() -> TinyModel {
    TinyModel { hidden: 1280, heads: 10, kv_heads: 2, head_dim: 128, ff: 2048, vocab: 4000, ..TinyModel::llama() }
        .with_dtype(Dtype::Q8_0)
}

fn builder() -> EngineBuilder {
    Engine::builder(model().build().unwrap())
}

fn prompt(len: usize, start: usize) -> Vec<TokenId> {
    (0..len).map(|i| ((i * 7 + start * 13) % 200 + 20) as TokenId).collect()
}

/// The largest request for memory in 60 steps after a warm-up of prompts and some tokens.
fn steady(mut engine: Engine, sequences: usize, params: SamplingParams) -> usize {
    for i in 0..sequences {
        let request = Request::tokens(prompt(330, i)).max_tokens(140).ignore_eos(true).seed(7).params(params.clone());
        engine.submit(request).unwrap();
    }
    for _ in 0..40 + sequences {
        engine.step().unwrap();
    }
    largest(|| {
        for _ in 0..60 {
            assert!(!engine.step().unwrap().is_empty(), "every step decodes");
        }
    })
}

#[test]
fn decoding_needs_no_memory_from_step_to_step() {
    let drawn = SamplingParams::new().with_temperature(0.8).with_top_k(40).with_top_p(0.9);
    let cases: Vec<(&str, EngineBuilder, usize, SamplingParams)> = vec![
        ("one sequence, one thread", builder().threads(1), 1, SamplingParams::new()),
        ("one sequence, two threads", builder().threads(2), 1, SamplingParams::new()),
        ("eight sequences", builder().threads(2), 8, drawn.clone()),
        ("8-bit cache", builder().threads(2).kv_format(KvFormat::Q8), 3, drawn.clone()),
        ("drafts", builder().threads(2).drafter(Ngram::default()), 2, drawn),
    ];
    for (name, builder, sequences, params) in cases {
        let most = steady(builder.build().unwrap(), sequences, params);
        println!("{name}: {most} bytes");
        assert!(most <= PAGE, "{name}: one request of {most} bytes");
    }
}
