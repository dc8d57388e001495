//! Measures prefill and decoding through the engine's own steps, wall time, one line per test.
//!
//! `ppN` prefills N tokens into an empty cache. `tgN` decodes N tokens, from an empty cache or, with `-d D`, behind
//! D tokens that are prefilled without being timed; with `-b B`, B sequences decode together.

mod support;

use std::collections::HashSet;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use candlewick::kernel::Cpu;
use candlewick::{Engine, Event, Output, Request};
use serde_json::json;
use support::args::Args;
use support::ceilings::{measure, Ceiling};
use support::engine::{open, Needs};
use support::stats::{mean_and_deviation, peak_rss_bytes, spread_ids};
use support::{commands, print_json, Result};

/// Longest prompt, depth and generation that the flags accept; the model's context is checked by the engine.
const MAX_TOKENS: usize = 1 << 24;

fn main() -> ExitCode {
    support::run(&commands::BENCH, bench)
}

/// One test: `batch` sequences of `prompt` tokens each, of which `decode` more tokens each are generated.
#[derive(Clone, Copy)]
struct Test {
    prompt: usize,
    decode: usize,
    batch: usize,
    /// Tokens that each sequence may generate before the clock starts; 0 starts it with the prompt.
    lead: usize,
    /// Whether the prompt is what counts, and not the tokens behind it.
    counts_prompt: bool,
}

fn bench(args: &Args) -> Result {
    let prefill = args.number("prefill", 0..=MAX_TOKENS)?.unwrap_or(commands::BENCH_PREFILL);
    let decode = args.number("decode", 0..=MAX_TOKENS)?.unwrap_or(commands::BENCH_DECODE);
    let depth = args.number("depth", 0..=MAX_TOKENS)?.unwrap_or(0);
    let batch = args.number("batch", 1..=4096)?.unwrap_or(1);
    let repetitions = args.number("repetitions", 1..=10_000)?.unwrap_or(commands::BENCH_REPETITIONS);
    if prefill == 0 && decode == 0 && !args.switch("ceilings") {
        return Err("nothing to measure: -p 0 and -n 0 leave both tests out".into());
    }
    let mut tests = Vec::new();
    if prefill > 0 {
        tests.push((format!("pp{prefill}"), Test::prefill(prefill)));
    }
    if decode > 0 {
        tests.push((decode_name(decode, depth, batch), Test::decode(decode, depth, batch)));
    }
    let context = tests.iter().map(|(_, test)| test.context()).max();
    let (mut engine, load) = open(args, Needs { sequences: Some(batch), context })?;
    let work = Work::of(&engine);
    for (name, test) in tests {
        // Pages and threads wake up once, outside the figures; a deep test is long enough not to need it.
        if test.counts_prompt || depth == 0 {
            test.warm_up().run(&mut engine, 0)?;
        }
        let mut rates = Vec::with_capacity(repetitions);
        for repetition in 1..=repetitions {
            let time = test.run(&mut engine, repetition as u64)?.as_secs_f64();
            rates.push(test.counted_tokens() as f64 / time.max(f64::MIN_POSITIVE));
        }
        let (mean, deviation) = mean_and_deviation(&rates);
        let (kernel, threads) = (engine.kernel_level().detail(), engine.pool().threads());
        if args.switch("json") {
            print_json(&json!({
                "test": name,
                "tokens_per_second": mean,
                "stddev": deviation,
                "kernel": kernel,
                "threads": threads,
                "peak_rss_bytes": peak_rss_bytes(),
                "load_s": load.as_secs_f64(),
                "decode_bytes": work.decode_bytes,
                "macs_per_prompt_token": work.macs_per_prompt_token,
            }))?;
        } else {
            writeln!(
                io::stdout(),
                "{name:<16} {mean:>10.2} ± {deviation:.2} tokens/s  ({kernel}, threads: {threads})"
            )?;
        }
    }
    // Last: its buffers must not count in the tests' peak of memory.
    if args.switch("ceilings") {
        report_ceilings(args, &engine)?;
    }
    Ok(())
}

/// What a token costs by the model's matrices, whatever the depth.
struct Work {
    /// Bytes of weights that a step of decoding reads.
    decode_bytes: usize,
    /// Multiply-adds of the products of a prompt's token; logits of the last one only are computed.
    macs_per_prompt_token: usize,
}

