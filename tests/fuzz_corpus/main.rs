//! Replays the fuzzing corpus on the stable compiler: the same properties, over every file that was kept.
//!
//! `cargo test --test fuzz_corpus -- --ignored` writes the seeds anew; what fuzzing found is kept beside them.

mod properties;
mod seeds;

use std::fs;
use std::path::{Path, PathBuf};

use properties::{chat, gguf, stop, tokenizer};

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// Files that a target's corpus may have: it is replayed in every run and kept in the repository.
const MOST_FILES: usize = 80;
const MOST_BYTES: u64 = 8 << 10;

fn replay(target: &str, check: fn(&[u8]) -> bool) {
    let mut files: Vec<PathBuf> = fs::read_dir(folder(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!((6..=MOST_FILES).contains(&files.len()), "{target}: {} files", files.len());
    for file in &files {
        assert!(fs::metadata(file).unwrap().len() <= MOST_BYTES, "{} is too large", file.display());
        let data = fs::read(file).unwrap();
        // The panic's message is in the output; the file that caused it would not be.
        if std::panic::catch_unwind(|| check(&data)).is_err() {
            panic!("{} breaks a property", file.display());
        }
    }
    println!("{target}: {} files", files.len());
}

#[test]
fn gguf_files() {
    replay("gguf", gguf::check);
}

#[test]
fn tokenizers() {
    replay("tokenizer", tokenizer::check);
}

#[test]
fn chat_templates() {
    replay("chat", chat::check);
}

#[test]
fn stop_strings() {
    replay("stop", stop::check);
}

/// The corpus is what the generator writes, and more: a change of the generator must not leave the old files behind.
#[test]
fn the_seeds_are_those_of_the_generator() {
    for (target, name, bytes) in seeds::all() {
        let path = folder(target).join(&name);
        assert_eq!(fs::read(&path).ok(), Some(bytes), "{}: write the seeds anew", path.display());
    }
}

/// Seeds that are refused at once would exercise nothing behind that.
#[test]
fn most_seeds_get_past_the_door() {
    let targets: [(&str, fn(&[u8]) -> bool); 4] =
        [("gguf", gguf::check), ("tokenizer", tokenizer::check), ("chat", chat::check), ("stop", stop::check)];
    let all = seeds::all();
    for (target, check) in targets {
        let of = || all.iter().filter(|(of, ..)| *of == target);
        let accepted = of().filter(|(.., bytes)| check(bytes)).count();
        assert!(accepted * 3 >= of().count() * 2, "{target}: {accepted} of {}", of().count());
    }
}

#[test]
#[ignore = "writes files"]
fn write_seeds() {
    for (target, name, bytes) in seeds::all() {
        fs::create_dir_all(folder(target)).unwrap();
        fs::write(folder(target).join(name), bytes).unwrap();
    }
}
