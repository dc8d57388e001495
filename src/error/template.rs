//! Errors of the chat template: it does not compile, refuses the conversation or exceeds its limits.

/// What is wrong with the chat template, or with a conversation for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template does not compile.
    #[error("chat template, line {line}: {message}")]
    Syntax {
        /// Line of the template, from 1; 0 where it is not known.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// The template called `raise_exception`: it refuses this conversation.
    #[error("the chat template refuses the conversation: {message}")]
    Raised {
        /// The template's own words.
        message: String,
    },
    /// Rendering failed.
    #[error("chat template, line {line}: {message}")]
    Render {
        /// Line of the template, from 1; 0 where it is not known.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// The template does more work or makes more text than a conversation of this size can need.
    #[error("the chat template exceeds its budget of work and memory for {input_bytes} bytes of input; it loops or is not a chat template")]
    Budget {
        /// Bytes of all strings of the request.
        input_bytes: usize,
    },
    /// A value of the request is nested too deeply.
    #[error("`{field}` is nested deeper than {limit} levels")]
    TooDeep {
        /// The field of the request.
        field: String,
        /// The limit.
        limit: usize,
    },
    /// A control token of the vocabulary has one character only, so that text which holds it cannot be told apart.
    #[error(
        "`{field}` contains {token:?}, which is a control token of one character; such text cannot be passed safely"
    )]
    Unguardable {
        /// The field of the request.
        field: String,
        /// The token's text.
        token: String,
    },
    /// All code points that could mark user text occur in the request itself.
    #[error("the request uses every Unicode noncharacter; remove at least one of U+FDD0..U+FDEF from its texts")]
    NoGuard,
}
