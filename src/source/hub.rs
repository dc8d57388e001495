//! Fetching files from a Hugging Face hub (feature `hub`).
//!
//! Stands before the sources: it turns a repository and a file name into a path that a source can open. Must not
//! know what is in the file. Reads no environment variable itself; the HTTP client below it follows the system's
//! proxy variables.

use std::fmt;
use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::api::Progress;
use hf_hub::{Cache, Repo, RepoType};

use crate::error::{HubError, HubErrorKind};
use crate::Result;

/// A hub and a cache directory on this machine, which has the layout that other hub clients use, so one download
/// serves them all.
///
/// One file comes with [`fetch`](Hub::fetch), a model in the directory layout with
/// [`fetch_directory`](Hub::fetch_directory). Calls block and have no time limit of their own.
///
/// ```no_run
/// use candlewick::source::Hub;
///
/// let hub = Hub::new("models");
/// let path = hub.fetch("owner/name-GGUF", "name.Q4_K_M.gguf", |done, total| eprintln!("{done} of {total} bytes"))?;
/// # Ok::<(), candlewick::Error>(())
/// ```
#[derive(Clone)]
pub struct Hub {
    endpoint: String,
    token: Option<String>,
    cache: PathBuf,
    revision: String,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A token must not end up in a log.
        f.debug_struct("Hub")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "..."))
            .field("cache", &self.cache)
            .field("revision", &self.revision)
            .finish()
    }
}

