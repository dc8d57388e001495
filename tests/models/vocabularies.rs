//! The vocabularies of many model families, with llama.cpp's cases and ids for each.

use std::collections::BTreeMap;

use candlewick::source::Gguf;
use candlewick::{EncodeOptions, Error, Tokenizer, TokenizerError, WeightSource};

use crate::files::Model;

/// Families whose algorithm is not byte-pair encoding.
const REFUSED: [(&str, &str); 2] = [("bert-bge", "bert"), ("nomic-bert-moe", "t5")];

/// Families that have to be there with their cases.
const WITH_CASES: [&str; 15] = [
    "bert-bge",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

/// The files of the bundle: each stands behind a line with its name and its size.
fn files(bundle: &[u8]) -> BTreeMap<String, &[u8]> {
    let mut files = BTreeMap::new();
    let mut rest = bundle;
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let line = std::str::from_utf8(&rest[..end]).unwrap();
        let (name, size) = line.split_once(' ').unwrap();
        let (file, after) = rest[end + 1..].split_at(size.parse().unwrap());
        files.insert(name.strip_prefix("ggml-vocab-").unwrap().to_string(), file);
        rest = after;
    }
    files
}

#[test]
fn every_byte_pair_and_sentencepiece_family_equals_the_reference() {
    let Some(model) = Model::find("vocabularies") else { return };
    let bundle = std::fs::read(&model.path).unwrap();
    let files = files(&bundle);
    let path = std::env::temp_dir().join(format!("candlewick-vocabulary-{}.gguf", std::process::id()));
    let (mut ran, mut cases_ran) = (Vec::new(), 0);
    for (name, file) in files.iter().filter_map(|(name, file)| Some((name.strip_suffix(".gguf")?, file))) {
        std::fs::write(&path, file).unwrap();
        let tokenizer = Tokenizer::from_metadata(Gguf::open(&path).unwrap().metadata());
        if let Some((_, algorithm)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
            let error = tokenizer.expect_err(name);
            let known =
                matches!(&error, Error::Tokenizer(TokenizerError::UnsupportedModel { model }) if model == algorithm);
            assert!(known, "{name}: {error}");
            println!("{name}: refused, {algorithm}");
            ran.push(name);
            continue;
        }
        let tokenizer = tokenizer.unwrap_or_else(|error| panic!("{name}: {error}"));
        let texts =
            |ending: &str| files.get(&format!("{name}.gguf.{ending}")).map(|text| std::str::from_utf8(text).unwrap());
        let (Some(input), Some(output)) = (texts("inp"), texts("out")) else {
            println!("{name}: read, has no cases");
            continue;
        };
        let cases: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
        // The file may end with a separator.
        let cases = cases.strip_suffix(&[""]).unwrap_or(&cases);
        let expected: Vec<&str> = output.lines().map(str::trim).collect();
        assert_eq!(cases.len(), expected.len(), "{name}");
        for (case, expected) in cases.iter().zip(expected) {
            let ids = tokenizer.encode(case, EncodeOptions::PLAIN).unwrap();
            let text = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            assert_eq!(text, expected, "{name}: {case:?}");
            assert_eq!(tokenizer.decode_document(&ids), *case, "{name}");
        }
        println!("{name}: {} cases", cases.len());
        cases_ran += cases.len();
        ran.push(name);
    }
    std::fs::remove_file(&path).unwrap();
    for name in WITH_CASES {
        assert!(ran.contains(&name), "{name} did not run");
    }
    assert!(cases_ran > 600, "{cases_ran}");
}