impl Work {
    fn of(engine: &Engine) -> Work {
        let matrices = engine.matrices();
        let in_layers = matrices.iter().filter(|matrix| matrix.site.layer.is_some());
        Work {
            decode_bytes: matrices.iter().map(|matrix| matrix.size_in_bytes).sum(),
            macs_per_prompt_token: in_layers.map(|matrix| matrix.rows * matrix.cols).sum(),
        }
    }
}

fn report_ceilings(args: &Args, engine: &Engine) -> Result {
    let cpu = Cpu { pool: engine.pool(), level: engine.kernel_level() };
    for ceiling in measure(&cpu) {
        let Ceiling { name, value, unit } = ceiling;
        if args.switch("json") {
            print_json(&json!({ "test": name, unit: value, "kernel": cpu.level.detail() }))?;
        } else {
            writeln!(io::stdout(), "{name:<16} {:>10}", ceiling.text())?;
        }
    }
    Ok(())
}

fn decode_name(decode: usize, depth: usize, batch: usize) -> String {
    let mut name = format!("tg{decode}");
    if depth > 0 {
        name += &format!("@d{depth}");
    }
    if batch > 1 {
        name += &format!("@b{batch}");
    }
    name
}

impl Test {
    fn prefill(prompt: usize) -> Test {
        Test { prompt, decode: 1, batch: 1, lead: 0, counts_prompt: true }
    }

    /// At depth 0 a sequence is one token, whose own forward pass gives the first of the counted ones. Behind a
    /// prompt, the clock starts once every sequence is decoding; the first ones decode while the last are prefilled.
    fn decode(decode: usize, depth: usize, batch: usize) -> Test {
        let lead = match (depth, batch) {
            (0, _) => 0,
            (_, 1) => 1,
            // Room for a step of decoding per 128 prompt tokens of the others.
            _ => 1 + batch + batch * depth / 128,
        };
        Test { prompt: depth.max(1), decode, batch, lead, counts_prompt: false }
    }

    fn warm_up(self) -> Test {
        Test { decode: self.decode.min(4), ..self }
    }

    fn context(self) -> usize {
        self.prompt + self.lead + self.decode
    }

    /// Tokens that the time of [`run`](Self::run) was spent on.
    fn counted_tokens(self) -> usize {
        if self.counts_prompt {
            self.prompt
        } else {
            self.decode * self.batch
        }
    }

    /// Runs once, with prompts that no earlier run had, and answers the time of the part that counts.
    fn run(self, engine: &mut Engine, repetition: u64) -> Result<Duration> {
        let vocab_size = engine.tokenizer().vocab_size();
        let mut waiting = HashSet::new();
        for sequence in 0..self.batch as u64 {
            let ids = spread_ids(self.prompt, vocab_size, repetition * 4096 + sequence);
            let request = Request::tokens(ids).max_tokens(self.lead + self.decode).temperature(0.0).ignore_eos(true);
            waiting.insert(engine.submit(request)?);
        }
        let all = waiting.clone();
        let mut start = Instant::now();
        let mut is_counting = self.lead == 0;
        let mut counted = 0;
        let time = loop {
            let mut tokens = 0;
            for event in engine.step()? {
                match event {
                    // A piece without a token releases text of earlier ones.
                    Event::Token { id, piece } => {
                        tokens += usize::from(piece.token.is_some());
                        waiting.remove(&id);
                    }
                    Event::Finished { error: Some(error), .. } => return Err(error.into()),
                    Event::Finished { output, .. } => check(&output, self)?,
                    _ => {}
                }
            }
            if is_counting {
                counted += tokens;
                if counted >= self.decode * self.batch {
                    break start.elapsed();
                }
            } else if waiting.is_empty() {
                (start, is_counting) = (Instant::now(), true);
            }
            if engine.is_idle() {
                return Err(
                    format!("the engine was done after {counted} of {} tokens", self.decode * self.batch).into()
                );
            }
        };
        for id in all {
            engine.cancel(id);
        }
        while !engine.is_idle() {
            engine.step()?;
        }
        Ok(time)
    }
}

/// A figure counts only if the work was done: a prompt found in a cache was not prefilled.
fn check(output: &Output, test: Test) -> Result {
    let usage = &output.usage;
    if usage.cached_tokens != 0 || usage.prompt_tokens != test.prompt {
        return Err(format!(
            "the run did other work than asked: {} prompt tokens, {} of them cached, ended by {}",
            usage.prompt_tokens, usage.cached_tokens, output.finish_reason
        )
        .into());
    }
    Ok(())
}
