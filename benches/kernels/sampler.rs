//! Samplers over a vocabulary of 151,936 tokens: from logits to the drawn token.

use std::time::{Duration, Instant};

use candlewick::kernel::Cpu;
use candlewick::sample::{
    draw, Chain, Distribution, Greedy, NoiseKey, SampleContext, Sampler, SamplerSession, SamplingParams,
};
use criterion::Criterion;

use super::rate::{Group, Work};

/// The vocabulary of Qwen2.
const VOCAB: usize = 151_936;

pub(crate) fn bench(criterion: &mut Criterion, cpu: &Cpu) {
    let group = Group::new(cpu);
    let params = SamplingParams::new;
    let chain = |params: SamplingParams| Chain::new().open(&params).expect("the chain takes every parameter");
    run(criterion, &group, "greedy", Greedy.open(&params()).expect("nothing is set"));
    run(criterion, &group, "temperature", chain(params().with_temperature(0.8)));
    run(criterion, &group, "top-k", chain(params().with_temperature(0.8).with_top_k(40)));
    run(criterion, &group, "top-p", chain(params().with_temperature(0.8).with_top_p(0.95)));
    run(criterion, &group, "min-p", chain(params().with_temperature(0.8).with_min_p(0.05)));
    let usual = params().with_temperature(0.8).with_top_k(40).with_top_p(0.95).with_min_p(0.05);
    run(criterion, &group, "penalties-top-k-top-p-min-p", chain(usual.with_repetition_penalty(1.1)));
}

fn run(criterion: &mut Criterion, group: &Group<'_>, name: &str, mut session: Box<dyn SamplerSession>) {
    let work = Work { bytes: 4 * VOCAB, ..Work::default() };
    group.bench(criterion, (&format!("sampler/{name}"), &VOCAB.to_string()), work, || {
        let fresh = logits();
        let prompt: Vec<u32> = (0..512).map(|i| i * 97 % VOCAB as u32).collect();
        let (mut logits, mut distribution) = (fresh.clone(), Distribution::new());
        move |iterations| {
            let mut time = Duration::ZERO;
            for position in 0..iterations {
                // A sampler may overwrite them.
                logits.copy_from_slice(&fresh);
                let noise = NoiseKey { seed: 1, choice: 0, position };
                let context = SampleContext { prompt: &prompt, generated: &[], position: prompt.len(), noise };
                let start = Instant::now();
                session.distribution(&context, &mut logits, &mut distribution).expect("finite logits");
                std::hint::black_box(draw(&distribution, &noise).expect("there are candidates"));
                time += start.elapsed();
            }
            time
        }
    });
}

/// About the shape of a model's logits: a bell, and a few tokens far above it.
fn logits() -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let mut logits: Vec<f32> = (0..VOCAB).map(|_| 3.0 * (0..4).map(|_| uniform() - 0.5).sum::<f32>()).collect();
    for (rank, logit) in logits.iter_mut().step_by(VOCAB / 50).enumerate() {
        *logit = 14.0 - 0.2 * rank as f32;
    }
    logits
}
