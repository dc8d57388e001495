//! The shape of the code, checked by reading it: the order of the rooms, where `unsafe` may stand, how long a file
//! may be, where public traits live, and that no path of anyone's machine is written down.
//!
//! Reads text, not syntax: comments and string literals are blanked first. The last tests feed it violations.

mod layering {
    pub(crate) mod rules;
    pub(crate) mod text;
}

use std::fs;
use std::path::{Path, PathBuf};

use layering::rules::{self, Source};

/// All Rust files of the crate, and the documents that are published with it.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "tests", "examples", "benches", "docs", "scripts", ".ci"] {
        collect(&root.join(folder), &mut files);
    }
    files.extend(["README.md", "CHANGELOG.md", "Cargo.toml"].map(|name| root.join(name)));
    files.sort();
    let read = |path: PathBuf| {
        // Data of tests may be binary; only text has something to check.
        let text = String::from_utf8(fs::read(&path).ok()?).ok()?;
        let name = path.strip_prefix(root).ok()?.to_str()?.replace('\\', "/");
        Some(Source { name, text })
    };
    files.into_iter().filter_map(read).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

fn source(name: &str, text: &str) -> Source {
    Source { name: name.to_string(), text: text.to_string() }
}

/// The complaints about one file that is not there.
fn complaints(name: &str, text: &str) -> Vec<String> {
    rules::check(&source(name, text))
}

#[test]
fn the_code_keeps_its_shape() {
    let sources = sources();
    let library = sources.iter().filter(|s| s.name.starts_with("src/") && s.name.ends_with(".rs")).count();
    assert!(library >= 10, "found only {library} files below src: the check looks in the wrong place");
    let found: Vec<String> = sources.iter().flat_map(rules::check).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
    println!("checked {} files, {library} of them below src", sources.len());
}

#[test]
fn every_room_of_the_tree_has_its_place_in_the_order() {
    let found: Vec<String> = sources().iter().filter_map(|s| rules::unplaced(&s.name)).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn an_arrow_back_is_caught_in_every_spelling() {
    for text in [
        "use crate::engine::Engine;",
        "pub(crate) use crate::engine::Engine;",
        "use crate::{Result, engine::Engine};",
        "use crate::{\n    error::{A, B},\n    engine::{Engine, Request},\n};",
        "fn f() { crate::engine::run(); }",
        "use super::engine::Engine;",
        "use crate :: engine::Engine;",
    ] {
        let found = complaints("src/model/mod.rs", text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].contains("src/model/mod.rs") && found[0].contains("engine"), "{found:?}");
    }
    assert_eq!(complaints("src/model/arch/llama.rs", "use super::super::super::engine::Engine;").len(), 1);
    // A name re-exported at the root is an arrow to the room that it comes from.
    assert_eq!(complaints("src/source/mod.rs", "use crate::Engine;").len(), 1);
}

#[test]
fn arrows_forward_are_allowed() {
    for (name, text) in [
        ("src/engine/mod.rs", "use crate::model::Decoder;\nuse crate::{sample::Chain, kernel, Result};"),
        ("src/model/mod.rs", "use crate::kernel::Cpu;\nuse crate::types::TokenId;\nuse crate::{Result, SourceError};"),
        ("src/kernel/mod.rs", "use crate::source::Dtype;\nuse crate::error::Error;"),
        ("src/testing/mod.rs", "use crate::engine::Engine;"),
        ("src/quant/mod.rs", "// use crate::engine::Engine;\nconst A: &str = \"crate::engine::Engine\";"),
        ("src/quant/packed.rs", "use super::engine::X;"),
        ("src/lib.rs", "use crate::engine::Engine;"),
        ("tests/a.rs", "use candlewick::Engine;"),
    ] {
        let found = complaints(name, text);
        assert!(found.is_empty(), "{name}: {text}: {found:?}");
    }
    // The kernel may know the types of tensors and nothing else of the sources.
    assert_eq!(complaints("src/kernel/mod.rs", "use crate::source::{Dtype, Metadata};").len(), 1);
    assert_eq!(complaints("src/kernel/mod.rs", "use crate::quant::Stored;").len(), 1);
}

#[test]
fn a_room_that_tests_itself_with_later_rooms_is_caught_outside_tests_only() {
    let text = "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::testing::tiny;\n}\n";
    assert!(complaints("src/model/mod.rs", text).is_empty());
    assert!(complaints("src/model/decoder_tests.rs", "use crate::testing::tiny;").is_empty());
    assert_eq!(complaints("src/model/mod.rs", "use crate::testing::tiny;").len(), 1);
}

#[test]
fn unsafe_is_caught_outside_the_kernels() {
    assert_eq!(complaints("src/model/mod.rs", "fn f() { unsafe { g() } }").len(), 1);
    assert_eq!(complaints("examples/a.rs", "unsafe fn f() {}").len(), 1);
    assert!(complaints("src/kernel/scalar.rs", "fn f() { unsafe { g() } }").is_empty());
    for text in ["// unsafe", "const A: &str = \"unsafe\";", "fn not_unsafe_here() {}", "#![deny(unsafe_code)]"] {
        assert!(complaints("src/model/mod.rs", text).is_empty(), "{text}");
    }
}

#[test]
fn long_files_and_stray_traits_are_caught() {
    assert!(complaints("src/a.rs", &"\n".repeat(600)).is_empty());
    assert_eq!(complaints("tests/a.rs", &"\n".repeat(601)).len(), 1);
    assert_eq!(complaints("src/sample/chain.rs", "pub trait Sampler {}").len(), 1);
    assert!(complaints("src/sample/mod.rs", "pub trait Sampler {}").is_empty());
    assert!(complaints("src/sample/chain.rs", "pub(crate) trait Step {}").is_empty());
}

#[test]
fn paths_of_a_machine_are_caught() {
    // Put together here, so that this file does not name one itself.
    for folder in ["home", "tmp", "work", "root", "Users"] {
        let text = format!("see /{folder}/someone/file");
        assert_eq!(complaints("docs/a.md", &text).len(), 1, "{text}");
        assert_eq!(complaints("src/source/a.rs", &format!("// {text}")).len(), 1, "{text}");
    }
    assert!(complaints("docs/a.md", "src/tmp/file and https://example.org/home/x").is_empty());
}
