//! What a host asks for.

mod sampling;

use std::sync::Arc;
use std::time::Duration;

use crate::sample::{Sampler, SamplingParams};
use crate::tokenizer::Message;
use crate::types::TokenId;

/// The text or tokens that a request continues.
#[derive(Clone, Debug)]
pub(super) enum Prompt {
    Chat { messages: Vec<Message>, options: Box<ChatOptions> },
    Text(String),
    Tokens(Vec<TokenId>),
}

/// What a chat template may be given besides the messages.
#[derive(Clone, Debug)]
pub(super) struct ChatOptions {
    pub(super) add_generation_prompt: bool,
    pub(super) tools: Option<serde_json::Value>,
    pub(super) documents: Option<serde_json::Value>,
    pub(super) variables: serde_json::Map<String, serde_json::Value>,
}

/// One generation: a prompt with its limits and sampling parameters.
///
/// Everything that is not set is neutral: greedy choice, no stop strings, and as many tokens as the context has room
/// for. Values are checked at submit.
#[derive(Clone, Debug)]
pub struct Request {
    pub(super) prompt: Prompt,
    pub(super) max_tokens: Option<usize>,
    pub(super) params: SamplingParams,
    pub(super) seed: Option<u64>,
    pub(super) ignore_eos: bool,
    pub(super) stop: Vec<String>,
    pub(super) stop_tokens: Vec<TokenId>,
    pub(super) logprobs: Option<usize>,
    pub(super) deadline: Option<Duration>,
    pub(super) sampler: Option<Arc<dyn Sampler>>,
}

impl Request {
    fn new(prompt: Prompt) -> Request {
        Request {
            prompt,
            max_tokens: None,
            params: SamplingParams::default(),
            seed: None,
            ignore_eos: false,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            logprobs: None,
            deadline: None,
            sampler: None,
        }
    }

    /// Answers a conversation in the model's chat format. Control tokens inside the messages stay plain text.
    pub fn chat(messages: impl IntoIterator<Item = Message>) -> Request {
        let options = ChatOptions {
            add_generation_prompt: true,
            tools: None,
            documents: None,
            variables: serde_json::Map::new(),
        };
        Request::new(Prompt::Chat { messages: messages.into_iter().collect(), options: Box::new(options) })
    }

    /// Continues a text, with the model's start token if it wants one. Control tokens in the text stay plain text.
    pub fn prompt(text: impl Into<String>) -> Request {
        Request::new(Prompt::Text(text.into()))
    }

    /// Continues tokens exactly as given.
    pub fn tokens(tokens: impl Into<Vec<TokenId>>) -> Request {
        Request::new(Prompt::Tokens(tokens.into()))
    }

    /// The most tokens to generate; default: the rest of the context.
    pub fn max_tokens(mut self, max_tokens: usize) -> Request {
        self.max_tokens = Some(max_tokens);
        self
    }

    /// The seed of the draws: the same request with the same seed gives the same tokens. Default: from the
    /// operating system, reported in the output.
    pub fn seed(mut self, seed: u64) -> Request {
        self.seed = Some(seed);
        self
    }

    /// Goes on after the model's end tokens.
    pub fn ignore_eos(mut self, ignore: bool) -> Request {
        self.ignore_eos = ignore;
        self
    }

    /// Ends before this text appears; may be called several times.
    pub fn stop(mut self, text: impl Into<String>) -> Request {
        self.stop.push(text.into());
        self
    }

    /// Ends at this token; may be called several times.
    pub fn stop_token(mut self, token: TokenId) -> Request {
        self.stop_tokens.push(token);
        self
    }

    /// Reports the log-probability of each generated token and of the `top` most probable ones, before any
    /// sampling parameter changes them.
    pub fn logprobs(mut self, top: usize) -> Request {
        self.logprobs = Some(top);
        self
    }

    /// Ends the request this long after submit.
    pub fn deadline(mut self, deadline: Duration) -> Request {
        self.deadline = Some(deadline);
        self
    }

    /// Samples with this sampler instead of the engine's.
    pub fn sampler(mut self, sampler: impl Sampler) -> Request {
        self.sampler = Some(Arc::new(sampler));
        self
    }

    /// Tool descriptions for the chat template; no effect on other prompts.
    pub fn tools(mut self, tools: serde_json::Value) -> Request {
        if let Prompt::Chat { options, .. } = &mut self.prompt {
            options.tools = Some(tools);
        }
        self
    }

    /// Documents for the chat template; no effect on other prompts.
    pub fn documents(mut self, documents: serde_json::Value) -> Request {
        if let Prompt::Chat { options, .. } = &mut self.prompt {
            options.documents = Some(documents);
        }
        self
    }

    /// A further variable of the chat template, such as `enable_thinking`; no effect on other prompts.
    pub fn template_variable(mut self, name: impl Into<String>, value: serde_json::Value) -> Request {
        if let Prompt::Chat { options, .. } = &mut self.prompt {
            options.variables.insert(name.into(), value);
        }
        self
    }

    /// Whether the chat template opens the assistant's answer (default) or leaves the last message open to be
    /// continued by the template's own rule; no effect on other prompts.
    pub fn add_generation_prompt(mut self, add: bool) -> Request {
        if let Prompt::Chat { options, .. } = &mut self.prompt {
            options.add_generation_prompt = add;
        }
        self
    }
}
