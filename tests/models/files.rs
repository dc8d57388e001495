//! Finding the models, one at a time: they are large, and timings want the machine for themselves.

#[allow(dead_code)]
#[path = "../../examples/support/catalog.rs"]
mod catalog;

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use candlewick::{Engine, EngineBuilder, Gguf};

static TURN: Mutex<()> = Mutex::new(());

/// A model's file, and the right to use the machine.
pub(crate) struct Model {
    pub(crate) path: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Model {
    /// The model of this name in the catalog; `None`, with a line on stderr, if it is not in the cache.
    ///
    /// # Panics
    /// If it is absent although `CANDLEWICK_REQUIRE_MODELS=1`.
    pub(crate) fn find(name: &str) -> Option<Model> {
        let model = catalog::ALL.iter().find(|m| m.name == name).expect("a name of the catalog");
        let path = cache_dir().join(model.file);
        if std::fs::metadata(&path).is_ok_and(|found| found.len() == model.bytes) {
            // A test that failed while it held the turn must not fail the others.
            let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            return Some(Model { path, _turn: turn });
        }
        let hint = format!("fetch it by `cargo run --release --example models -- fetch {name}`");
        assert!(std::env::var_os("CANDLEWICK_REQUIRE_MODELS").is_none_or(|v| v != "1"), "no model {name}: {hint}");
        // Not through `eprintln!`, which the test harness would swallow.
        let _ = writeln!(std::io::stderr(), "SKIPPED: a test of {name}, which is not in the cache; {hint}");
        None
    }

    pub(crate) fn source(&self) -> Gguf {
        Gguf::open(&self.path).unwrap()
    }

    pub(crate) fn engine(&self, set: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Engine {
        set(Engine::builder(self.source())).build().unwrap()
    }
}

fn cache_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("CANDLEWICK_CACHE").unwrap_or_else(|| {
        let home = || std::env::home_dir().unwrap_or_default().join(".cache");
        set("XDG_CACHE_HOME").unwrap_or_else(home).join("candlewick").join("models")
    })
}
