//! What a host asks for.

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
    pub(super) prompt_logprobs: Option<usize>,
    pub(super) n: usize,
    pub(super) echo: bool,
    pub(super) min_tokens: usize,
    pub(super) allowed_tokens: Option<Vec<TokenId>>,
    pub(super) banned_tokens: Vec<TokenId>,
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
            prompt_logprobs: None,
            n: 1,
            echo: false,
            min_tokens: 0,
            allowed_tokens: None,
            banned_tokens: Vec::new(),
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

    /// Sampling temperature: 0 (the default) takes the most probable token, 1 samples as the model says.
    pub fn temperature(mut self, temperature: f32) -> Request {
        self.params.temperature = Some(temperature);
        self
    }

    /// Keeps the k most probable tokens.
    pub fn top_k(mut self, top_k: u32) -> Request {
        self.params.top_k = Some(top_k);
        self
    }

    /// Keeps the smallest set of most probable tokens with at least this mass, in (0, 1].
    pub fn top_p(mut self, top_p: f32) -> Request {
        self.params.top_p = Some(top_p);
        self
    }

    /// Keeps tokens with at least this share of the most probable one's probability, in [0, 1].
    pub fn min_p(mut self, min_p: f32) -> Request {
        self.params.min_p = Some(min_p);
        self
    }

    /// Divides the positive logits of tokens seen before, and multiplies the negative ones; above 0, 1 is neutral.
    pub fn repetition_penalty(mut self, penalty: f32) -> Request {
        self.params.repetition_penalty = Some(penalty);
        self
    }

    /// All sampling parameters at once.
    pub fn params(mut self, params: SamplingParams) -> Request {
        self.params = params;
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

    /// Reports for each token of the prompt, from the second on, how probable it was after those before it, and the
    /// `top` most probable ones. With `max_tokens(0)` the request ends with that.
    pub fn prompt_logprobs(mut self, top: usize) -> Request {
        self.prompt_logprobs = Some(top);
        self
    }

    /// Gives `n` answers to the prompt, which is computed once; from 1 to the engine's `max_sequences`. They draw with
    /// different noise: answer 0 is the one that a request for a single answer gives.
    pub fn n(mut self, n: usize) -> Request {
        self.n = n;
        self
    }

    /// Begins the text with the prompt's: as it was given, or as the prompt's tokens read, control tokens included.
    /// Stop strings look at the answer only.
    pub fn echo(mut self, echo: bool) -> Request {
        self.echo = echo;
        self
    }

    /// Keeps end tokens and stop tokens from being chosen before the answer has this many tokens; at most `max_tokens`.
    pub fn min_tokens(mut self, min_tokens: usize) -> Request {
        self.min_tokens = min_tokens;
        self
    }

    /// Chooses among these tokens only.
    pub fn allowed_tokens(mut self, tokens: impl Into<Vec<TokenId>>) -> Request {
        self.allowed_tokens = Some(tokens.into());
        self
    }

    /// Never chooses these tokens.
    pub fn banned_tokens(mut self, tokens: impl Into<Vec<TokenId>>) -> Request {
        self.banned_tokens = tokens.into();
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
