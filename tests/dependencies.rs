//! What the crate brings along, counted with cargo itself. `docs/dependencies.md` states the command.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Crates that the default build may consist of, this one included.
const MAX_CRATES: usize = 170;

/// Crates of a network client; none may come without the feature `hub`.
const NETWORK: [&str; 12] = [
    "attohttpc",
    "curl",
    "hf-hub",
    "hyper",
    "isahc",
    "native-tls",
    "openssl",
    "reqwest",
    "rustls",
    "tokio",
    "ureq",
    "webpki-roots",
];

/// The versions of every crate in the tree of normal dependencies, as cargo prints it.
fn tree(flags: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .args(flags)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            crates.entry(name.to_string()).or_default().insert(version.to_string());
        }
    }
    crates
}

#[test]
fn the_default_tree_stays_small() {
    let crates = tree(&[]);
    let count: usize = crates.values().map(BTreeSet::len).sum();
    assert!(crates.contains_key("candlewick") && crates.contains_key("candle-core"), "this is not our tree");
    assert!(crates.contains_key("hf-hub"), "the default features have the hub");
    println!("{count} crates in the default tree");
    assert!(count < MAX_CRATES, "{count} crates, at most {}", MAX_CRATES - 1);
}

#[test]
fn no_network_client_comes_without_the_hub() {
    let crates = tree(&["--no-default-features"]);
    let found: Vec<&str> = NETWORK.into_iter().filter(|name| crates.contains_key(*name)).collect();
    assert!(found.is_empty(), "without `hub` the tree has {found:?}");
    // The list would say nothing if it missed the client that `hub` does bring.
    let with_hub = tree(&[]);
    assert!(NETWORK.iter().any(|name| with_hub.contains_key(*name)));
}

#[test]
fn there_is_one_version_of_each_crate_that_appears_in_interfaces() {
    let crates = tree(&["--features", "hub,testing"]);
    for name in ["candle-core", "tokenizers", "half"] {
        let versions = crates.get(name).map_or(0, BTreeSet::len);
        assert_eq!(versions, 1, "{name}: {:?}", crates.get(name));
    }
}

#[test]
fn every_dependency_has_its_reason_in_the_documentation() {
    let page = include_str!("../docs/dependencies.md");
    let mut names = Vec::new();
    let mut is_inside = false;
    for line in include_str!("../Cargo.toml").lines() {
        if let Some(section) = line.strip_prefix('[') {
            is_inside = section.trim_end_matches(']').ends_with("dependencies");
        } else if let (true, Some((name, _))) = (is_inside, line.split_once(" = ")) {
            names.push(name.trim());
        }
    }
    assert!(names.contains(&"candle-core") && names.contains(&"lexopt"), "{names:?}");
    for name in names.into_iter().filter(|name| *name != "candlewick") {
        let is_named = page.lines().any(|line| line.starts_with('|') && line.split(['|', ',', ' ']).any(|w| w == name));
        assert!(is_named, "docs/dependencies.md does not say why {name} is there");
    }
}
