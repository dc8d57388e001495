//! A sampler of one's own: no sequence of n tokens appears twice in an answer. It leaves everything else to the
//! built-in chain, so every sampling parameter works as ever. Needs no model file.
//!
//!     cargo run --release --example custom_sampler

use candlewick::sample::{argmax, Chain, Distribution, SampleContext, Sampler, SamplerSession, SamplingParams};
use candlewick::testing::{check_sampler, TinyModel};
use candlewick::{Engine, Request, Result, TokenId};

// The sampler begins here.

/// Forbids tokens that would complete an n-gram which prompt and answer already have.
#[derive(Debug)]
struct NoRepeat {
    n: usize,
    chain: Chain,
}

struct NoRepeatSession {
    n: usize,
    chain: Box<dyn SamplerSession>,
}

impl Sampler for NoRepeat {
    fn name(&self) -> &str {
        "no-repeat"
    }

    fn open(&self, params: &SamplingParams) -> Result<Box<dyn SamplerSession>> {
        Ok(Box::new(NoRepeatSession { n: self.n.max(1), chain: self.chain.open(params)? }))
    }
}

impl SamplerSession for NoRepeatSession {
    fn distribution(&mut self, context: &SampleContext<'_>, logits: &mut [f32], out: &mut Distribution) -> Result<()> {
        let (best, highest) = argmax(logits)?;
        let text = [context.prompt, context.generated].concat();
        let beginning = &text[text.len().saturating_sub(self.n - 1)..];
        for ngram in text.windows(self.n).filter(|ngram| ngram[..self.n - 1] == *beginning) {
            if let Some(logit) = logits.get_mut(ngram[self.n - 1] as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        // Something must be left: where all would repeat, the best token may.
        if logits.iter().all(|&logit| logit == f32::NEG_INFINITY) {
            logits[best as usize] = highest;
        }
        self.chain.distribution(context, logits, out)
    }

    fn observe(&mut self, token: TokenId) {
        self.chain.observe(token);
    }

    fn can_fork(&self) -> bool {
        self.chain.can_fork()
    }

    fn fork(&self) -> Option<Box<dyn SamplerSession>> {
        Some(Box::new(NoRepeatSession { n: self.n, chain: self.chain.fork()? }))
    }
}

// The sampler ends here.

/// Tokens of a sequence that must not repeat.
const N: usize = 4;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let sampler = || NoRepeat { n: N, chain: Chain::new() };
    let configurations = [
        SamplingParams::new().with_temperature(0.8).with_top_k(40).with_top_p(0.95),
        SamplingParams::new().with_temperature(1.0).with_mirostat_tau(3.0),
    ];
    check_sampler(&sampler(), &configurations)?;
    println!("conformance suite: passed");

    let mut engine = Engine::builder(TinyModel::llama().build()?).threads(1).build()?;
    let request = || Request::prompt("Once upon a time").max_tokens(96).ignore_eos(true);
    let repeats = |tokens: &[TokenId]| {
        let sequences: Vec<&[TokenId]> = tokens.windows(N).collect();
        (0..sequences.len()).filter(|&at| sequences[..at].contains(&sequences[at])).count()
    };
    let (plain, varied) = (engine.complete(request())?, engine.complete(request().sampler(sampler()))?);
    let (without, with) = (repeats(&plain.token_ids), repeats(&varied.token_ids));
    println!("sequences of {N} tokens that repeat: {without} without it, {with} with it");
    if with > 0 {
        return Err("a sequence of tokens appears twice".into());
    }
    Ok(())
}
