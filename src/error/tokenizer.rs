//! Errors of the tokenizer: a vocabulary that cannot be used, or text that it cannot express.

/// What is wrong with the tokenizer that the source describes, or with text given to it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` names an algorithm that is not implemented.
    #[error("tokenizer model {model:?} is not supported; supported are \"gpt2\", \"gemma4\" and \"llama\"")]
    UnsupportedModel {
        /// The name in the file.
        model: String,
    },
    /// `tokenizer.ggml.pre` names a splitting rule that is not known; guessing one would give wrong token ids.
    #[error("pre-tokenizer {pre:?} (tokenizer.ggml.pre) is not known; a file converted for a known rule is needed")]
    UnsupportedPre {
        /// The name in the file.
        pre: String,
    },
    /// `tokenizer.ggml.tokens` has no entry.
    #[error("the vocabulary (tokenizer.ggml.tokens) is empty")]
    EmptyVocabulary,
    /// More entries than token ids can name.
    #[error("{key} has {found} entries, more than {limit}")]
    TooLarge {
        /// The metadata key.
        key: &'static str,
        /// Entries in the file.
        found: usize,
        /// Entries that are accepted.
        limit: usize,
    },
    /// An array that must be parallel to the tokens is not.
    #[error("{key} has {found} entries, but the vocabulary has {expected} tokens")]
    LengthMismatch {
        /// The metadata key.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Entries in the file.
        found: usize,
    },
    /// A token type outside 0 to 6.
    #[error("token {token} has type {found} (tokenizer.ggml.token_type); types are 1 to 6")]
    InvalidTokenType {
        /// Token id.
        token: u32,
        /// The type in the file.
        found: i64,
    },
    /// A score that cannot be ordered.
    #[error("token {token} has the score {score} (tokenizer.ggml.scores); scores must be finite")]
    InvalidScore {
        /// Token id.
        token: u32,
        /// The score in the file.
        score: f32,
    },
    /// A merge that is not two parts with a space between them.
    #[error("merge {index} (tokenizer.ggml.merges) is {merge:?}, not two parts with a space between them")]
    InvalidMerge {
        /// Position in the list.
        index: usize,
        /// The start of the entry.
        merge: String,
    },
    /// A matcher for the vocabulary's special tokens or its splitting rule cannot be built.
    #[error("cannot build the matcher for {what}: {reason}")]
    Matcher {
        /// What was to be matched.
        what: &'static str,
        /// The reason the matcher's library gives.
        reason: String,
    },
    /// Text longer than a request can ever be.
    #[error("text of {bytes} bytes is too long to tokenize; the limit is {limit} bytes")]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Bytes that are accepted.
        limit: usize,
    },
    /// The vocabulary has no token for a byte of the text and no token that stands for unknown text.
    #[error("the model's vocabulary has no token for byte 0x{byte:02X} in {context:?}; remove that character")]
    Unencodable {
        /// The byte.
        byte: u8,
        /// The text around it, at most 40 characters.
        context: String,
    },
}
