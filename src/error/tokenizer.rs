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
    /// `tokenizer.json` is not JSON of the expected size and depth.
    #[error("tokenizer.json (tokenizer.huggingface.json): {reason}; it is damaged: download it again")]
    Json {
        /// What is wrong, with its place.
        reason: String,
    },
    /// A field of `tokenizer.json` cannot be used.
    #[error("tokenizer.json: `{field}`: expected {expected}, found {found}")]
    JsonField {
        /// The field.
        field: String,
        /// What is accepted.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A part of `tokenizer.json` has a kind that is not run.
    #[error("tokenizer.json: the {part} {kind} is not supported; use a GGUF file of this model")]
    UnsupportedPart {
        /// The part of the file.
        part: &'static str,
        /// Its type.
        kind: String,
    },
    /// Token ids that leave most of the table empty.
    #[error("tokenizer.json: the largest token id is {largest}, but there are only {tokens} tokens")]
    SparseIds {
        /// The largest id.
        largest: u64,
        /// How many tokens there are.
        tokens: usize,
    },
    /// A part of `tokenizer.json` cannot be built, or failed on a text.
    #[error("tokenizer.json: the {part} failed: {reason}")]
    Component {
        /// The part of the file.
        part: &'static str,
        /// What it said.
        reason: String,
    },
    /// A small file beside the tokenizer is not JSON of the expected shape.
    #[error("{file}: {reason}; it is damaged: download it again")]
    ConfigFile {
        /// The file.
        file: String,
        /// What is wrong, with its place.
        reason: String,
    },
    /// `tokenizer.model` is not the protobuf message that it should be.
    #[error("{file}: byte {offset}: {reason}; it is damaged: download it again")]
    InvalidSentencepiece {
        /// The file.
        file: String,
        /// Where the damage is, from the start of the file.
        offset: usize,
        /// What is wrong there.
        reason: &'static str,
    },
    /// `tokenizer.model` needs an algorithm that is not implemented.
    #[error("{file}: {what} is not supported; add the model's tokenizer.json or use a GGUF file of it")]
    UnsupportedSentencepiece {
        /// The file.
        file: String,
        /// What it needs.
        what: String,
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
