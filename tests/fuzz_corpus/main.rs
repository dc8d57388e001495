//! Replays the fuzzing corpus on the stable compiler: the same properties, over every file that was kept.
//!
//! `cargo test --test fuzz_corpus -- --ignored` writes the seeds anew; what fuzzing found is kept beside them. Files
//! are only replayed; with `CANDLEWICK_FUZZ_SECONDS`, copies are damaged at random for that long.

mod mutate;
mod properties;
mod seeds;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use properties::{chat, gguf, safetensors, stop, tokenizer};

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// Files that a target's corpus may have: it is replayed in every run and kept in the repository.
const MOST_FILES: usize = 80;
const MOST_BYTES: u64 = 8 << 10;

/// What an input may take, on a machine that does other things too.
const MOST_TIME: Duration = Duration::from_secs(10);

type Property = fn(&[u8]) -> bool;

fn replay(target: &str, check: Property) {
    let mut files: Vec<PathBuf> = fs::read_dir(folder(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!((6..=MOST_FILES).contains(&files.len()), "{target}: {} files", files.len());
    let mut inputs = Vec::new();
    for file in &files {
        assert!(fs::metadata(file).unwrap().len() <= MOST_BYTES, "{} is too large", file.display());
        inputs.push(fs::read(file).unwrap());
        run(check, inputs.last().unwrap(), &file.display().to_string());
    }
    let dictionary = fs::read_to_string(folder(target).join(format!("../../{target}.dict"))).unwrap_or_default();
    let words = mutate::words(&dictionary);
    let seconds = std::env::var("CANDLEWICK_FUZZ_SECONDS").ok();
    let time = Duration::from_secs(seconds.map_or(0, |text| text.parse().expect("a number of seconds")));
    let mut random = mutate::Random(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        let data = mutate::damaged(&mut random, &inputs, &words);
        run(check, &data, "a damaged input");
        count += 1;
    }
    println!("{target}: {} files, {count} damaged inputs in {:?}", files.len(), start.elapsed());
}

/// Checks one input; one that breaks the property is written to a file, for the panic does not tell it.
fn run(check: Property, data: &[u8], name: &str) {
    let start = Instant::now();
    let broken = std::panic::catch_unwind(|| check(data)).is_err();
    if broken || start.elapsed() > MOST_TIME {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("breaks-{}", std::process::id()));
        fs::write(&path, data).unwrap();
        panic!("{name} breaks a property or takes too long ({:?}): {}", start.elapsed(), path.display());
    }
}

#[test]
fn gguf_files() {
    replay("gguf", gguf::check);
}

#[test]
fn safetensors_directories() {
    replay("safetensors", safetensors::check);
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
    let targets: [(&str, Property); 5] = [
        ("gguf", gguf::check),
        ("safetensors", safetensors::check),
        ("tokenizer", tokenizer::check),
        ("chat", chat::check),
        ("stop", stop::check),
    ];
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
