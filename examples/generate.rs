//! Continues one prompt and reports ids, log-probabilities and the request's bill.

mod support;

use std::io::{self, Write};
use std::process::ExitCode;

use candlewick::sample::{LogProbs, LogprobsMode, TokenLogProb};
use candlewick::{Message, Output, Request};
use serde_json::{json, Value};
use support::args::Args;
use support::engine::{figures, open, read_text, stream, usage_json, Needs};
use support::{commands, print_json, sampling, Result};

fn main() -> ExitCode {
    support::run(&commands::GENERATE, generate)
}

fn generate(args: &Args) -> Result {
    let request = request(args)?;
    let (mut engine, _) = open(args, Needs::default())?;
    let several = args.is_given("n");
    if args.switch("json") {
        let outputs = engine.complete_all(request)?;
        let mut reports = outputs.iter().map(report);
        let mut first = reports.next().ok_or("the request ended without a report")?;
        if several {
            // The first answer stays where it is without --n.
            first["choices"] = outputs.iter().map(report).collect();
        }
        return print_json(&first);
    }
    let mut out = io::stdout().lock();
    if several {
        for output in engine.complete_all(request)? {
            writeln!(out, "[{}] {}", output.choice, output.text)?;
            eprintln!("[{}] {}", output.choice, figures(&output.usage));
        }
        return Ok(());
    }
    let output = stream(&mut engine, request, &mut out)?;
    writeln!(out)?;
    eprintln!("{}", figures(&output.usage));
    Ok(())
}

fn request(args: &Args) -> Result<Request> {
    let input = args.at_most_one(&["prompt", "prompt-file", "ids"])?;
    let form = args.at_most_one(&["raw", "chat"])?;
    let text = match input {
        Some("prompt") => args.text("prompt")?.map(str::to_string),
        Some("prompt-file") => args.path("prompt-file").map(|path| read_text(&path)).transpose()?,
        Some(_) => None,
        None => return Err("a prompt is needed: --prompt, --prompt-file or --ids".into()),
    };
    let mut request = match (text, args.ids("ids")?) {
        (Some(text), _) if form == Some("raw") => Request::prompt(text),
        (Some(text), _) => Request::chat([Message::user(text)]),
        (None, Some(_)) if form == Some("chat") => return Err("--ids are used verbatim: --chat needs a text".into()),
        (None, Some(ids)) => Request::tokens(ids),
        (None, None) => return Err("a prompt is needed: --prompt, --prompt-file or --ids".into()),
    };
    request = request
        .max_tokens(args.number("max-tokens", 1..=1 << 24)?.unwrap_or(commands::GENERATE_MAX_TOKENS))
        .params(sampling::params(args)?)
        .ignore_eos(args.switch("ignore-eos"));
    if let Some(seed) = args.number("seed", 0..=u64::MAX)? {
        request = request.seed(seed);
    }
    if let Some(top) = args.number("logprobs", 0..=1024)? {
        request = request.logprobs(top);
    }
    let modes = [("raw", LogprobsMode::Raw), ("processed", LogprobsMode::Processed)];
    if let Some(mode) = args.choice("logprobs-mode", &modes)? {
        request = request.logprobs_mode(mode);
    }
    if let Some(top) = args.number("prompt-logprobs", 0..=1024)? {
        request = request.prompt_logprobs(top);
    }
    if let Some(n) = args.number("n", 1..=1 << 16)? {
        request = request.n(n);
    }
    if let Some(tokens) = args.number("min-tokens", 0..=1 << 24)? {
        request = request.min_tokens(tokens);
    }
    for text in args.texts("stop")? {
        request = request.stop(text);
    }
    request = request.echo(args.switch("echo"));
    Ok(request)
}

fn report(output: &Output) -> Value {
    let entry = |of: &TokenLogProb| json!({ "token": of.token, "logprob": of.log_prob });
    let with_top = |of: &LogProbs| {
        let top: Vec<Value> = of.top.iter().map(entry).collect();
        json!({ "token": of.chosen.token, "logprob": of.chosen.log_prob, "top": top })
    };
    let all = |entries: &Option<Vec<LogProbs>>| {
        entries.as_ref().map(|tokens| tokens.iter().map(with_top).collect::<Vec<_>>())
    };
    let mut report = json!({
        "text": output.text,
        "token_ids": output.token_ids,
        "prompt_ids": output.prompt_ids,
        "finish_reason": output.finish_reason.as_str(),
        "logprobs": all(&output.logprobs),
        "seed": output.seed,
        "usage": usage_json(&output.usage),
    });
    if output.prompt_logprobs.is_some() {
        report["prompt_logprobs"] = json!(all(&output.prompt_logprobs));
    }
    report
}
