//! Drafts change how fast an answer comes and nothing else, whatever the drafter does.

use super::tests::{engine, essence, models, prompts, request, sampled, together};
use super::*;
use crate::draft::{DraftBatch, DraftContext, DraftJob, Drafter, Ngram};
use crate::sample::Greedy;
use crate::testing::{splitmix64, TinyModel};
use crate::types::TokenId;
use crate::{Error, RequestError};

/// Requests of all kinds, for the same prompts: greedy and sampled, ended by length, stop strings and stop tokens.
fn requests() -> Vec<Request> {
    let mut requests = Vec::new();
    for (i, prompt) in prompts().iter().enumerate() {
        requests.push(request(prompt).max_tokens(40));
        requests.push(sampled(prompt, i as u64).max_tokens(23 + i));
        requests.push(request(prompt).temperature(0.4).seed(9).min_tokens(5).max_tokens(30));
        requests.push(request(prompt).sampler(Greedy).stop_token(77).stop_token(131).max_tokens(30));
    }
    requests
}

/// Prompts that say everything twice, so that there is something to look up.
fn doubled(prompt: &[TokenId]) -> Vec<TokenId> {
    prompt.iter().chain(prompt).copied().collect()
}

#[test]
fn answers_are_the_same_with_and_without_a_drafter() {
    for model in models() {
        let expected: Vec<_> = together(&mut engine(&model, |b| b), requests()).iter().map(essence).collect();
        let builds: [&dyn Fn(EngineBuilder) -> EngineBuilder; 5] = [
            &|b| b.drafter(Ngram::default()),
            &|b| b.drafter(Ngram::new(2, 5)).draft_tokens(16).threads(2),
            &|b| b.drafter(Ngram::default()).draft_tokens(1).step_tokens(7).max_sequences(3),
            &|b| b.drafter(Noise { seed: 3, of: 4 }).draft_tokens(5),
            &|b| b.drafter(Noise { seed: 4, of: 300 }).step_tokens(33).max_sequences(2),
        ];
        let mut drafted = [0; 5];
        let mut accepted = [0; 5];
        for (i, build) in builds.iter().enumerate() {
            let outputs = together(&mut engine(&model, build), requests());
            drafted[i] = outputs.iter().map(|o| o.usage.drafted_tokens).sum();
            accepted[i] = outputs.iter().map(|o| o.usage.accepted_tokens).sum();
            assert_eq!(outputs.iter().map(essence).collect::<Vec<_>>(), expected, "build {i}");
        }
        // The comparison means something only where drafts were made, and taken.
        assert!(drafted.iter().all(|&d| d > 0), "{drafted:?}");
        assert!(accepted[0] > 0 && accepted[1] > 0, "{accepted:?}");
    }
}

#[test]
fn stop_rules_end_answers_inside_drafts() {
    // The script repeats the prompt's first four tokens for ever: every draft is right.
    let build = |drafter: bool| {
        let builder = Engine::builder(TinyModel::llama().build().unwrap()).threads(1);
        let builder = builder.script(|tokens, logits| {
            logits.fill(0.0);
            logits[tokens[tokens.len() % 4] as usize] = 5.0;
        });
        if drafter { builder.drafter(Ngram::default()) } else { builder }.build().unwrap()
    };
    let (mut plain, mut drafting) = (build(false), build(true));
    let prompt: Vec<TokenId> = (0..4).map(|i| plain.tokenizer().token_id(["a", "b", "c", "d"][i]).unwrap()).collect();
    let prompt = doubled(&doubled(&prompt));
    for max_tokens in 1..30 {
        let request = || Request::tokens(prompt.clone()).max_tokens(max_tokens).logprobs(2);
        let (expected, output) = (plain.complete(request()).unwrap(), drafting.complete(request()).unwrap());
        assert_eq!(essence(&output), essence(&expected));
        assert_eq!((output.token_ids.len(), output.finish_reason), (max_tokens, FinishReason::Length));
        if max_tokens > 4 {
            assert!(output.usage.accepted_tokens > 0);
        }
    }
    for (stop, text) in [("cd", "ab"), ("dab", "abc"), ("bcdabcd", "a"), ("d", "abc")] {
        let request = || Request::tokens(prompt.clone()).max_tokens(30).stop(stop);
        let (expected, output) = (plain.complete(request()).unwrap(), drafting.complete(request()).unwrap());
        assert_eq!(essence(&output), essence(&expected));
        assert_eq!((output.text.as_str(), output.finish_reason), (text, FinishReason::Stop));
    }
    let third = prompt[2];
    let request = || Request::tokens(prompt.clone()).max_tokens(30).stop_token(third).min_tokens(5);
    let (expected, output) = (plain.complete(request()).unwrap(), drafting.complete(request()).unwrap());
    assert_eq!(essence(&output), essence(&expected));
    assert!(output.token_ids.len() > 5 && output.token_ids.last() == Some(&third));
    // Steps: 30 tokens in far fewer than 30.
    drafting.submit(Request::tokens(prompt.clone()).max_tokens(30)).unwrap();
    let mut steps = 0;
    while !drafting.is_idle() {
        drafting.step().unwrap();
        drafting.check_integrity().unwrap();
        steps += 1;
    }
    assert!(steps < 10, "{steps} steps");
}

