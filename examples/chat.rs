//! Answers a prompt with a model's chat template, or holds a conversation on a terminal.
//!
//!     cargo run --release --example chat -- "Why is the sky blue?"

mod support;

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::process::ExitCode;

use candlewick::sample::SamplingParams;
use candlewick::{Engine, Message, Request, RequestError};
use support::args::Args;
use support::engine::{build, figures, open_source, stream, Needs};
use support::{commands, fetch, one_line, sampling, Failure, Result};

/// The longest prompt that is read from a pipe, in bytes; far beyond any model's context.
const MAX_PIPE: u64 = 16 << 20;

const NO_PROMPT: &str = "there is no prompt: give one as an argument or on stdin";

fn main() -> ExitCode {
    support::run(&commands::CHAT, chat)
}

/// How answers are generated.
struct Style {
    system: Option<String>,
    params: SamplingParams,
    seed: Option<u64>,
    max_tokens: usize,
}

fn chat(args: &Args) -> Result {
    let style = Style {
        system: args.text("system")?.map(str::to_string),
        params: sampling::params(args)?,
        seed: args.number("seed", 0..=u64::MAX)?,
        max_tokens: args.number("max-tokens", 1..=1 << 24)?.unwrap_or(commands::CHAT_MAX_TOKENS),
    };
    // A prompt argument wins: stdin is then left alone.
    let prompt = match args.positionals.first() {
        Some(prompt) if prompt.is_empty() => return Err(NO_PROMPT.into()),
        Some(prompt) => Some(prompt.clone()),
        None if io::stdin().is_terminal() => None,
        None => Some(piped_prompt()?),
    };
    let source = open_source(&fetch::resolve(args.text("model")?)?)?;
    let (mut engine, _) = build(args, source, Needs::default())?;
    match prompt {
        Some(prompt) => {
            let mut messages = style.opening();
            messages.push(Message::user(prompt));
            style.answer(&mut engine, &messages)?;
            Ok(())
        }
        None => converse(&mut engine, &style),
    }
}

/// With what to do about a model that was not made for chats.
fn hinted(error: Failure) -> Failure {
    match error.downcast_ref() {
        Some(candlewick::Error::Request(RequestError::MissingChatTemplate)) => {
            format!("{}. The example `generate --raw` continues a text with this model", one_line(error.as_ref()))
                .into()
        }
        _ => error,
    }
}

fn piped_prompt() -> Result<String> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(MAX_PIPE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_PIPE {
        return Err(format!("the prompt on stdin is longer than {MAX_PIPE} bytes").into());
    }
    let text = String::from_utf8(bytes).map_err(|_| "the prompt on stdin is not valid UTF-8")?;
    let prompt = text.trim_end_matches(['\r', '\n']);
    if prompt.is_empty() {
        return Err(NO_PROMPT.into());
    }
    Ok(prompt.to_string())
}

/// Reads turns until the end of input. A turn that fails is told and forgotten; the conversation goes on.
fn converse(engine: &mut Engine, style: &Style) -> Result {
    eprintln!("An empty line or the end of input leaves; /clear forgets the conversation.");
    let mut messages = style.opening();
    let mut lines = io::stdin().lock().lines();
    loop {
        eprint!("> ");
        let line = match lines.next() {
            Some(line) => line?,
            None => break,
        };
        match line.trim() {
            "" => break,
            "/clear" => messages = style.opening(),
            text => {
                messages.push(Message::user(text));
                match style.answer(engine, &messages) {
                    Ok(answer) => messages.push(Message::assistant(answer)),
                    Err(error) => {
                        messages.pop();
                        eprintln!("{} (/clear starts anew)", one_line(error.as_ref()));
                    }
                }
            }
        }
    }
    Ok(())
}

impl Style {
    fn opening(&self) -> Vec<Message> {
        self.system.iter().map(Message::system).collect()
    }

    /// Streams one answer to stdout and its figures to stderr.
    fn answer(&self, engine: &mut Engine, messages: &[Message]) -> Result<String> {
        let mut request =
            Request::chat(messages.iter().cloned()).max_tokens(self.max_tokens).params(self.params.clone());
        if let Some(seed) = self.seed {
            request = request.seed(seed);
        }
        let mut out = io::stdout().lock();
        let output = stream(engine, request, &mut out).map_err(hinted)?;
        writeln!(out)?;
        eprintln!("{}", figures(&output.usage));
        Ok(output.text)
    }
}
