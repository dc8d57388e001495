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
    let mut options = EncodeOptions::default();
    (options.add_special, options.parse_special) = (special, special);
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
        return print_json(&json!({ "ids": ids, "text": decoded(&tokenizer, &text, options)? }));
    }
    writeln!(out, "{}", words(&ids))?;
    Ok(())
}

/// What the file says after the way there and back: control tokens in it are kept, what the model puts around a
/// text (BOS, EOS, a space) is not.
fn decoded(tokenizer: &Tokenizer, text: &str, mut options: EncodeOptions) -> Result<String> {
    options.add_special = false;
    let ids = tokenizer.encode(text, options)?;
    let mut decoded = tokenizer.decode(&ids, false);
    if tokenizer.decode(&ids, true).len() > tokenizer.decode_document(&ids).len() {
        decoded.remove(0);
    }
    Ok(decoded)
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