/// Proposes random tokens below `of`.
#[derive(Clone, Debug)]
struct Noise {
    seed: u64,
    of: u64,
}

impl Drafter for Noise {
    fn name(&self) -> &str {
        "noise"
    }
    fn start(&self, _: &DraftContext) -> Result<Box<dyn DraftBatch>> {
        Ok(Box::new(self.clone()))
    }
}

impl DraftBatch for Noise {
    fn add(&mut self, _: SequenceId, _: &[TokenId]) -> Result<()> {
        Ok(())
    }
    fn propose(&mut self, jobs: &mut [DraftJob<'_>]) -> Result<()> {
        for job in jobs {
            loop {
                self.seed += 1;
                if !job.push((splitmix64(7, self.seed) % self.of) as TokenId) {
                    break;
                }
            }
        }
        Ok(())
    }
    fn verified(&mut self, _: SequenceId, _: &[TokenId], _: usize) {}
    fn remove(&mut self, _: SequenceId) {}
}

/// Fails at the given call, in the given way.
#[derive(Clone, Debug)]
struct Broken {
    at: &'static str,
    panics: bool,
}

impl Broken {
    fn reach(&self, at: &str) -> Result<()> {
        match (self.at == at, self.panics) {
            (true, true) => panic!("by design, in {at}"),
            (true, false) => Err(RequestError::EmptyPrompt.into()),
            (false, _) => Ok(()),
        }
    }
}

impl Drafter for Broken {
    fn name(&self) -> &str {
        "broken"
    }
    fn start(&self, _: &DraftContext) -> Result<Box<dyn DraftBatch>> {
        self.reach("start")?;
        Ok(Box::new(self.clone()))
    }
}

impl DraftBatch for Broken {
    fn add(&mut self, _: SequenceId, _: &[TokenId]) -> Result<()> {
        self.reach("add")
    }
    fn propose(&mut self, jobs: &mut [DraftJob<'_>]) -> Result<()> {
        for job in jobs {
            // A token outside the vocabulary after one inside.
            job.push(5);
            job.push(1 << 30);
        }
        self.reach("propose")
    }
    fn verified(&mut self, _: SequenceId, _: &[TokenId], _: usize) {
        self.reach("verified").unwrap_or(());
    }
    fn remove(&mut self, _: SequenceId) {
        self.reach("remove").unwrap_or(());
    }
}

#[test]
fn a_failing_drafter_is_switched_off_and_counted() {
    let model = TinyModel::llama();
    let expected: Vec<_> = together(&mut engine(&model, |b| b), requests()).iter().map(essence).collect();
    for at in ["add", "propose", "verified", "remove", "never"] {
        for panics in [false, true] {
            let mut engine = engine(&model, |b| b.drafter(Broken { at, panics }));
            let outputs = together(&mut engine, requests());
            assert_eq!(outputs.iter().map(essence).collect::<Vec<_>>(), expected, "{at} {panics}");
            // Every draft holds a token that does not exist; one failure is enough.
            assert!(outputs.iter().all(|o| (1..=2).contains(&o.usage.draft_errors)), "{at} {panics}");
            assert!(outputs.iter().all(|o| o.usage.drafted_tokens <= 1));
        }
    }
}

#[test]
fn a_drafter_that_cannot_start_fails_the_build() {
    let build = |drafter: Broken| {
        Engine::builder(TinyModel::llama().build().unwrap()).threads(1).drafter(drafter).build().unwrap_err()
    };
    assert!(matches!(build(Broken { at: "start", panics: false }), Error::Request(_)));
    match build(Broken { at: "start", panics: true }) {
        Error::Extension { room, name, message } => {
            assert_eq!((room, name.as_str()), ("draft", "broken"));
            assert!(message.contains("by design"));
        }
        other => panic!("{other:?}"),
    }
    let mut bad = Engine::builder(TinyModel::llama().build().unwrap()).drafter(Ngram::new(0, 1)).build();
    assert!(bad.unwrap_err().to_string().contains("ngram"));
    for tokens in [0, 65] {
        bad =
            Engine::builder(TinyModel::llama().build().unwrap()).drafter(Ngram::default()).draft_tokens(tokens).build();
        assert!(bad.unwrap_err().to_string().contains("draft_tokens"));
    }
}
