//! Perplexity of a model on a text: consecutive windows, the second half of each scored.
//!
//! The protocol is llama.cpp's, so that figures can be compared: the text is encoded once with the special tokens
//! that the model adds; it is cut into windows; where the model wants a BOS, the first token of every window is
//! replaced by it; the first half of a window is context only.

mod support;

use std::process::ExitCode;

use candlewick::{EncodeOptions, Tokenizer};
use serde_json::json;
use support::args::Args;
use support::engine::{open, read_text, window, Needs};
use support::{commands, print_json, Result};

fn main() -> ExitCode {
    support::run(&commands::PERPLEXITY, perplexity)
}

fn perplexity(args: &Args) -> Result {
    let text = read_text(&args.required_path("file")?)?;
    let context = args.number("context", 4..=1 << 24)?.unwrap_or(commands::PERPLEXITY_CONTEXT);
    let chunks = args.number("chunks", 1..=1 << 24)?.unwrap_or(usize::MAX);
    let (mut engine, _) = open(args, Needs { sequences: Some(1), context: None })?;
    if context > engine.context_length() && window(args)?.is_none() {
        return Err(format!("--context {context}: the model's context is {} tokens", engine.context_length()).into());
    }
    let ids = engine.tokenizer().encode(&text, EncodeOptions::DOCUMENT)?;
    let bos = added_bos(engine.tokenizer())?;
    let windows = (ids.len() / context).min(chunks);
    if windows == 0 {
        return Err(format!("the text has {} tokens, too few for one window of {context}", ids.len()).into());
    }
    let (mut nll, mut tokens) = (0.0, 0usize);
    for (done, window) in ids.chunks_exact(context).take(windows).enumerate() {
        let mut window = window.to_vec();
        if let Some(bos) = bos {
            window[0] = bos;
        }
        let score = engine.score(&window, context / 2 + 1)?;
        nll -= score.log_probs.iter().map(|&p| f64::from(p)).sum::<f64>();
        tokens += score.log_probs.len();
        eprintln!("window {} of {windows}: {:.4}", done + 1, (nll / tokens as f64).exp());
    }
    let ppl = (nll / tokens as f64).exp();
    if args.switch("json") {
        return print_json(&json!({ "ppl": ppl, "tokens": tokens }));
    }
    println!("perplexity {ppl:.4} over {tokens} tokens");
    Ok(())
}

/// The BOS that the model puts before a text, if it does.
fn added_bos(tokenizer: &Tokenizer) -> Result<Option<u32>> {
    let bos = tokenizer.bos();
    let text = tokenizer.encode("a", EncodeOptions::DOCUMENT)?;
    Ok(bos.filter(|bos| text.first() == Some(bos)))
}
