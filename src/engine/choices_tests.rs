//! Several answers to one prompt, what may be chosen, and what is reported beside the answer.

use super::tests::{engine, essence, models, prompts, request, sampled, together};
use super::*;
use crate::draft::Ngram;
use crate::testing::TinyModel;
use crate::types::TokenId;
use crate::{Error, RequestError, ResourceError};

#[test]
fn each_of_several_answers_is_a_function_of_seed_and_index() {
    for model in models() {
        let mut alone = engine(&model, |b| b);
        let single = alone.complete(sampled(&prompts()[3], 5)).unwrap();
        let expected = alone.complete_all(sampled(&prompts()[3], 5).n(4)).unwrap();
        assert_eq!(essence(&expected[0]), essence(&single));
        assert_eq!(expected.iter().map(|o| o.choice).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let texts: std::collections::HashSet<_> = expected.iter().map(|o| &o.token_ids).collect();
        assert!(texts.len() > 1, "four answers of random models differ");
        let builds: [&dyn Fn(EngineBuilder) -> EngineBuilder; 3] =
            [&|b| b.step_tokens(7), &|b| b.drafter(Ngram::default()).threads(2), &|b| b.max_sequences(4)];
        for build in builds {
            let mut engine = engine(&model, build);
            // Beside other requests.
            engine.submit(request(&prompts()[4])).unwrap();
            engine.submit(sampled(&prompts()[1], 3).n(2)).unwrap();
            let outputs = engine.complete_all(sampled(&prompts()[3], 5).n(4)).unwrap();
            assert_eq!(
                outputs.iter().map(essence).collect::<Vec<_>>(),
                expected.iter().map(essence).collect::<Vec<_>>()
            );
            while !engine.is_idle() {
                engine.step().unwrap();
                engine.check_integrity().unwrap();
            }
            assert_eq!(engine.kv_blocks_in_use(), 0);
        }
    }
}

#[test]
fn answers_of_one_request_end_one_by_one() {
    let mut engine = engine(&TinyModel::llama(), |b| b);
    let id = engine.submit(sampled(&prompts()[2], 1).n(3).max_tokens(9)).unwrap();
    let mut texts = vec![String::new(); 3];
    let mut ends = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            assert_eq!(event.id(), id);
            match event {
                Event::Token { piece, .. } => texts[piece.choice as usize].push_str(&piece.text),
                Event::Finished { remaining, output, .. } => ends.push((remaining, output)),
            }
        }
        engine.check_integrity().unwrap();
    }
    assert_eq!(ends.iter().map(|(remaining, _)| *remaining).collect::<Vec<_>>(), [2, 1, 0]);
    for (_, output) in &ends {
        assert_eq!(output.text, texts[output.choice as usize]);
        assert_eq!(output.token_ids.len(), 9);
    }
    // Cancelled before and after the prompt has run.
    for steps in [0, 1, 3] {
        let id = engine.submit(sampled(&prompts()[2], 1).n(3)).unwrap();
        for _ in 0..steps {
            engine.step().unwrap();
        }
        assert!(engine.cancel(id));
        let finished = engine.step().unwrap().iter().filter(|e| matches!(e, Event::Finished { .. })).count();
        assert_eq!(finished, if steps == 0 { 1 } else { 3 });
        engine.check_integrity().unwrap();
        assert_eq!((engine.kv_blocks_in_use(), engine.is_idle()), (0, true));
    }
}

#[test]
fn numbers_of_answers_that_cannot_run_are_refused() {
    let mut engine = engine(&TinyModel::llama(), |b| b.max_sequences(4).kv_tokens(128));
    for n in [0, 5, usize::MAX] {
        let error = engine.submit(request(&prompts()[1]).n(n)).unwrap_err();
        assert!(matches!(error, Error::Request(RequestError::InvalidParameter { name: "n", .. })), "{error}");
    }
    let error = engine.submit(request(&prompts()[3]).n(4)).unwrap_err();
    assert!(matches!(error, Error::Resources(ResourceError::CacheTooSmall { .. })), "{error}");
    assert_eq!(engine.complete_all(request(&prompts()[1]).n(4)).unwrap().len(), 4);
}

