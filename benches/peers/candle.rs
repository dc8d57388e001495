//! candle-transformers as a contender of `compare.py`: the flags and the JSON lines of the example `bench`.
//!
//! Threads are rayon's: `RAYON_NUM_THREADS` must say as much as `--threads`. The peer has no batches, so `--batch`
//! above 1 is an error.

#[path = "candle_model.rs"]
mod candle_model;
#[path = "../../examples/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use candle_model::Peer;
use serde_json::json;
use support::args::Args;
use support::stats::{mean_and_deviation, peak_rss_bytes, spread_ids};
use support::{commands, print_json, Result};

/// Ids below this are in every vocabulary that is compared.
const VOCAB: usize = 32_000;

fn main() -> ExitCode {
    support::run(&commands::BENCH, bench)
}

fn bench(args: &Args) -> Result {
    for flag in ["kv", "window", "sinks", "precision", "quantize", "kernel"] {
        if args.is_given(flag) {
            return Err(format!("--{flag}: candle-transformers has nothing like it").into());
        }
    }
    if args.switch("ceilings") || args.number("batch", 1..=4096)?.unwrap_or(1) != 1 {
        return Err("candle-transformers' models compute one sequence, and nothing is measured beside it".into());
    }
    let tokens = 0..=1 << 24;
    let prefill = args.number("prefill", tokens.clone())?.unwrap_or(commands::BENCH_PREFILL);
    let decode = args.number("decode", tokens.clone())?.unwrap_or(commands::BENCH_DECODE);
    let depth = args.number("depth", tokens)?.unwrap_or(0);
    let repetitions = args.number("repetitions", 1..=10_000)?.unwrap_or(commands::BENCH_REPETITIONS);
    let threads = args.number("threads", 1..=1024)?.unwrap_or(1);
    let theirs = candlewick::candle::utils::get_num_threads();
    if threads != theirs {
        return Err(format!("RAYON_NUM_THREADS gives {theirs} threads and --threads {threads}").into());
    }
    let path = args.text("model")?.ok_or("--model is needed: a GGUF file")?;
    let start = Instant::now();
    let mut peer = Peer::open(Path::new(path))?;
    let load = start.elapsed();
    let mut report = |name: String, tokens: usize, run: &mut dyn FnMut(&mut Peer, u64) -> Result<Duration>| {
        let mut rates = Vec::new();
        for repetition in 1..=repetitions {
            rates.push(tokens as f64 / run(&mut peer, repetition as u64)?.as_secs_f64().max(f64::MIN_POSITIVE));
        }
        let (mean, deviation) = mean_and_deviation(&rates);
        print_json(&json!({
            "test": name,
            "tokens_per_second": mean,
            "stddev": deviation,
            "kernel": "candle",
            "peak_rss_bytes": peak_rss_bytes(),
            "load_s": load.as_secs_f64(),
        }))
    };
    if prefill > 0 {
        report(format!("pp{prefill}"), prefill, &mut |peer, seed| {
            if seed == 1 {
                peer.forward(&spread_ids(prefill, VOCAB, 0), 0)?;
            }
            let ids = spread_ids(prefill, VOCAB, seed);
            let start = Instant::now();
            peer.forward(&ids, 0)?;
            Ok(start.elapsed())
        })?;
    }
    if decode > 0 {
        let name = if depth > 0 { format!("tg{decode}@d{depth}") } else { format!("tg{decode}") };
        report(name, decode, &mut |peer, seed| {
            if depth == 0 && seed == 1 {
                decode_from(peer, 1, 4, 0)?;
            }
            decode_from(peer, depth, decode, seed)
        })?;
    }
    Ok(())
}

/// The time of `decode` tokens behind `depth`; from nothing, the first of them is the forward pass of the only
/// prompt token.
fn decode_from(peer: &mut Peer, depth: usize, decode: usize, seed: u64) -> Result<Duration> {
    let ids = spread_ids(depth.max(1), VOCAB, seed);
    let mut token = ids[0];
    if depth > 0 {
        token = peer.forward(&ids, 0)?;
    }
    let start = Instant::now();
    for position in depth..depth + decode {
        token = peer.forward(&[token], position)?;
    }
    Ok(start.elapsed())
}
