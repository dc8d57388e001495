//! Errors of one request: what the caller asked for cannot be done. The engine and all other requests go on.

use crate::TokenId;

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// A parameter lies outside its range; nothing is clamped.
    #[error("parameter `{name}` is {value}; accepted: {range}")]
    InvalidParameter {
        /// The parameter.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is accepted.
        range: &'static str,
    },
    /// A parameter was set that the chosen sampler does not read.
    #[error(
        "parameter `{name}` is set, but the sampler `{sampler}` does not use it; unset it or choose another sampler"
    )]
    UnusedParameter {
        /// The parameter.
        name: &'static str,
        /// The sampler's name.
        sampler: String,
    },
    /// The model, or a penalty, produced a logit that cannot be ranked.
    #[error("the logit of token {token} is {value}; the weights are damaged or a penalty overflowed")]
    NonFiniteLogits {
        /// The first such token.
        token: TokenId,
        /// NaN or +infinity.
        value: f32,
    },
    /// Every token is forbidden (all logits are −infinity, or no candidate has a positive probability).
    #[error("no token is allowed at this position; relax the constraint or the banned tokens")]
    NoAllowedToken,
    /// A token id that the vocabulary lacks.
    #[error("token id {token} is outside the vocabulary of {vocab_size} tokens")]
    TokenOutOfRange {
        /// The id.
        token: TokenId,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// A sampler returned something that is no probability distribution.
    #[error("the sampler `{sampler}` returned an invalid distribution: {reason}")]
    InvalidDistribution {
        /// The sampler's name.
        sampler: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A cache policy dropped positions that it may not drop, or kept more than it stated.
    #[error("the cache policy `{policy}` made an invalid choice at position {position}: {reason}")]
    InvalidEviction {
        /// The policy's name.
        policy: String,
        /// The number of positions stored when it chose.
        position: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A part of the engine keeps state that cannot be copied, as several answers to one prompt need.
    #[error("the {part} `{name}` cannot copy its state; ask for one answer or use another {part}")]
    CannotFork {
        /// The kind of part.
        part: &'static str,
        /// Its name.
        name: String,
    },
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {prompt} tokens, the context holds {context}; shorten the prompt")]
    ContextExceeded {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that prompt and answer may have together.
        context: usize,
    },
    /// A prompt without tokens.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// Messages were given, but the model brings no chat template.
    #[error(
        "the model has no chat template and no ChatML tokens; give a template (`ChatTemplate::new`) or a raw prompt"
    )]
    MissingChatTemplate,
    /// The operating system gave no random seed.
    #[error("the system gave no random numbers ({reason}); pass a seed")]
    NoSeed {
        /// What the system said.
        reason: String,
    },
}