#[test]
fn only_legal_tokens_are_chosen() {
    let mut engine = engine(&TinyModel::llama(), |b| b);
    let prompt = &prompts()[2];
    let free = engine.complete(request(prompt).max_tokens(30)).unwrap();
    let banned: Vec<TokenId> = free.token_ids.clone();
    let output = engine.complete(request(prompt).max_tokens(30).banned_tokens(banned.clone())).unwrap();
    assert!(output.token_ids.iter().all(|t| !banned.contains(t)));
    // The reported log-probabilities are the model's own.
    assert_eq!(output.logprobs.as_ref().unwrap()[0].top, free.logprobs.as_ref().unwrap()[0].top);
    let allowed = [40, 41, 50];
    for seed in 0..5 {
        let request = sampled(prompt, seed).max_tokens(30).allowed_tokens(allowed).banned_tokens([41]);
        let output = engine.complete(request).unwrap();
        assert!(output.token_ids.iter().all(|t| [40, 50].contains(t)), "{:?}", output.token_ids);
    }
    let error = |request: Request| match Engine::submit(&mut self::engine(&TinyModel::llama(), |b| b), request) {
        Err(Error::Request(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(error(request(prompt).allowed_tokens([])), RequestError::NoAllowedToken);
    assert_eq!(error(request(prompt).allowed_tokens([40]).banned_tokens([40])), RequestError::NoAllowedToken);
    let outside = |r| matches!(error(r), RequestError::TokenOutOfRange { token: 1_000_000, .. });
    assert!(outside(request(prompt).allowed_tokens([5, 1_000_000])));
    assert!(outside(request(prompt).banned_tokens([1_000_000])));
}

#[test]
fn min_tokens_keeps_ends_away_and_stop_strings_apply() {
    // A script that wants to end at once.
    let model = TinyModel::llama().build().unwrap();
    let ends = engine(&TinyModel::llama(), |b| b).tokenizer().end_of_generation().to_vec();
    assert!(!ends.is_empty());
    let favorites = ends.clone();
    let mut engine = Engine::builder(model)
        .threads(1)
        .script(move |tokens, logits| {
            logits.fill(0.0);
            favorites.iter().for_each(|&token| logits[token as usize] = 9.0);
            logits[50 + tokens.len() % 3] = 8.0;
        })
        .build()
        .unwrap();
    let base = || Request::tokens(vec![60, 61]).max_tokens(12);
    let at_once = engine.complete(base()).unwrap();
    assert_eq!((at_once.token_ids.len(), at_once.finish_reason), (1, FinishReason::Stop));
    for min_tokens in 1..=12 {
        let output = engine.complete(base().min_tokens(min_tokens)).unwrap();
        assert!(output.token_ids[..min_tokens].iter().all(|t| (50..53).contains(t)), "{:?}", output.token_ids);
        assert_eq!(output.token_ids.len(), 12.min(min_tokens + 1));
    }
    // A stop token of the request is kept away too.
    let output = engine.complete(base().ignore_eos(true).banned_tokens(ends).stop_token(50).min_tokens(5));
    let output = output.unwrap();
    assert!(!output.token_ids[..5].contains(&50), "{:?}", output.token_ids);
    let error = engine.submit(base().min_tokens(13)).unwrap_err();
    assert!(matches!(error, Error::Request(RequestError::InvalidParameter { name: "min_tokens", .. })));
}

#[test]
fn prompt_log_probabilities_equal_the_score() {
    for model in models() {
        let prompt = &prompts()[3];
        let mut engine = engine(&model, |b| b.step_tokens(9));
        let score = engine.score(prompt, 1).unwrap();
        let bits = |o: &Output| {
            let reports = o.prompt_logprobs.as_ref().unwrap();
            reports.iter().map(|l| l.chosen.log_prob.to_bits()).collect::<Vec<_>>()
        };
        let expected: Vec<u32> = score.log_probs.iter().map(|l| l.to_bits()).collect();
        let plain = engine.complete(request(prompt)).unwrap();
        let output = engine.complete(request(prompt).prompt_logprobs(2)).unwrap();
        assert_eq!(bits(&output), expected);
        assert_eq!(essence(&output), essence(&plain));
        let reports = output.prompt_logprobs.as_ref().unwrap();
        assert!(reports.iter().zip(&prompt[1..]).all(|(l, &t)| l.chosen.token == t && l.top.len() == 2));
        let only = engine.complete(request(prompt).prompt_logprobs(0).max_tokens(0)).unwrap();
        assert_eq!(
            (bits(&only), only.token_ids.len(), only.finish_reason),
            (expected.clone(), 0, FinishReason::Length)
        );
        for output in engine.complete_all(sampled(prompt, 1).prompt_logprobs(0).n(2)).unwrap() {
            assert_eq!(bits(&output), expected);
        }
        assert!(plain.prompt_logprobs.is_none());
        assert_eq!(engine.kv_blocks_in_use(), 0);
    }
}

#[test]
fn processed_log_probabilities_are_those_of_the_draw() {
    use crate::sample::LogprobsMode;
    let mut engine = engine(&TinyModel::llama(), |b| b);
    let request =
        |mode| Request::tokens(prompts()[2].clone()).max_tokens(8).ignore_eos(true).logprobs(5).logprobs_mode(mode);
    // The greedy choice is certain.
    let greedy = engine.complete(request(LogprobsMode::Processed)).unwrap();
    for entry in greedy.logprobs.unwrap() {
        assert_eq!((entry.chosen.log_prob, entry.top.len()), (0.0, 1));
    }
    // Two candidates keep their ratio, and sum to 1.
    let raw = engine.complete(request(LogprobsMode::Raw).temperature(1.0).top_k(2).seed(3)).unwrap();
    let processed = engine.complete(request(LogprobsMode::Processed).temperature(1.0).top_k(2).seed(3)).unwrap();
    assert_eq!(raw.token_ids, processed.token_ids);
    for (raw, processed) in raw.logprobs.unwrap().iter().zip(processed.logprobs.unwrap()) {
        let [a, b] = &processed.top[..] else { panic!("{processed:?}") };
        assert!((a.log_prob.exp() + b.log_prob.exp() - 1.0).abs() < 1e-6);
        let ratio = raw.top[0].log_prob - raw.top[1].log_prob;
        assert!((a.log_prob - b.log_prob - ratio).abs() < 1e-4 * (1.0 + ratio.abs()));
        assert!(processed.chosen == *a || processed.chosen == *b);
    }
}

#[test]
fn echo_begins_with_the_prompt() {
    let mut engine = engine(&TinyModel::llama(), |b| b);
    let plain = engine.complete(Request::prompt("Once upon").max_tokens(5).ignore_eos(true)).unwrap();
    let text = format!("Once upon{}", plain.text);
    let echoed = |request: Request| request.max_tokens(5).ignore_eos(true).echo(true);
    assert_eq!(engine.complete(echoed(Request::prompt("Once upon"))).unwrap().text, text);
    assert_eq!(engine.complete(echoed(Request::tokens(plain.prompt_ids.clone()))).unwrap().text, text);
    let mut streamed = String::new();
    for piece in engine.generate(echoed(Request::prompt("Once upon"))).unwrap() {
        streamed.push_str(&piece.unwrap().text);
    }
    assert_eq!(streamed, text);
    // Stop strings look at the answer only.
    let stopped = engine.complete(echoed(Request::prompt("Once upon")).stop("upon")).unwrap();
    assert_eq!(stopped.text, text);
    // Nothing to generate: the prompt alone.
    let none = engine.complete(Request::prompt("Once upon").max_tokens(0).echo(true)).unwrap();
    assert_eq!((none.text.as_str(), none.token_ids.len()), ("Once upon", 0));
    for output in together(&mut engine, vec![echoed(Request::prompt("Once upon")); 2]) {
        assert_eq!(output.text, text);
    }
}

#[test]
fn a_failing_model_ends_the_requests_of_its_step_only() {
    let mut engine = Engine::builder(TinyModel::llama().build().unwrap())
        .threads(1)
        .script(|tokens, logits| {
            assert!(tokens.len() != 7, "by design");
            logits.fill(0.0);
        })
        .build()
        .unwrap();
    let short = engine.complete(Request::tokens(vec![9; 3]).max_tokens(3).ignore_eos(true)).unwrap();
    assert_eq!(short.token_ids.len(), 3);
    let error = engine.complete(Request::tokens(vec![9; 3]).max_tokens(9).ignore_eos(true)).unwrap_err();
    assert!(matches!(&error, Error::Extension { room: "model", .. }) && error.to_string().contains("by design"));
    engine.check_integrity().unwrap();
    assert_eq!((engine.kv_blocks_in_use(), engine.is_idle()), (0, true));
    assert_eq!(engine.complete(Request::tokens(vec![9; 3]).max_tokens(3).ignore_eos(true)).unwrap().token_ids.len(), 3);
}

#[test]
fn a_step_that_fails_after_answers_split_off_leaves_nothing_behind() {
    // The second request's row fails after the first one's three answers have chosen.
    let mut engine = Engine::builder(TinyModel::llama().build().unwrap())
        .threads(1)
        .kv_tokens(512)
        .script(|tokens, logits| {
            assert!(tokens[0] != 99, "by design");
            logits.fill(0.0);
        })
        .build()
        .unwrap();
    let request = |first| Request::tokens(vec![first; 3]).max_tokens(5).ignore_eos(true).echo(true);
    let first = engine.submit(request(50).n(3)).unwrap();
    engine.submit(request(99)).unwrap();
    let events = engine.step().unwrap();
    // What was chosen before is told, so that the output's text is that of its pieces.
    let mut text = String::new();
    for event in &events {
        match event {
            Event::Token { id, piece } if *id == first => text.push_str(&piece.text),
            Event::Finished { id, remaining, output, error } => {
                assert!(error.is_some() && *remaining == 0);
                assert!(*id != first || (output.text == text && output.token_ids.len() == 1));
            }
            Event::Token { .. } => {}
        }
    }
    assert!(!text.is_empty());
    engine.check_integrity().unwrap();
    assert_eq!((engine.kv_blocks_in_use(), engine.is_idle()), (0, true));
    assert_eq!(engine.complete_all(request(50).n(3)).unwrap().len(), 3);
}

/// Fails when it is asked to drop something of a group that is not the first.
#[derive(Clone, Copy, Debug)]
struct FailsAtPromptEnd;

impl crate::cache::CachePolicy for FailsAtPromptEnd {
    fn name(&self) -> &str {
        "fails"
    }
    fn visibility(&self) -> crate::cache::Visibility {
        crate::cache::Visibility::All
    }
    fn acts(&self) -> crate::cache::Acts {
        crate::cache::Acts::AtPromptEnd
    }
    fn bounds(&self) -> crate::cache::CacheBounds {
        crate::cache::CacheBounds::NONE
    }
    fn recomputable(&self) -> bool {
        true
    }
    fn open(&self) -> Box<dyn crate::cache::CacheSession> {
        Box::new(crate::cache::Stateless::new(|view, dropped| {
            // A position that is not there.
            dropped.extend((view.group() > 0).then_some(1 << 40));
        }))
    }
}

#[test]
fn answers_fail_with_the_cache_that_they_would_have_copied() {
    let mut engine = engine(&TinyModel::gemma3(), |b| b.cache_policy(FailsAtPromptEnd));
    engine.submit(sampled(&prompts()[3], 1).n(3)).unwrap();
    let mut ends = 0;
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { output, error, .. } = event {
                let error = error.unwrap();
                assert!(matches!(error, Error::Request(RequestError::InvalidEviction { .. })), "{error}");
                assert_eq!(output.token_ids.len(), 1);
                ends += 1;
            }
        }
        engine.check_integrity().unwrap();
    }
    assert_eq!((ends, engine.kv_blocks_in_use()), (3, 0));
}

#[test]
fn prompts_beyond_the_context_are_refused_whatever_is_asked() {
    let mut engine = engine(&TinyModel::llama(), |b| b.max_context(40));
    let long = || Request::tokens(vec![60; 41]);
    for request in [long(), long().max_tokens(0), long().max_tokens(0).prompt_logprobs(1), long().max_tokens(3)] {
        let error = engine.submit(request).unwrap_err();
        assert!(matches!(error, Error::Request(RequestError::ContextExceeded { prompt: 41, context: 40 })), "{error}");
    }
    let whole = Request::tokens(vec![60; 40]).max_tokens(0).prompt_logprobs(0);
    assert_eq!(engine.complete(whole).unwrap().prompt_logprobs.unwrap().len(), 39);
}

#[test]
fn running_answers_do_not_keep_a_prompt_from_its_turn() {
    let mut engine = engine(&TinyModel::llama(), |b| b.step_tokens(1));
    engine.submit(request(&prompts()[1]).max_tokens(400)).unwrap();
    for _ in 0..10 {
        engine.step().unwrap();
    }
    let output = engine.complete(request(&prompts()[2]).max_tokens(2)).unwrap();
    assert_eq!(output.token_ids.len(), 2);
    assert!(!engine.is_idle(), "the long answer still runs");
}