impl Hub {
    /// The public hub, with files kept below `cache_dir`.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Hub {
        Hub {
            endpoint: "https://huggingface.co".to_string(),
            token: None,
            cache: cache_dir.into(),
            revision: "main".to_string(),
        }
    }

    /// Another hub, as `http://` or `https://` and a host.
    pub fn endpoint(mut self, url: impl Into<String>) -> Hub {
        self.endpoint = url.into().trim_end_matches('/').to_string();
        self
    }

    /// An access token, for private and gated repositories. It goes to the endpoint; the client's question for a
    /// file's size also takes it along to the storage host that the endpoint redirects to.
    pub fn token(mut self, token: impl Into<String>) -> Hub {
        self.token = Some(token.into());
        self
    }

    /// Another cache directory.
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> Hub {
        self.cache = dir.into();
        self
    }

    /// A branch, tag or commit; `main` by default.
    pub fn revision(mut self, revision: impl Into<String>) -> Hub {
        self.revision = revision.into();
        self
    }

    /// The path of a repository's file: from the cache if it is there, which asks nothing of the network, else
    /// after a download that resumes what an earlier one left. `progress` gets the bytes that are there and all bytes.
    ///
    /// The size is checked against what the hub announced; a file of another size is removed.
    ///
    /// # Errors
    /// [`HubError`], which names repository, file and endpoint and says what to do.
    pub fn fetch(&self, repo: &str, file: &str, progress: impl FnMut(u64, u64)) -> Result<PathBuf> {
        let at = |kind| self.error(repo, file, kind);
        self.check(repo).and_then(|()| check_file(file)).map_err(at)?;
        let cache = self.cache().map_err(at)?;
        let entry = cache.repo(self.repo(repo));
        if let Some(path) = entry.get(file) {
            return Ok(path);
        }
        let api = self.api(&cache).map_err(at)?;
        let handle = api.repo(self.repo(repo));
        let expected = self.ask(|| api.metadata(&handle.url(file))).map_err(at)?;
        // Both become parts of paths in the cache.
        for (what, name) in [("etag", expected.etag()), ("commit", expected.commit_hash())] {
            if !is_plain_name(name) {
                return Err(at(HubErrorKind::Protocol { reason: format!("its {what} is {name:?}") }));
            }
        }
        let blob = entry.blob_path(expected.etag());
        let size = expected.size() as u64;
        remove_stale_part(&blob, size);
        self.download(&handle, file, &blob, size, progress).map_err(at)
    }

    /// The names of a repository's files, as the hub lists them.
    ///
    /// # Errors
    /// [`HubError`], with an empty file name.
    pub fn list(&self, repo: &str) -> Result<Vec<String>> {
        let files = self.check(repo).and_then(|()| self.contents(repo)).map(|(_, files)| files);
        files.map_err(|kind| self.error(repo, "", kind))
    }

    /// The commit that the revision means now, and its files.
    fn contents(&self, repo: &str) -> Result<(String, Vec<String>), HubErrorKind> {
        let handle = self.api(&self.cache()?)?.repo(self.repo(repo));
        let info = self.ask(|| handle.info())?;
        Ok((info.sha, info.siblings.into_iter().map(|sibling| sibling.rfilename).collect()))
    }

    fn download(
        &self,
        handle: &ApiRepo,
        file: &str,
        blob: &Path,
        size: u64,
        progress: impl FnMut(u64, u64),
    ) -> Result<PathBuf, HubErrorKind> {
        let progress = Forward { report: progress, done: 0, total: size };
        let path = self.ask(|| handle.download_with_progress(file, progress))?;
        let found = fs::metadata(&path).map_err(|error| self.io(error))?.len();
        if found == size {
            return Ok(path);
        }
        for part in [path.as_path(), blob] {
            fs::remove_file(part).map_err(|error| self.io(error))?;
        }
        Err(HubErrorKind::Incomplete { expected: size, found })
    }

    fn check(&self, repo: &str) -> Result<(), HubErrorKind> {
        let invalid = |what, found: &str, expected| HubErrorKind::Invalid { what, found: found.to_string(), expected };
        let host = self.endpoint.strip_prefix("https://").or_else(|| self.endpoint.strip_prefix("http://"));
        if !host.is_some_and(|host| !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic())) {
            return Err(invalid("endpoint", &self.endpoint, "http:// or https:// and a host"));
        }
        if !repo.split_once('/').is_some_and(|(owner, name)| is_plain_name(owner) && is_plain_name(name)) {
            return Err(invalid("repository", repo, "owner/name of letters, digits, `-`, `_` and `.`"));
        }
        if !self.revision.split('/').all(is_plain_name) {
            return Err(invalid("revision", &self.revision, "a branch, tag or commit"));
        }
        if !self.token.iter().all(|token| !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic())) {
            return Err(invalid("token", "(not shown)", "visible ASCII characters"));
        }
        Ok(())
    }

    fn cache(&self) -> Result<Cache, HubErrorKind> {
        std::path::absolute(&self.cache).map(Cache::new).map_err(|error| self.io(error))
    }

    fn repo(&self, repo: &str) -> Repo {
        Repo::with_revision(repo.to_string(), RepoType::Model, self.revision.clone())
    }

    fn api(&self, cache: &Cache) -> Result<Api, HubErrorKind> {
        let builder = ApiBuilder::from_cache(cache.clone())
            .with_progress(false)
            .with_endpoint(self.endpoint.clone())
            // Also where it is none: the client would otherwise look for a saved one beside the cache.
            .with_token(self.token.clone());
        self.ask(|| builder.build())
    }

    /// Calls the client. It unwraps a few things that a server decides; those panics become errors here.
    fn ask<T>(&self, call: impl FnOnce() -> Result<T, ApiError>) -> Result<T, HubErrorKind> {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.kind(error)),
            Err(_) => Err(HubErrorKind::Protocol { reason: "the client could not make sense of it".to_string() }),
        }
    }

    fn kind(&self, error: ApiError) -> HubErrorKind {
        match error {
            ApiError::RequestError(error) => self.request_error(error.as_ref()),
            ApiError::TooManyRetries(inner) => self.kind(*inner),
            ApiError::LockAcquisition(lock) => HubErrorKind::Busy { lock },
            // A broken connection comes as an error of the body's reader, which is not a disk's.
            ApiError::IoError(error) if error.get_ref().is_some() => {
                HubErrorKind::Unreachable { reason: error.to_string() }
            }
            ApiError::IoError(error) => self.io(error),
            other => HubErrorKind::Protocol { reason: other.to_string() },
        }
    }

    /// The client's own error type is not ours to name; its words for a status are covered by tests.
    fn request_error(&self, error: &dyn std::error::Error) -> HubErrorKind {
        let reason = error.to_string();
        match reason.strip_prefix("http status: ").and_then(|code| code.parse().ok()) {
            Some(404) => HubErrorKind::NotFound { revision: self.revision.clone() },
            Some(status @ (401 | 403)) => HubErrorKind::Refused { status },
            Some(status) => HubErrorKind::Status { status },
            None => HubErrorKind::Unreachable { reason },
        }
    }

    fn io(&self, error: std::io::Error) -> HubErrorKind {
        HubErrorKind::Io { cache: self.cache.clone(), error }
    }

    fn error(&self, repo: &str, file: &str, kind: HubErrorKind) -> crate::Error {
        let (repo, file, endpoint) = (repo.to_string(), file.to_string(), self.endpoint.clone());
        crate::Error::Hub(Box::new(HubError { repo, file, endpoint, kind }))
    }
}

/// Whether a name is one ordinary part of a path and of an address.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

fn check_file(file: &str) -> Result<(), HubErrorKind> {
    if file.split('/').all(is_plain_name) {
        return Ok(());
    }
    let expected = "a relative path of letters, digits, `-`, `_` and `.`";
    Err(HubErrorKind::Invalid { what: "file", found: file.to_string(), expected })
}

/// A part file of full size or more cannot be resumed: the server would be asked for a range that it does not have.
fn remove_stale_part(blob: &Path, size: u64) {
    let part = blob.with_extension("part");
    if fs::metadata(&part).is_ok_and(|found| found.len() >= size) {
        // If it cannot be removed, the client says so when it opens it.
        let _ = fs::remove_file(&part);
    }
}

/// Turns the client's steps into bytes done of bytes in all.
struct Forward<F> {
    report: F,
    done: u64,
    total: u64,
}

impl<F: FnMut(u64, u64)> Progress for Forward<F> {
    fn init(&mut self, size: usize, _: &str) {
        (self.done, self.total) = (0, size as u64);
        (self.report)(self.done, self.total);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        (self.report)(self.done, self.total);
    }

    fn finish(&mut self) {}
}

#[path = "hub_directory.rs"]
mod directory;

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
