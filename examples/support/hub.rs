//! The hub as the examples use it: its client's usual cache, token and endpoint, and a limit on silence.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use candlewick::source::Hub;
use indicatif::ProgressBar;

use super::fetch::progress_bar;
use super::store::{cannot, Slot};
use super::Result;

/// A hub that says nothing for this long does not count as reachable.
const SILENCE: Duration = Duration::from_secs(20);

/// What the thread that talks to the hub says.
enum Said {
    Progress { done: u64, total: u64 },
    File(PathBuf),
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

/// The file of a repository; without a name, the repository's one GGUF file or its Q4_K_M.
pub(crate) fn fetch(repo: &str, file: Option<&str>) -> Result<PathBuf> {
    let hub = hub()?;
    let (repo, file) = (repo.to_string(), file.map(str::to_string));
    let bar = progress_bar(file.as_deref().unwrap_or(&repo));
    let path = guarded(&bar, move |say| {
        let file = match file {
            Some(file) => file,
            None => choose(&repo, &hub.list(&repo)?)?,
        };
        Ok(hub.fetch(&repo, &file, say)?)
    });
    bar.finish_and_clear();
    path
}

/// Fetches a catalog model and copies it to the slot.
pub(crate) fn fetch_into(repo: &'static str, file: &'static str, slot: &Slot, bar: &ProgressBar) -> Result {
    let hub = hub()?;
    let path = guarded(bar, move |say| Ok(hub.fetch(repo, file, say)?))?;
    let source = fs::canonicalize(&path).map_err(|e| cannot("open", &path, &e))?;
    let partial = slot.partial();
    // A second name costs nothing; across file systems it takes a copy.
    if fs::hard_link(&source, &partial).is_err() {
        fs::copy(&source, &partial).map_err(|e| cannot("copy", &source, &e))?;
    }
    Ok(())
}

/// Picks the file to run when only the repository is named.
pub(crate) fn choose(repo: &str, files: &[String]) -> Result<String> {
    let models: Vec<&String> = files.iter().filter(|f| f.to_ascii_lowercase().ends_with(".gguf")).collect();
    let preferred = models.iter().find(|f| f.to_ascii_lowercase().ends_with("q4_k_m.gguf"));
    match (models.as_slice(), preferred) {
        ([], _) => Err(format!("{repo}: the repository has no .gguf file").into()),
        ([only], _) => Ok(only.to_string()),
        (_, Some(file)) => Ok(file.to_string()),
        (several, None) => {
            let names = several.iter().map(|f| f.as_str()).collect::<Vec<_>>().join(", ");
            Err(format!("{repo}: several files; name one as {repo}:FILE, of {names}").into())
        }
    }
}

fn hub() -> Result<Hub> {
    let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let home = set("HF_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache").join("huggingface")))
        .ok_or("there is no home directory for the hub's cache; set HF_HOME")?;
    let mut hub = Hub::new(home.join("hub"));
    if let Some(endpoint) = set("HF_ENDPOINT") {
        hub = hub.endpoint(endpoint);
    }
    let saved = || fs::read_to_string(home.join("token")).ok();
    if let Some(token) = set("HF_TOKEN").or_else(saved).map(|t| t.trim().to_string()).filter(|t| !t.is_empty()) {
        hub = hub.token(token);
    }
    Ok(hub)
}

/// Runs a transfer on a thread of its own and gives up on it when it falls silent: the client has no time limits,
/// and a network that swallows packets must not hold a user up.
fn guarded<F>(bar: &ProgressBar, transfer: F) -> Result<PathBuf>
where
    F: FnOnce(&mut dyn FnMut(u64, u64)) -> Result<PathBuf> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let progress = sender.clone();
        // A receiver that gave up makes these fail; the process is about to use another way.
        let outcome = transfer(&mut |done, total| {
            let _ = progress.send(Said::Progress { done, total });
        });
        let _ = sender.send(match outcome {
            Ok(path) => Said::File(path),
            Err(why) => Said::Failed(why),
        });
    });
    loop {
        match receiver.recv_timeout(SILENCE) {
            Ok(Said::Progress { done, total }) => {
                bar.set_length(total);
                bar.set_position(done);
            }
            Ok(Said::File(path)) => return Ok(path),
            Ok(Said::Failed(why)) => return Err(why),
            Err(RecvTimeoutError::Timeout) => return Err(format!("no answer for {} s", SILENCE.as_secs()).into()),
            Err(RecvTimeoutError::Disconnected) => return Err("the transfer ended without a word".into()),
        }
    }
}
