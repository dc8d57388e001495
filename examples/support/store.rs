//! The local cache of models: where it is, checked files, and exclusive, all-or-nothing writing.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::catalog::Model;
use super::Result;

/// The directory that models are kept in: `$CANDLEWICK_CACHE`, else `candlewick/models` in `$XDG_CACHE_HOME`, else
/// in `~/.cache`.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("CANDLEWICK_CACHE") {
        return Ok(dir);
    }
    let base = set("XDG_CACHE_HOME").or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    match base {
        Some(base) => Ok(base.join("candlewick").join("models")),
        None => Err("there is no home directory to keep models in; set CANDLEWICK_CACHE to a directory".into()),
    }
}

/// The model's file, if it is there with the right size. Contents are verified when the file is written, not here.
pub(crate) fn cached(dir: &Path, model: &Model) -> Option<PathBuf> {
    let path = dir.join(model.file);
    let found = fs::metadata(&path).ok()?;
    (found.is_file() && found.len() == model.bytes).then_some(path)
}

/// The right to write one model of the cache, and a private folder for it. The folder goes with the value, so that
/// neither an error nor a lost race leaves a partial file; what a killed process left goes with the next lock.
#[derive(Debug)]
pub(crate) struct Slot {
    folder: PathBuf,
    target: PathBuf,
    // Held for its lock, which the system releases with the process at the latest.
    _lock: File,
}

impl Slot {
    /// Waits until no other process writes this model.
    pub(crate) fn lock(dir: &Path, model: &Model) -> Result<Slot> {
        let locks = dir.join(".locks");
        fs::create_dir_all(&locks).map_err(|e| cannot("create", &locks, &e))?;
        let lock_path = locks.join(model.name);
        let lock = File::create(&lock_path).map_err(|e| cannot("create", &lock_path, &e))?;
        lock.lock().map_err(|e| cannot("lock", &lock_path, &e))?;
        let slot =
            Slot { folder: dir.join(format!(".{}.partial", model.name)), target: dir.join(model.file), _lock: lock };
        slot.empty()?;
        Ok(slot)
    }

    /// Makes the private folder new.
    pub(crate) fn empty(&self) -> Result {
        self.remove_folder()?;
        fs::create_dir(&self.folder).map_err(|e| cannot("create", &self.folder, &e))
    }

    /// The private folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the finished file of the private folder is expected.
    pub(crate) fn partial(&self) -> PathBuf {
        self.folder.join("model")
    }

    /// Gives the partial file, verified before, its name: in one step for every reader.
    pub(crate) fn commit(self) -> Result<PathBuf> {
        let partial = self.partial();
        fs::rename(&partial, &self.target).map_err(|e| cannot("rename", &partial, &e))?;
        Ok(self.target.clone())
    }

    fn remove_folder(&self) -> Result {
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(cannot("remove", &self.folder, &error)),
            _ => Ok(()),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Whatever cannot be removed now is removed under the next lock.
        let _ = self.remove_folder();
    }
}

/// Checks size and, where known, SHA-256.
pub(crate) fn verify(path: &Path, model: &Model) -> Result {
    let mut file = File::open(path).map_err(|e| cannot("open", path, &e))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0u64;
    loop {
        let n = file.read(&mut buffer).map_err(|e| cannot("read", path, &e))?;
        if n == 0 {
            break;
        }
        bytes += n as u64;
        hasher.update(&buffer[..n]);
    }
    if bytes != model.bytes {
        return Err(format!("{}: got {bytes} bytes, expected {}", model.file, model.bytes).into());
    }
    let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if found != model.sha256 {
        return Err(format!("{}: got SHA-256 {found}, expected {}", model.file, model.sha256).into());
    }
    Ok(())
}

/// Appends a file to another.
pub(crate) fn append(from: &Path, to: &mut File) -> Result {
    let mut source = File::open(from).map_err(|e| cannot("open", from, &e))?;
    io::copy(&mut source, to).map_err(|e| cannot("copy", from, &e))?;
    to.flush()?;
    Ok(())
}

/// Bytes of all files below a folder; what vanishes meanwhile counts as nothing.
pub(crate) fn size_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => size_below(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// An error that names the file.
pub(crate) fn cannot(what: &str, path: &Path, error: &io::Error) -> Box<dyn std::error::Error + Send + Sync> {
    format!("cannot {what} {}: {error}", path.display()).into()
}
