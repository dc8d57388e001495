//! One command line for all examples: a table of flags, strict parsing, checked values, generated help.
//!
//! A command names the flags it takes; everything else is an error. Nothing is clamped and nothing is guessed.

use std::ffi::{OsStr, OsString};
use std::fmt::{Display, Write as _};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use lexopt::Arg;

use super::Result;

/// One flag: its names, its value's name (none for a switch), its default in words and what it does.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) long: &'static str,
    pub(crate) short: Option<char>,
    pub(crate) value: Option<&'static str>,
    /// Whether it may be given several times.
    pub(crate) repeats: bool,
    pub(crate) help: &'static str,
}

/// One example's command line.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) usage: &'static str,
    /// How many positional arguments are accepted.
    pub(crate) positionals: usize,
    /// In groups, in the order of the help text.
    pub(crate) flags: &'static [&'static [Flag]],
}

/// A command line that was read.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// Run with these arguments.
    Run(Args),
    /// `--help` was given: print this and stop.
    Help(String),
}

/// The arguments of one run. Asking for a flag that the command does not declare is a programming error.
#[derive(Debug)]
pub(crate) struct Args {
    command: &'static Command,
    values: Vec<(&'static str, OsString)>,
    switches: Vec<&'static str>,
    pub(crate) positionals: Vec<String>,
}

/// Reads `arguments` (without the program's name) by the command's table; the error is one sentence.
pub(crate) fn parse(
    command: &'static Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> std::result::Result<Parsed, String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut args = Args { command, values: Vec::new(), switches: Vec::new(), positionals: Vec::new() };
    while let Some(argument) = parser.next().map_err(|e| e.to_string())? {
        let flag = match &argument {
            Arg::Long("help") | Arg::Short('h') => return Ok(Parsed::Help(command.help())),
            Arg::Long(name) => command.flags().find(|f| f.long == *name),
            Arg::Short(name) => command.flags().find(|f| f.short == Some(*name)),
            Arg::Value(_) => None,
        };
        let Some(flag) = flag else {
            match argument {
                Arg::Value(value) if args.positionals.len() < command.positionals => {
                    let text = value.into_string().map_err(|v| format!("argument {v:?} is not valid UTF-8"))?;
                    args.positionals.push(text);
                    continue;
                }
                other => return Err(other.unexpected().to_string()),
            }
        };
        if args.is_given(flag.long) && !flag.repeats {
            return Err(format!("--{} is given twice", flag.long));
        }
        if flag.value.is_some() {
            args.values.push((flag.long, parser.value().map_err(|e| e.to_string())?));
        } else {
            args.switches.push(flag.long);
        }
    }
    Ok(Parsed::Run(args))
}

impl Command {
    pub(crate) fn flags(&self) -> impl Iterator<Item = &'static Flag> {
        self.flags.iter().copied().flatten()
    }

    /// The text of `--help`.
    pub(crate) fn help(&self) -> String {
        let mut text = format!("{}\n\nUsage: {} {}\n\nFlags:\n", self.about, self.name, self.usage);
        let mut lines = Vec::new();
        for flag in self.flags() {
            let mut names = String::new();
            if let Some(short) = flag.short {
                let _ = write!(names, "-{short}, ");
            }
            let _ = write!(names, "--{}", flag.long);
            if let Some(value) = flag.value {
                let _ = write!(names, " {value}");
            }
            lines.push((names, flag.help));
        }
        lines.push(("-h, --help".to_string(), "Print this text"));
        let width = lines.iter().map(|(names, _)| names.len()).max().unwrap_or(0);
        for (names, help) in lines {
            let _ = writeln!(text, "  {names:<width$}  {help}");
        }
        text
    }
}

impl Args {
    /// Whether the command has the flag.
    pub(crate) fn takes(&self, long: &str) -> bool {
        self.command.flags().any(|flag| flag.long == long)
    }

    /// Whether the flag was given.
    pub(crate) fn is_given(&self, long: &str) -> bool {
        self.value(long).is_some() || self.switches.contains(&long)
    }

    /// Whether the switch was given.
    pub(crate) fn switch(&self, long: &'static str) -> bool {
        debug_assert!(self.command.flags().any(|f| f.long == long && f.value.is_none()), "undeclared --{long}");
        self.switches.contains(&long)
    }

    fn value(&self, long: &str) -> Option<&OsStr> {
        self.values.iter().find(|(name, _)| *name == long).map(|(_, value)| value.as_os_str())
    }

    fn declared(&self, long: &'static str) -> Option<&OsStr> {
        debug_assert!(self.command.flags().any(|f| f.long == long && f.value.is_some()), "undeclared --{long}");
        self.value(long)
    }

    /// A text value, valid UTF-8.
    pub(crate) fn text(&self, long: &'static str) -> Result<Option<&str>> {
        self.declared(long)
            .map(|v| v.to_str().ok_or_else(|| format!("--{long}: {v:?} is not valid UTF-8").into()))
            .transpose()
    }

    /// All values of a flag that may be given several times, in order.
    pub(crate) fn texts(&self, long: &'static str) -> Result<Vec<&str>> {
        debug_assert!(self.command.flags().any(|f| f.long == long && f.repeats), "undeclared --{long}");
        let given = self.values.iter().filter(|(name, _)| *name == long);
        given.map(|(_, v)| v.to_str().ok_or_else(|| format!("--{long}: {v:?} is not valid UTF-8").into())).collect()
    }

    /// A path value; any bytes that the system allows.
    pub(crate) fn path(&self, long: &'static str) -> Option<PathBuf> {
        self.declared(long).map(PathBuf::from)
    }

    /// A path value that must be there.
    pub(crate) fn required_path(&self, long: &'static str) -> Result<PathBuf> {
        self.path(long).ok_or_else(|| format!("--{long} is needed").into())
    }

    /// A number within a range, both ends included.
    pub(crate) fn number<T>(&self, long: &'static str, range: RangeInclusive<T>) -> Result<Option<T>>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(text) = self.text(long)? else { return Ok(None) };
        match text.parse::<T>() {
            // A NaN is in no range.
            Ok(value) if range.contains(&value) => Ok(Some(value)),
            _ => Err(format!("--{long} {text:?}: expected a number from {} to {}", range.start(), range.end()).into()),
        }
    }

    /// One word of a list.
    pub(crate) fn choice<T: Copy>(&self, long: &'static str, choices: &[(&str, T)]) -> Result<Option<T>> {
        let Some(text) = self.text(long)? else { return Ok(None) };
        match choices.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words = choices.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
                Err(format!("--{long} {text:?}: expected one of {words}").into())
            }
        }
    }

    /// Token ids, separated by commas, at least one.
    pub(crate) fn ids(&self, long: &'static str) -> Result<Option<Vec<u32>>> {
        let Some(text) = self.text(long)? else { return Ok(None) };
        let ids = text.split(',').map(|word| {
            word.trim().parse::<u32>().map_err(|_| {
                format!("--{long}: {word:?} is not a token id; expected numbers separated by commas, such as 1,2,3")
                    .into()
            })
        });
        ids.collect::<Result<Vec<u32>>>().map(Some)
    }

    /// Fails where two flags of a group are given.
    pub(crate) fn at_most_one(&self, group: &[&'static str]) -> Result<Option<&'static str>> {
        let mut given = group.iter().copied().filter(|long| self.is_given(long));
        let first = given.next();
        if let (Some(first), Some(second)) = (first, given.next()) {
            return Err(format!("--{first} and --{second} exclude each other").into());
        }
        Ok(first)
    }
}
