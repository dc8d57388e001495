//! Opening an engine from the command line, running one request, and telling what it cost.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use candlewick::cache::Window;
use candlewick::draft::Ngram;
use candlewick::quant::Requantize;
use candlewick::source::{Gguf, Safetensors, WeightSource};
use candlewick::{Engine, KernelLevel, KvFormat, Output, Precision, Request, Usage};
use serde_json::{json, Value};

use super::args::Args;
use super::store::cannot;
use super::{fetch, Result};

/// The most threads that `--threads` accepts.
const MAX_THREADS: usize = 1024;

/// The largest `--window` and `--sinks`.
const MAX_WINDOW: usize = 1 << 32;

/// The sinks of `--window` without `--sinks`.
const SINKS: usize = 4;

/// What one program needs of its engine beyond the flags.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// Sequences at a time; the engine's default where `None`.
    pub(crate) sequences: Option<usize>,
    /// Tokens of one sequence; the engine's default where `None`.
    pub(crate) context: Option<usize>,
}

/// What `--model` means; `--model` must be given.
pub(crate) fn source(args: &Args) -> Result<Box<dyn WeightSource>> {
    const KINDS: &str = "a GGUF file, a model's directory, a catalog name or a hub id";
    let model = args.text("model")?.ok_or_else(|| format!("--model is needed: {KINDS}"))?;
    open_source(&fetch::resolve(Some(model))?)
}

/// A GGUF file, or a directory with config.json and safetensors.
pub(crate) fn open_source(path: &Path) -> Result<Box<dyn WeightSource>> {
    Ok(match path.is_dir() {
        true => Box::new(Safetensors::open(path)?),
        false => Box::new(Gguf::open(path)?),
    })
}

/// An engine of `--model` with the flags that the command has, and how long it took to open.
pub(crate) fn open(args: &Args, needs: Needs) -> Result<(Engine, Duration)> {
    let source = source(args)?;
    build(args, source, needs)
}

/// An engine of a source with the flags that the command has, and how long it took to build.
pub(crate) fn build(args: &Args, source: Box<dyn WeightSource>, needs: Needs) -> Result<(Engine, Duration)> {
    let start = Instant::now();
    let mut builder = Engine::builder(source);
    if let Some(threads) = args.number("threads", 1..=MAX_THREADS)? {
        builder = builder.threads(threads);
    }
    if let Some((precision, kv)) = numerics(args)? {
        builder = builder.precision(precision);
        if let Some(kv) = kv {
            builder = builder.kv_format(kv);
        }
    }
    if args.takes("quantize") {
        if let Some(rules) = args.text("quantize")? {
            let rules = rules.parse::<Requantize>().map_err(|error| format!("--quantize: {error}"))?;
            builder = builder.quantizer(rules);
        }
    }
    if args.takes("kernel") {
        let levels: Vec<_> = KernelLevel::ALL.iter().map(|level| (level.as_str(), *level)).collect();
        if let Some(level) = args.choice("kernel", &levels)? {
            builder = builder.kernel_level(level);
        }
    }
    if let Some(window) = window(args)? {
        builder = builder.cache_policy(window);
    }
    if args.takes("draft") {
        let drafts = args.choice("draft", &[("ngram", true), ("none", false)])?.unwrap_or(false);
        let length = args.number("draft-tokens", 1..=64)?;
        if drafts {
            builder = builder.drafter(Ngram::default());
        } else if length.is_some() {
            return Err("--draft-tokens needs --draft ngram".into());
        }
        if let Some(length) = length {
            builder = builder.draft_tokens(length);
        }
    }
    if let Some(sequences) = needs.sequences {
        builder = builder.max_sequences(sequences);
    }
    if let Some(context) = needs.context {
        builder = builder.max_context(context);
    }
    let engine = builder.build()?;
    let load = start.elapsed();
    if args.takes("quantize") && args.is_given("quantize") {
        eprintln!("{}", formats(&engine));
    }
    Ok((engine, load))
}

