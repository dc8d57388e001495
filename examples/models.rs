//! The catalog of models: lists them, fetches them into the cache, tells their paths.

mod support;

use std::io::{self, Write};
use std::process::ExitCode;

use support::args::Args;
use support::{catalog, commands, fetch, store, Result};

fn main() -> ExitCode {
    support::run(&commands::MODELS, models)
}

fn models(args: &Args) -> Result {
    let mut out = io::stdout().lock();
    match args.positionals.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["list"] => {
            let dir = store::cache_dir()?;
            for model in &catalog::ALL {
                let state = if store::cached(&dir, model).is_some() { "cached" } else { "absent" };
                let megabytes = (model.bytes + 500_000) / 1_000_000;
                let (name, kind) = (model.name, model.kind.as_str());
                writeln!(out, "{name:<20} {state} {megabytes:>5} MB  {kind:<19}  {}  ({})", model.file, model.licence)?;
            }
        }
        ["fetch", "all"] => {
            for model in &catalog::ALL {
                writeln!(out, "{}", fetch::fetch(model)?.display())?;
            }
        }
        ["fetch", name] => writeln!(out, "{}", fetch::fetch(known(name)?)?.display())?,
        ["path", name] => {
            let model = known(name)?;
            let dir = store::cache_dir()?;
            let path =
                store::cached(&dir, model).ok_or_else(|| format!("{name} is not in the cache; fetch it first"))?;
            writeln!(out, "{}", path.display())?;
        }
        _ => return Err(format!("expected {}", commands::MODELS.usage).into()),
    }
    Ok(())
}

fn known(name: &str) -> Result<&'static catalog::Model> {
    catalog::by_name(name).ok_or_else(|| format!("no model {name}; known are {}", catalog::all_names()).into())
}
