//! Decoding one token: this crate and candle-transformers' quantized models, on the same file, in the same run.
//!
//! Models come from the cache only; one that is absent is left out, and that is said. Compare ratios, never the
//! figures of two runs.

// The macro below makes a public function without documentation.
#![allow(missing_docs)]

#[path = "peers/candle_model.rs"]
mod candle_model;
#[path = "../examples/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use candle_model::Peer;
use candlewick::source::Gguf;
use candlewick::{Engine, Event, Request};
use criterion::{criterion_group, criterion_main, Criterion};
use support::{catalog, stats, store, Result};

/// Tokens in the cache before the first timed one.
const PROMPT: usize = 32;
/// Tokens that are decoded behind one prompt; more iterations start over.
const ROUND: u64 = 64;

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(10));
    targets = decode
}
criterion_main!(benches);

fn decode(criterion: &mut Criterion) {
    let dir = match store::cache_dir() {
        Ok(dir) => dir,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    for model in &catalog::ALL {
        let Some(path) = store::cached(&dir, model) else {
            eprintln!("skipped: {} is not in {}", model.name, dir.display());
            continue;
        };
        let mut group = criterion.benchmark_group(format!("decode/{}", model.name));
        let mut engine = Engine::builder(Gguf::open(&path).expect("the cached file opens"))
            .max_sequences(1)
            .max_context(PROMPT + ROUND as usize + 1)
            .build()
            .expect("the cached model builds");
        let ids = stats::spread_ids(PROMPT, engine.tokenizer().vocab_size(), 1);
        group.bench_function("candlewick", |bencher| {
            bencher.iter_custom(|iterations| {
                rounds(iterations, |tokens| ours(&mut engine, &ids, tokens)).expect("candlewick decodes")
            });
        });
        drop(engine);
        let mut peer = Peer::open(&path).expect("candle-transformers opens the cached file");
        group.bench_function("candle-transformers", |bencher| {
            bencher.iter_custom(|iterations| {
                rounds(iterations, |tokens| theirs(&mut peer, &ids, tokens)).expect("candle-transformers decodes")
            });
        });
        group.finish();
    }
}

/// Cuts `iterations` tokens into rounds and sums their times.
fn rounds(iterations: u64, mut round: impl FnMut(u64) -> Result<Duration>) -> Result<Duration> {
    let mut time = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let tokens = left.min(ROUND);
        time += round(tokens)?;
        left -= tokens;
    }
    Ok(time)
}

/// The time of `tokens` tokens behind the prompt.
fn ours(engine: &mut Engine, ids: &[u32], tokens: u64) -> Result<Duration> {
    let request = Request::tokens(ids.to_vec()).max_tokens(tokens as usize + 1).temperature(0.0).ignore_eos(true);
    engine.submit(request)?;
    let mut start = None;
    loop {
        let events = engine.step()?;
        if start.is_none() && events.iter().any(|event| matches!(event, Event::Token { .. })) {
            start = Some(Instant::now());
        }
        if events.iter().any(|event| matches!(event, Event::Finished { .. })) {
            return Ok(start.ok_or("finished without a token")?.elapsed());
        }
    }
}

/// A prompt at position 0 clears the peer's cache.
fn theirs(peer: &mut Peer, ids: &[u32], tokens: u64) -> Result<Duration> {
    let mut token = peer.forward(ids, 0)?;
    let start = Instant::now();
    for position in 0..tokens as usize {
        token = peer.forward(&[token], ids.len() + position)?;
    }
    Ok(start.elapsed())
}
