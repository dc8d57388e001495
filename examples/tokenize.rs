//! Turns a text into token ids, and back, with the vocabulary of a model file. Reads no weights.

mod support;

use std::io::{self, Write};
use std::process::ExitCode;

use candlewick::source::WeightSource;
use candlewick::{EncodeOptions, Tokenizer};
use serde_json::json;
use support::args::Args;
use support::engine::{read_text, source};
use support::{commands, print_json, Result};

/// What stands between two cases of a `.inp` file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

fn main() -> ExitCode {
    support::run(&commands::TOKENIZE, tokenize)
}

fn tokenize(args: &Args) -> Result {
    let input = args.at_most_one(&["file", "cases"])?.ok_or("a text is needed: --file or --cases")?;
    let path = args.required_path(input)?;
    let text = read_text(&path)?;
    let special = !args.switch("no-special");
    let options = EncodeOptions { add_special: special, parse_special: special };
    let source = source(args)?;
    let tokenizer = Tokenizer::from_metadata(source.metadata())?;
    let mut out = io::stdout().lock();
    if input == "cases" {
        for case in cases(&text) {
            writeln!(out, "{}", words(&tokenizer.encode(case, options)?))?;
        }
        return Ok(());
    }
    let ids = tokenizer.encode(&text, options)?;
    if args.switch("json") {
        drop(out);
        // The text is what the file says: without the BOS or EOS that the model adds, with control tokens in it.
        let own = tokenizer.encode(&text, EncodeOptions { add_special: false, ..options })?;
        return print_json(&json!({ "ids": ids, "text": tokenizer.decode(&own, false) }));
    }
    writeln!(out, "{}", words(&ids))?;
    Ok(())
}

/// The cases of a `.inp` file; a separator at the end starts none.
fn cases(text: &str) -> Vec<&str> {
    let mut cases: Vec<&str> = text.split(SEPARATOR).collect();
    if cases.len() > 1 && cases.last() == Some(&"") {
        cases.pop();
    }
    cases
}

fn words(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}
