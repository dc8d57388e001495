//! Perplexity by llama.cpp's protocol against the values that it reports on the same files.

use candlewick::EncodeOptions;

use crate::files::Model;

const WINDOW: usize = 512;
const WINDOWS: usize = 20;

/// Consecutive windows; the second half of each is scored.
fn perplexity(name: &str) -> Option<f64> {
    let model = Model::find(name)?;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/wiki.test.excerpt.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let mut engine = model.engine(|b| b.step_tokens(WINDOW));
    let options = EncodeOptions { add_special: true, parse_special: false };
    let tokens = engine.tokenizer().encode(&text, options).unwrap();
    assert!(tokens.len() >= WINDOW * WINDOWS, "the excerpt has {} tokens", tokens.len());
    let bos = engine.tokenizer().bos().filter(|_| engine.tokenizer().adds_bos());
    let (mut sum, mut count) = (0.0, 0);
    for window in tokens.chunks(WINDOW).take(WINDOWS) {
        let mut window = window.to_vec();
        if let Some(bos) = bos {
            window[0] = bos;
        }
        let score = engine.score(&window, WINDOW / 2 + 1).unwrap();
        sum -= score.log_probs.iter().map(|&l| f64::from(l)).sum::<f64>();
        count += score.log_probs.len();
    }
    Some((sum / count as f64).exp())
}

fn within_one_percent(name: &str, reference: f64) {
    let Some(ours) = perplexity(name) else { return };
    println!("{name}: perplexity {ours:.3}, reference {reference}");
    assert!((ours / reference - 1.0).abs() < 0.01, "{name}: {ours}, reference {reference}");
}

#[test]
fn smollm2() {
    within_one_percent("smollm2-135m", 28.757);
}

#[test]
fn gemma3() {
    within_one_percent("gemma3-270m", 19.064);
}

#[test]
fn qwen2_half_a_billion() {
    within_one_percent("qwen2.5-coder-0.5b", 38.101);
}

#[test]
fn qwen2_one_and_a_half_billion() {
    within_one_percent("qwen2.5-coder-1.5b", 16.079);
}
