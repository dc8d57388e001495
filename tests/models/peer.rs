//! Decoding must not be slower than candle-transformers' quantized model on the same file, measured in turns.

use std::time::Instant;

use candle_transformers::models::quantized_llama::ModelWeights;
use candlewick::candle::quantized::gguf_file;
use candlewick::candle::{Device, Tensor};
use candlewick::{Engine, Request, TokenId};

use crate::files::Model;

const TOKENS: usize = 32;
const ROUNDS: usize = 5;

fn prompt() -> Vec<TokenId> {
    (0..16).map(|i| 1000 + 7 * i).collect()
}

/// Tokens per second of decoding, the prompt not counted.
fn ours(engine: &mut Engine) -> f64 {
    let request = Request::tokens(prompt()).max_tokens(TOKENS + 1).ignore_eos(true);
    let usage = engine.complete(request).unwrap().usage;
    TOKENS as f64 / usage.decode.as_secs_f64()
}

fn theirs(model: &mut ModelWeights) -> f64 {
    let best = |logits: &Tensor| logits.argmax(1).unwrap().to_vec1::<u32>().unwrap()[0];
    let input = Tensor::new(prompt(), &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let mut token = best(&model.forward(&input, 0).unwrap());
    let start = Instant::now();
    for i in 0..TOKENS {
        let input = Tensor::new(&[token], &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        token = best(&model.forward(&input, prompt().len() + i).unwrap());
    }
    TOKENS as f64 / start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn decoding_is_not_slower_than_candle_transformers() {
    let Some(model) = Model::find("smollm2-135m") else { return };
    let mut engine = model.engine(|b| b);
    let mut file = std::fs::File::open(&model.path).unwrap();
    let content = gguf_file::Content::read(&mut file).unwrap();
    let mut peer = ModelWeights::from_gguf(content, &mut file, &Device::Cpu).unwrap();
    // Both warm, then in turns.
    let _ = (ours(&mut engine), theirs(&mut peer));
    let pairs: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (ours(&mut engine), theirs(&mut peer))).collect();
    let ratio = median(pairs.iter().map(|(a, b)| a / b).collect());
    let (a, b) = (median(pairs.iter().map(|p| p.0).collect()), median(pairs.iter().map(|p| p.1).collect()));
    println!("decode: {a:.1} tokens/s, candle-transformers {b:.1} tokens/s, ratio {ratio:.2}");
    assert!(ratio >= 1.0, "{a:.1} against {b:.1} tokens/s, ratio {ratio:.2}");
}
