//! StreamingLLM's observation on a real model: with a few sinks a window reads on as well as ever, without them the
//! model collapses.

use candlewick::cache::Window;
use candlewick::EncodeOptions;

use crate::files::Model;

/// Tokens that a plain evaluation sees at a time, and that the policy keeps.
const WINDOW: usize = 1024;
const TOKENS: usize = 3 * WINDOW;

fn perplexity(log_probs: &[f32]) -> f64 {
    (-log_probs.iter().map(|&l| f64::from(l)).sum::<f64>() / log_probs.len() as f64).exp()
}

/// The same tokens by three ways: the second halves of windows of 1,024 tokens, all but the first window, where the
/// stream has not outgrown the policy's window yet.
#[test]
fn sinks_carry_a_stream_beyond_its_window() {
    let Some(model) = Model::find("smollm2-135m") else { return };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/wiki.test.excerpt.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let mut plain = model.engine(|b| b);
    let tokens = plain.tokenizer().encode(&text, EncodeOptions::DOCUMENT).unwrap();
    let tokens = &tokens[..TOKENS];
    let windows = tokens.chunks(WINDOW).skip(1);
    let expected: Vec<f32> = windows.flat_map(|w| plain.score(w, WINDOW / 2).unwrap().log_probs).collect();
    let expected = perplexity(&expected);
    drop(plain);
    let streamed = |sinks| {
        let mut engine = model.engine(|b| b.cache_policy(Window { size: WINDOW, sinks }));
        let all = engine.score(tokens, WINDOW).unwrap().log_probs;
        let halves = all.chunks(WINDOW).flat_map(|w| &w[WINDOW / 2..]).copied();
        perplexity(&halves.collect::<Vec<_>>())
    };
    let (with, without) = (streamed(4), streamed(0));
    println!("perplexity plain {expected:.3}, window with 4 sinks {with:.3}, without {without:.3}");
    assert!(with < 1.1 * expected, "with sinks {with}, plain {expected}");
    assert!(without > 1.1 * expected, "without sinks {without}, plain {expected}");
}
