//! Shows the likeliest next tokens after a list of ids, and how well the model predicts the list itself.

mod support;

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::json;
use support::args::Args;
use support::engine::{open, Needs};
use support::{commands, print_json, Result};

fn main() -> ExitCode {
    support::run(&commands::LOGITS, logits)
}

fn logits(args: &Args) -> Result {
    let ids = args.ids("ids")?.ok_or("--ids is needed")?;
    let top = args.number("top", 1..=1 << 24)?.unwrap_or(commands::LOGITS_TOP);
    let (mut engine, _) = open(args, Needs { sequences: Some(1), context: None })?;
    let score = engine.score(&ids, 1)?;
    let best = likeliest(&score.last_logits, top);
    let mean_nll = (!score.log_probs.is_empty()).then(|| {
        // In f64: a thousand terms would cost f32 a digit of the three that are compared.
        -score.log_probs.iter().map(|&p| f64::from(p)).sum::<f64>() / score.log_probs.len() as f64
    });
    if args.switch("json") {
        return print_json(&json!({
            "last_top_ids": best.iter().map(|&(id, _)| id).collect::<Vec<_>>(),
            "last_top_logits": best.iter().map(|&(_, logit)| logit).collect::<Vec<_>>(),
            "mean_nll": mean_nll,
        }));
    }
    let mut out = io::stdout().lock();
    for (id, logit) in best {
        let text = engine.tokenizer().decode(&[id], false);
        writeln!(out, "{id:>8} {logit:>10.4}  {text:?}")?;
    }
    if let Some(mean_nll) = mean_nll {
        writeln!(out, "mean nll {mean_nll:.6}")?;
    }
    Ok(())
}

/// The `count` largest logits, largest first; of equals the lower id first.
fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut order: Vec<(u32, f32)> = (0u32..).zip(logits.iter().copied()).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    order.truncate(count);
    order
}
