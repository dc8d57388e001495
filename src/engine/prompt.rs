//! From a request to an answer that can run: encoding, checks, state.

use super::answer::{guarded, Answer, Limits, Sampling, Text, Times};
use super::request::{ChatOptions, Prompt, Request};
use super::Engine;
use crate::cache::SequenceCache;
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
    pub(super) fn prepare(&self, id: SequenceId, request: Request) -> Result<Answer> {
        let tokens = self.encode(&request)?;
        self.check_tokens(&tokens)?;
        let prompt = tokens.len();
        let max_tokens = self.answer_room(prompt, request.max_tokens)?;
        if let Some(top) = request.logprobs {
            if top > self.vocab_size() {
                let range = "at most the size of the vocabulary";
                return Err(RequestError::InvalidParameter { name: "logprobs", value: top.to_string(), range }.into());
            }
        }
        let blocks = self.layout.blocks_needed(prompt.saturating_add(max_tokens), self.step_tokens);
        let capacity = self.arena.capacity();
        if blocks > capacity {
            return Err(ResourceError::CacheTooSmall { needed: blocks, capacity }.into());
        }
        let sampler = request.sampler.as_ref().unwrap_or(&self.sampler);
        let name = sampler.name().to_string();
        let session = guarded(&name, || sampler.open(&request.params))?;
        let seed = match request.seed {
            Some(seed) => seed,
            None => {
                let mut bytes = [0; 8];
                getrandom::fill(&mut bytes).map_err(|error| RequestError::NoSeed { reason: error.to_string() })?;
                u64::from_le_bytes(bytes)
            }
        };
        let submitted = self.clock.elapsed();
        Ok(Answer {
            id,
            sequence: Sequence { tokens, prompt_len: prompt, cache: SequenceCache::new(&self.layout), blocks },
            sampling: Sampling { name, session, seed, logprobs: request.logprobs },
            limits: Limits {
                max_tokens,
                deadline: request.deadline.map(|after| submitted.saturating_add(after)),
                ignore_eos: request.ignore_eos,
                stop_tokens: request.stop_tokens,
            },
            text: Text {
                detokenizer: self.tokenizer.stream(),
                stop: StopMatcher::new(&request.stop)?,
                stopped: false,
                emitted: String::new(),
            },
            logprobs: Vec::new(),
            times: Times { submitted, ..Times::default() },
        })
    }

    /// How many tokens an answer may have. Beyond the context goes only what is asked for, and only where the cache
    /// policy bounds the cache.
    fn answer_room(&self, prompt: usize, asked: Option<usize>) -> Result<usize> {
        let context = self.context;
        let room = context.saturating_sub(prompt);
        match asked {
            Some(max_tokens) if self.layout.is_bounded() => Ok(max_tokens),
            Some(0) => Ok(0),
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
