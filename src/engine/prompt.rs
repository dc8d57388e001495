//! From a request to an answer that can run: encoding, checks, state.

use std::sync::Arc;

use super::answer::{guarded, Answer, DraftState, Limits, Sampling, Text, Times};
use super::drafting::Drafting;
use super::mask::TokenSet;
use super::request::{ChatOptions, Prompt, Request};
use super::Engine;
use crate::cache::SequenceCache;
use crate::sample::SamplingParams;
use crate::schedule::Sequence;
use crate::stream::StopMatcher;
use crate::tokenizer::{ChatRequest, EncodeOptions, Message, Tokenizer};
use crate::types::{SequenceId, TokenId};
use crate::{RequestError, ResourceError, Result};

impl Engine {
    /// The tokens of a request's prompt, as [`submit`](Engine::submit) would run them.
    ///
    /// # Errors
    /// A chat without a template, a template that refuses, text that cannot be encoded.
    pub fn encode(&self, request: &Request) -> Result<Vec<TokenId>> {
        match &request.prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Text(text) => self.tokenizer.encode(text, EncodeOptions::DOCUMENT),
            Prompt::Chat { messages, options } => self.encode_chat(messages, options),
        }
    }

    fn encode_chat(&self, messages: &[Message], options: &ChatOptions) -> Result<Vec<TokenId>> {
        let template = self.template.as_ref().ok_or(RequestError::MissingChatTemplate)?;
        let tokenizer: &Tokenizer = &self.tokenizer;
        let text_of = |token: Option<TokenId>| token.and_then(|t| tokenizer.token_text(t)).unwrap_or("");
        let rendered = template.render(&ChatRequest {
            messages,
            add_generation_prompt: options.add_generation_prompt,
            tools: options.tools.as_ref(),
            documents: options.documents.as_ref(),
            bos_token: text_of(tokenizer.bos()),
            eos_token: text_of(tokenizer.eos()),
            variables: Some(&options.variables),
            now: self.clock.date(),
            control_tokens: &self.control_tokens,
        })?;
        tokenizer.encode_guarded(&rendered.text, rendered.guard)
    }

    /// Checks a request and opens its state.
    pub(super) fn prepare(&self, id: SequenceId, mut request: Request) -> Result<Answer> {
        let tokens = self.encode(&request)?;
        self.check_tokens(&tokens)?;
        let prompt = tokens.len();
        let max_tokens = self.answer_room(prompt, request.max_tokens)?;
        let limits = self.limits(&request, max_tokens)?;
        let choices = in_range("n", request.n, 1, self.max_sequences, "from 1 to the engine's `max_sequences`")? as u32;
        if choices > 1 && !self.layout.can_fork()? {
            let name = self.layout.policy_name().to_string();
            return Err(RequestError::CannotFork { part: "cache policy", name }.into());
        }
        for (name, top) in [("logprobs", request.logprobs), ("prompt_logprobs", request.prompt_logprobs)] {
            in_range(name, top.unwrap_or(0), 0, self.vocab_size(), "at most the size of the vocabulary")?;
        }
        let blocks = self.layout.blocks_needed(prompt.saturating_add(max_tokens), self.step_tokens);
        let (needed, capacity) = (blocks.saturating_mul(request.n), self.arena.capacity());
        if needed > capacity {
            return Err(ResourceError::CacheTooSmall { needed, capacity }.into());
        }
        self.resolve_breakers(&mut request.params)?;
        let sampler = request.sampler.as_ref().unwrap_or(&self.sampler);
        let name = sampler.name().to_string();
        let open = |_| guarded("sample", &name, || sampler.open(&request.params));
        let mut siblings = (0..choices).map(open).collect::<Result<Vec<_>>>()?;
        // There is at least one.
        let session = siblings.remove(0);
        let echo = request.echo.then(|| match &request.prompt {
            Prompt::Text(text) => text.clone(),
            _ => self.tokenizer.decode(&tokens, false),
        });
        Ok(Answer {
            id,
            request: id,
            choice: 0,
            siblings,
            sampling: Sampling {
                name,
                session,
                seed: seed(request.seed)?,
                logprobs: request.logprobs.map(|top| (top, request.logprobs_mode)),
                legal: self.legal(&request)?,
            },
            limits,
            text: Text {
                echo,
                detokenizer: self.tokenizer.stream(),
                stop: StopMatcher::new(&request.stop)?,
                stopped: false,
                emitted: String::new(),
            },
            logprobs: Vec::new(),
            prompt_logprobs: request.prompt_logprobs.map(|top| (top, Vec::new())),
            drafting: DraftState::new(self.drafting.as_ref().map_or(0, Drafting::max_tokens)),
            times: Times { submitted: self.clock.elapsed(), ..Times::default() },
            sequence: Sequence { tokens, prompt_len: prompt, cache: SequenceCache::new(&self.layout), blocks },
        })
    }

    fn limits(&self, request: &Request, max_tokens: usize) -> Result<Limits> {
        let mut ends = request.stop_tokens.clone();
        if !request.ignore_eos {
            ends.extend(self.tokenizer.end_of_generation());
        }
        ends.sort_unstable();
        let min_tokens =
            in_range("min_tokens", request.min_tokens, 0, max_tokens, "at most `max_tokens` and the context")?;
        let deadline = request.deadline.map(|after| self.clock.elapsed().saturating_add(after));
        Ok(Limits { max_tokens, min_tokens, deadline, ends: ends.into() })
    }

    /// DRY's breakers as token ids; samplers know no text.
    fn resolve_breakers(&self, params: &mut SamplingParams) -> Result<()> {
        params.check_vocabulary(self.vocab_size())?;
        let tokenizer = &self.tokenizer;
        let bytes_of = |token| if tokenizer.is_control(token) { None } else { tokenizer.token_bytes(token) };
        params
            .resolve_dry_breakers(tokenizer.vocab_size(), bytes_of, |text| tokenizer.encode(text, EncodeOptions::PLAIN))
    }

    /// The tokens that the request may choose: the engine's, as far as it allows and does not ban them.
    fn legal(&self, request: &Request) -> Result<Arc<TokenSet>> {
        let vocab_size = self.vocab_size();
        let named = request.allowed_tokens.iter().flatten().chain(&request.banned_tokens);
        if let Some(&token) = named.into_iter().find(|&&token| token as usize >= vocab_size) {
            return Err(RequestError::TokenOutOfRange { token, vocab_size }.into());
        }
        if request.allowed_tokens.is_none() && request.banned_tokens.is_empty() {
            return Ok(self.legal.clone());
        }
        let mut legal = match &request.allowed_tokens {
            Some(tokens) => self.legal.only(tokens),
            None => TokenSet::clone(&self.legal),
        };
        request.banned_tokens.iter().for_each(|&token| legal.remove(token));
        if legal.is_empty() {
            return Err(RequestError::NoAllowedToken.into());
        }
        Ok(Arc::new(legal))
    }

    /// How many tokens an answer may have. Beyond the context goes only what is asked for, and only where the cache
    /// policy bounds the cache.
    fn answer_room(&self, prompt: usize, asked: Option<usize>) -> Result<usize> {
        let context = self.context;
        let room = context.saturating_sub(prompt);
        match asked {
            Some(max_tokens) if self.layout.is_bounded() => Ok(max_tokens),
            Some(0) if prompt <= context => Ok(0),
            None if room == 0 && self.layout.is_bounded() => {
                let range = "a number, since the prompt fills the context and the cache policy sets no end";
                let (name, value) = ("max_tokens", "not set".to_string());
                Err(RequestError::InvalidParameter { name, value, range }.into())
            }
            _ if room == 0 => Err(RequestError::ContextExceeded { prompt, context }.into()),
            _ => Ok(asked.map_or(room, |max| max.min(room))),
        }
    }

    pub(super) fn check_tokens(&self, tokens: &[TokenId]) -> Result<()> {
        let vocab_size = self.vocab_size();
        if tokens.is_empty() {
            return Err(RequestError::EmptyPrompt.into());
        }
        match tokens.iter().find(|&&token| token as usize >= vocab_size) {
            Some(&token) => Err(RequestError::TokenOutOfRange { token, vocab_size }.into()),
            None => Ok(()),
        }
    }
}

fn in_range(name: &'static str, value: usize, min: usize, max: usize, range: &'static str) -> Result<usize> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(RequestError::InvalidParameter { name, value: value.to_string(), range }.into())
}

/// The request's seed, or one of the operating system's.
fn seed(given: Option<u64>) -> Result<u64> {
    if let Some(seed) = given {
        return Ok(seed);
    }
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| RequestError::NoSeed { reason: error.to_string() })?;
    Ok(u64::from_le_bytes(bytes))
}
