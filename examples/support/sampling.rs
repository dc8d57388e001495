//! The sampling flags: every parameter of the library under its name.

use candlewick::sample::SamplingParams;

use super::args::{Args, Flag};
use super::Result;

const fn flag(long: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { long, short: None, value: Some(value), repeats: false, help }
}

pub(crate) const FLAGS: &[Flag] = &[
    flag("temperature", "T", "0 takes the likeliest token [default: 0]"),
    flag("dynamic-temperature-range", "R", "Temperature moves by up to R with the entropy [default: 0]"),
    flag("dynamic-temperature-exponent", "E", "Exponent of the dynamic temperature [default: 1]"),
    flag("top-n-sigma", "N", "Keep logits within N standard deviations of the highest [default: off]"),
    flag("top-k", "K", "Keep the K likeliest tokens, 0 for all [default: 0]"),
    flag("typical-p", "P", "Keep the most typical tokens of mass P [default: 1]"),
    flag("top-p", "P", "Keep the likeliest tokens of mass P [default: 1]"),
    flag("min-p", "P", "Keep tokens with P of the largest probability [default: 0]"),
    flag("xtc-probability", "P", "How often to drop all top choices but the last [default: 0]"),
    flag("xtc-threshold", "P", "What XTC counts as a top choice [default: 0.1]"),
    flag("repetition-penalty", "R", "Divides logits of tokens seen before [default: 1]"),
    flag("frequency-penalty", "F", "Subtracted per occurrence in the answer [default: 0]"),
    flag("presence-penalty", "F", "Subtracted from tokens of the answer [default: 0]"),
    flag("penalty-window", "N", "The penalties see N tokens [default: all]"),
    flag("dry-multiplier", "M", "Penalty on lengthening a repetition [default: 0]"),
    flag("dry-base", "B", "Growth of DRY's penalty per token [default: 1.75]"),
    flag("dry-allowed-length", "N", "Repetition from which DRY acts [default: 2]"),
    flag("dry-window", "N", "DRY sees N tokens [default: all]"),
    flag("dry-breakers", "JSON", r#"Texts that end a repetition [default: ["\n", ":", "\"", "*"]]"#),
    flag("logit-bias", "ID=VALUE,...", "Added to the logits of these tokens [default: none]"),
    flag("mirostat-tau", "BITS", "Mirostat 2: surprise per token to hold [default: off]"),
    flag("mirostat-eta", "E", "How fast mirostat corrects itself [default: 0.1]"),
];

/// What the flags say. Ranges are the library's, told by it at submit; here it is only seen that values are numbers.
pub(crate) fn params(args: &Args) -> Result<SamplingParams> {
    let any = || f32::MIN..=f32::MAX;
    let mut params = SamplingParams::new();
    params.temperature = Some(args.number("temperature", 0.0..=100.0)?.unwrap_or(0.0));
    params.dynamic_temperature_range = args.number("dynamic-temperature-range", any())?;
    params.dynamic_temperature_exponent = args.number("dynamic-temperature-exponent", any())?;
    params.top_n_sigma = args.number("top-n-sigma", any())?;
    params.top_k = args.number("top-k", 0..=u32::MAX)?;
    params.typical_p = args.number("typical-p", any())?;
    params.top_p = args.number("top-p", any())?;
    params.min_p = args.number("min-p", any())?;
    params.xtc_probability = args.number("xtc-probability", any())?;
    params.xtc_threshold = args.number("xtc-threshold", any())?;
    params.repetition_penalty = args.number("repetition-penalty", any())?;
    params.frequency_penalty = args.number("frequency-penalty", any())?;
    params.presence_penalty = args.number("presence-penalty", any())?;
    params.penalty_window = args.number("penalty-window", 1..=u32::MAX)?;
    params.dry_multiplier = args.number("dry-multiplier", any())?;
    params.dry_base = args.number("dry-base", any())?;
    params.dry_allowed_length = args.number("dry-allowed-length", 1..=u32::MAX)?;
    params.dry_window = args.number("dry-window", 1..=u32::MAX)?;
    params.dry_breakers = breakers(args)?;
    params.mirostat_tau = args.number("mirostat-tau", any())?;
    params.mirostat_eta = args.number("mirostat-eta", any())?;
    for (token, bias) in biases(args)? {
        if params.logit_bias.as_ref().is_some_and(|all| all.contains_key(&token)) {
            return Err(format!("--logit-bias: token {token} is given twice").into());
        }
        params = params.with_logit_bias(token, bias);
    }
    // What is wrong is told before a model is opened.
    params.validate()?;
    Ok(params)
}

fn breakers(args: &Args) -> Result<Option<Vec<String>>> {
    let Some(text) = args.text("dry-breakers")? else { return Ok(None) };
    let texts = serde_json::from_str(text);
    Ok(Some(texts.map_err(|_| format!(r#"--dry-breakers {text:?}: expected a JSON list of texts, such as ["\n"]"#))?))
}

fn biases(args: &Args) -> Result<Vec<(u32, f32)>> {
    let Some(text) = args.text("logit-bias")? else { return Ok(Vec::new()) };
    let pair = |word: &str| {
        let (id, value) = word.split_once('=')?;
        Some((id.trim().parse().ok()?, value.trim().parse().ok()?))
    };
    let read =
        |word| pair(word).ok_or_else(|| format!("--logit-bias: {word:?} is not ID=VALUE, such as 42=-3.5").into());
    text.split(',').map(read).collect()
}