/// How many matrices the engine holds in which format, and their memory: where a rule's type did not fit a width, it
/// shows here.
fn formats(engine: &Engine) -> String {
    let mut formats: Vec<(String, usize, usize)> = Vec::new();
    for matrix in engine.matrices() {
        match formats.iter_mut().find(|(name, ..)| *name == matrix.format) {
            Some((_, count, bytes)) => (*count, *bytes) = (*count + 1, *bytes + matrix.size_in_bytes),
            None => formats.push((matrix.format, 1, matrix.size_in_bytes)),
        }
    }
    let parts: Vec<String> =
        formats.iter().map(|(name, count, bytes)| format!("{count} {name} ({:.1} MB)", *bytes as f64 / 1e6)).collect();
    format!("weights: {}, {:.1} MB in all", parts.join(", "), engine.weights_in_bytes() as f64 / 1e6)
}

/// `--window` with `--sinks`; whether they fit the model is the builder's to say.
pub(crate) fn window(args: &Args) -> Result<Option<Window>> {
    if !args.takes("window") {
        return Ok(None);
    }
    let size = args.number("window", 0..=MAX_WINDOW)?;
    let sinks = args.number("sinks", 0..=MAX_WINDOW)?;
    if size.is_none() && sinks.is_some() {
        return Err("--sinks needs --window".into());
    }
    Ok(size.map(|size| Window { size, sinks: sinks.unwrap_or(SINKS) }))
}

/// `--precision` and `--kv`; F32 precision means F32 keys and values unless `--kv` says otherwise.
fn numerics(args: &Args) -> Result<Option<(Precision, Option<KvFormat>)>> {
    if !args.takes("precision") {
        return Ok(None);
    }
    let precision = args.choice("precision", &[("int8", Precision::Int8Activations), ("f32", Precision::F32)])?;
    let formats = [("f32", KvFormat::F32), ("f16", KvFormat::F16), ("bf16", KvFormat::Bf16), ("q8", KvFormat::Q8)];
    let kv = if args.takes("kv") { args.choice("kv", &formats)? } else { None };
    Ok(Some(match precision {
        Some(Precision::F32) => (Precision::F32, Some(kv.unwrap_or(KvFormat::F32))),
        _ => (Precision::Int8Activations, kv),
    }))
}

/// Runs one request to its end, writing text as it comes.
pub(crate) fn stream(engine: &mut Engine, request: Request, out: &mut dyn Write) -> Result<Output> {
    let mut generation = engine.generate(request)?;
    for piece in generation.by_ref() {
        out.write_all(piece?.text.as_bytes())?;
        out.flush()?;
    }
    Ok(generation.output().ok_or("the generation ended without a report")?.clone())
}

/// A UTF-8 file.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(|e| cannot("read", path, &e))?;
    String::from_utf8(bytes)
        .map_err(|e| format!("{}: not valid UTF-8 at byte {}", path.display(), e.utf8_error().valid_up_to()).into())
}

/// The figures of one request in one line.
pub(crate) fn figures(usage: &Usage) -> String {
    let rate = |tokens: usize, time: Duration| match time.as_secs_f64() {
        seconds if seconds > 0.0 => format!("{:.1} tokens/s", tokens as f64 / seconds),
        _ => "-".to_string(),
    };
    // The first token comes out of the prefill.
    let decoded = usage.completion_tokens.saturating_sub(1);
    format!(
        "ttft {:.3} s | prefill {} tokens, {} | decode {} tokens, {}",
        usage.ttft.as_secs_f64(),
        usage.prompt_tokens,
        rate(usage.prompt_tokens.saturating_sub(usage.cached_tokens), usage.prefill),
        usage.completion_tokens,
        rate(decoded, usage.decode),
    )
}

/// The bill of one request.
pub(crate) fn usage_json(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "drafted_tokens": usage.drafted_tokens,
        "accepted_tokens": usage.accepted_tokens,
        "ttft_s": usage.ttft.as_secs_f64(),
        "prefill_s": usage.prefill.as_secs_f64(),
        "decode_s": usage.decode.as_secs_f64(),
    })
}
