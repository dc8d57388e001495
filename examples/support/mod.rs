//! What every example shares: the command line, finding a model, opening an engine, and how a program ends.
//!
//! Not part of the library. It may read the environment, print and start processes; the library does none of that.

// Each example is its own program and uses its own part of this module.
#![allow(dead_code)]

pub(crate) mod args;
pub(crate) mod catalog;
pub(crate) mod ceilings;
pub(crate) mod commands;
pub(crate) mod engine;
pub(crate) mod fetch;
pub(crate) mod sampling;
pub(crate) mod stats;
pub(crate) mod store;
pub(crate) mod wheel;

#[cfg(feature = "hub")]
pub(crate) mod hub;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use args::{Args, Command, Parsed};

pub(crate) type Failure = Box<dyn Error + Send + Sync>;
/// What an example's steps answer: any error, told in one line at the end.
pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

/// Reads the command line, runs the example and turns its end into an exit status: 0, or 1 after one line on
/// stderr (2 where the command line itself is wrong).
pub(crate) fn run(command: &'static Command, body: fn(&Args) -> Result) -> ExitCode {
    let args = match args::parse(command, std::env::args_os().skip(1)) {
        Ok(Parsed::Run(args)) => args,
        Ok(Parsed::Help(text)) => return finish(command, io::stdout().write_all(text.as_bytes()).map_err(Into::into)),
        Err(message) => {
            report(command, &format!("{message} (--help lists the flags)"));
            return ExitCode::from(2);
        }
    };
    finish(command, body(&args))
}

fn finish(command: &Command, result: Result) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output went away, as `head` does: nothing is wrong and nobody is left to tell.
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            report(command, &one_line(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn report(command: &Command, message: &str) {
    // Without a stderr there is no one to tell; the exit status still speaks.
    let _ = writeln!(io::stderr(), "{}: {message}", command.name);
}

fn is_broken_pipe(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// An error and its causes in one line, each cause once.
pub(crate) fn one_line(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes one JSON object as one line to stdout.
pub(crate) fn print_json(value: &serde_json::Value) -> Result {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()?;
    Ok(())
}
