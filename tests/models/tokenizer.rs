//! Tokenizers of real vocabularies: reference cases, and speed on a megabyte.

use std::time::{Duration, Instant};

use candlewick::{EncodeOptions, Tokenizer};

use crate::files::Model;

const NAMES: [&str; 3] = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"];

fn tokenizer(name: &str) -> Option<Tokenizer> {
    Model::find(name)
        .map(|model| Tokenizer::from_metadata(candlewick::WeightSource::metadata(&model.source())).unwrap())
}

fn data(file: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/data/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn qwen2_cases_equal_the_reference() {
    let Some(tokenizer) = tokenizer("qwen2.5-coder-0.5b") else { return };
    let (input, expected) = (data("tokenizer/qwen2.inp"), data("tokenizer/qwen2.out"));
    let mut cases: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
    // The file ends with a separator.
    assert_eq!(cases.pop(), Some(""));
    let expected: Vec<&str> = expected.lines().map(str::trim).collect();
    assert_eq!(cases.len(), expected.len());
    assert!(cases.len() > 40);
    for (case, expected) in cases.iter().zip(expected) {
        let ids: Vec<String> =
            tokenizer.encode(case, EncodeOptions::PLAIN).unwrap().iter().map(u32::to_string).collect();
        assert_eq!(ids.join(" "), expected, "{case:?}");
    }
}

/// The best of three, for the machine may be busy.
fn best(f: impl Fn()) -> Duration {
    let time = || {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    (0..3).map(|_| time()).min().unwrap()
}

#[test]
fn a_megabyte_takes_less_than_two_seconds_and_comes_back() {
    for name in NAMES {
        let Some(tokenizer) = tokenizer(name) else { return };
        let text = data("wiki.test.excerpt.txt").repeat(14);
        assert!(text.len() > 1_000_000);
        let time = best(|| drop(tokenizer.encode(&text, EncodeOptions::PLAIN).unwrap()));
        println!("{name}: {} bytes in {time:.2?}", text.len());
        assert!(time < Duration::from_secs(2), "{name}: {time:?}");
        let ids = tokenizer.encode(&text, EncodeOptions::PLAIN).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text, "{name}");
    }
}

#[test]
fn one_repeated_character_is_not_quadratic() {
    for name in NAMES {
        let Some(tokenizer) = tokenizer(name) else { return };
        for character in ["a", " ", "\n", "7", "é", "😀", "<", "▁"] {
            let time = |bytes: usize| {
                let text = character.repeat(bytes / character.len());
                best(|| drop(tokenizer.encode(&text, EncodeOptions::PLAIN).unwrap()))
            };
            let (short, long) = (time(20_000), time(200_000));
            println!("{name}: 200 kB of {character:?} in {long:.2?}, 20 kB in {short:.2?}");
            // Quadratic work would take a hundred times as long.
            assert!(long < short * 40 + Duration::from_millis(20), "{name} {character:?}: {short:?}, {long:?}");
            assert!(long < Duration::from_secs(2), "{name} {character:?}: {long:?}");
        }
    }
}
