//! A drafter of one's own: a table of what last followed each pair of tokens, in any sequence that the engine ran. Needs
//! no model file.
//!
//!     cargo run --release --example custom_drafter

use std::collections::HashMap;

use candlewick::draft::{DraftBatch, DraftContext, DraftJob, Drafter};
use candlewick::testing::{check_drafter, TinyModel};
use candlewick::{Engine, Request, Result, SequenceId, TokenId};

// The drafter begins here.

/// Learns from all sequences, so that a request profits from those before it.
#[derive(Debug)]
struct Pairs;

#[derive(Default)]
struct PairTable(HashMap<(TokenId, TokenId), TokenId>);

impl PairTable {
    fn learn(&mut self, tokens: &[TokenId]) {
        self.0.extend(tokens.windows(3).map(|w| ((w[0], w[1]), w[2])));
    }
}

impl Drafter for Pairs {
    fn name(&self) -> &str {
        "pairs"
    }

    fn start(&self, _: &DraftContext) -> Result<Box<dyn DraftBatch>> {
        Ok(Box::new(PairTable::default()))
    }
}

impl DraftBatch for PairTable {
    fn add(&mut self, _: SequenceId, tokens: &[TokenId]) -> Result<()> {
        self.learn(tokens);
        Ok(())
    }

    fn propose(&mut self, jobs: &mut [DraftJob<'_>]) -> Result<()> {
        for job in jobs {
            // What the step before brought: a few tokens at most.
            self.learn(&job.tokens()[job.tokens().len().saturating_sub(16)..]);
            let [.., mut a, mut b] = *job.tokens() else { continue };
            while let Some(&next) = self.0.get(&(a, b)).filter(|&&next| job.push(next)) {
                (a, b) = (b, next);
            }
        }
        Ok(())
    }

    fn verified(&mut self, _: SequenceId, _: &[TokenId], _: usize) {}

    fn remove(&mut self, _: SequenceId) {}
}

// The drafter ends here.

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    check_drafter(&Pairs)?;
    println!("conformance suite: passed");

    let request = || Request::prompt("Once upon a time").max_tokens(200).ignore_eos(true);
    let mut plain = Engine::builder(TinyModel::llama().build()?).threads(1).build()?;
    let mut drafting = Engine::builder(TinyModel::llama().build()?).threads(1).drafter(Pairs).build()?;
    let expected = plain.complete(request())?;
    for round in ["first", "second"] {
        let output = drafting.complete(request())?;
        let usage = &output.usage;
        println!("{round} time: {} of {} drafted tokens accepted", usage.accepted_tokens, usage.drafted_tokens);
        if output.token_ids != expected.token_ids {
            return Err("a drafter may not change the answer".into());
        }
    }
    Ok(())
}
