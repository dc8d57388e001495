//! The command lines themselves: one table per example. `docs/testing.md` repeats the defaults.

use super::args::{Command, Flag};
use super::sampling;

/// Tokens that `chat` generates at most.
pub(crate) const CHAT_MAX_TOKENS: usize = 1024;
/// Tokens that `generate` generates at most.
pub(crate) const GENERATE_MAX_TOKENS: usize = 256;
/// Entries that `logits` prints.
pub(crate) const LOGITS_TOP: usize = 20;
/// Tokens of one window of `perplexity`.
pub(crate) const PERPLEXITY_CONTEXT: usize = 512;
/// Prompt tokens of `bench`.
pub(crate) const BENCH_PREFILL: usize = 512;
/// Generated tokens of `bench`.
pub(crate) const BENCH_DECODE: usize = 64;
/// Repetitions of `bench`.
pub(crate) const BENCH_REPETITIONS: usize = 3;

const fn flag(long: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { long, short: None, value: Some(value), repeats: false, help }
}

const fn short(long: &'static str, short: char, value: &'static str, help: &'static str) -> Flag {
    Flag { long, short: Some(short), value: Some(value), repeats: false, help }
}

const fn switch(long: &'static str, help: &'static str) -> Flag {
    Flag { long, short: None, value: None, repeats: false, help }
}

const MODEL: Flag = flag(
    "model",
    "PATH|NAME|HUB-ID",
    "GGUF file, model directory, catalog name, or hub id owner/repo[:file.gguf] (needed)",
);
const THREADS: Flag =
    short("threads", 't', "N", "Threads to compute with [default: one per physical core that may be used]");
const JSON: Flag = switch("json", "Print JSON and nothing else on stdout, one object per line");
const SEED: Flag = flag("seed", "N", "Seed of the draws [default: drawn from the system]");
const PRECISION: Flag = flag("precision", "int8|f32", "Activations of matrix products [default: int8]");
const QUANTIZE: Flag =
    flag("quantize", "RULES", "Requantize weights at load: pattern=type, separated by commas [default: as stored]");
const KV: Flag = flag("kv", "f32|f16|bf16|q8", "Format of keys and values [default: bf16, f32 with --precision f32]");

const WINDOW: Flag = flag("window", "N", "Keep only the sinks and the last N tokens [default: keep all]");
const SINKS: Flag = flag("sinks", "N", "First tokens that --window keeps [default: 4]");

/// `chat`.
pub(crate) static CHAT: Command = Command {
    name: "chat",
    about: "Answers a prompt, or chats when started on a terminal without one. A pipe is read as the prompt.",
    usage: "[PROMPT] [--model PATH|NAME|HUB-ID] [--system S] [--temperature T] [--seed N] [--max-tokens N]",
    positionals: 1,
    flags: &[
        &[
            flag(
                "model",
                "PATH|NAME|HUB-ID",
                "GGUF file, model directory, catalog name, or hub id owner/repo[:file.gguf] [default: smollm2-135m]",
            ),
            flag("system", "S", "System message [default: what the model's template says]"),
        ],
        sampling::FLAGS,
        &[SEED, flag("max-tokens", "N", "Tokens of one answer at most [default: 1024]"), THREADS],
    ],
};

/// `generate`.
pub(crate) static GENERATE: Command = Command {
    name: "generate",
    about: "Continues one prompt and reports ids, log-probabilities and figures.",
    usage: "--model PATH (--prompt TEXT | --prompt-file F | --ids 1,2,3) [flags]",
    positionals: 0,
    flags: &[
        &[
            MODEL,
            flag("prompt", "TEXT", "The prompt"),
            flag("prompt-file", "F", "A UTF-8 file that holds the prompt"),
            flag("ids", "1,2,3", "Token ids, used verbatim"),
            switch("raw", "Do not apply the chat template [default with --ids]"),
            switch("chat", "Apply the chat template [default with a prompt]"),
            flag("max-tokens", "N", "Tokens to generate at most [default: 256]"),
        ],
        sampling::FLAGS,
        &[
            SEED,
            flag("n", "N", "Answers to the prompt [default: 1]"),
            Flag {
                long: "stop",
                short: None,
                value: Some("S"),
                repeats: true,
                help: "End before this text; may be given several times",
            },
            switch("ignore-eos", "Generate on after an end token"),
            flag("min-tokens", "N", "No end token before so many tokens [default: 0]"),
            switch("echo", "Begin the text with the prompt's"),
            flag("draft", "ngram|none", "Guess tokens ahead; changes the speed only [default: none]"),
            flag("draft-tokens", "N", "Tokens of a guess at most [default: 8]"),
            KV,
            WINDOW,
            SINKS,
            PRECISION,
            QUANTIZE,
            flag("logprobs", "K", "Log-probabilities of each token and of the K likeliest [default: off]"),
            flag("logprobs-mode", "raw|processed", "The model's own, or those of the draw [default: raw]"),
            flag("prompt-logprobs", "K", "The same for the prompt's tokens, the model's own [default: off]"),
            THREADS,
            JSON,
        ],
    ],
};

/// `tokenize`.
pub(crate) static TOKENIZE: Command = Command {
    name: "tokenize",
    about: "Turns a file into token ids with a model's vocabulary.",
    usage: "--model PATH (--file F | --cases F) [--no-special] [--json]",
    positionals: 0,
    flags: &[&[
        MODEL,
        flag("file", "F", "A UTF-8 file to encode"),
        flag("cases", "F", "A .inp file of cases; prints one line of ids per case"),
        switch("no-special", "Add no BOS or EOS and read control tokens as plain text"),
        THREADS,
        JSON,
    ]],
};

/// `logits`.
pub(crate) static LOGITS: Command = Command {
    name: "logits",
    about: "Shows the likeliest next tokens after a list of ids, and how well the model predicts the list.",
    usage: "--model PATH --ids 1,2,3 [--top 20] [--precision int8|f32] [--json]",
    positionals: 0,
    flags: &[&[
        MODEL,
        flag("ids", "1,2,3", "Token ids, used verbatim"),
        flag("top", "N", "Entries to print [default: 20]"),
        WINDOW,
        SINKS,
        PRECISION,
        QUANTIZE,
        THREADS,
        JSON,
    ]],
};

/// `perplexity`.
pub(crate) static PERPLEXITY: Command = Command {
    name: "perplexity",
    about: "Measures perplexity on a text over consecutive windows; the second half of each is scored.",
    usage: "--model PATH --file F [--context 512] [--chunks N] [--precision int8|f32] [--json]",
    positionals: 0,
    flags: &[&[
        MODEL,
        flag("file", "F", "A UTF-8 file"),
        flag("context", "N", "Tokens of a window [default: 512]"),
        flag("chunks", "N", "Windows at most [default: all]"),
        WINDOW,
        SINKS,
        PRECISION,
        QUANTIZE,
        THREADS,
        JSON,
    ]],
};

/// `bench`.
pub(crate) static BENCH: Command = Command {
    name: "bench",
    about: "Measures prefill and decoding speed.",
    usage: "--model PATH [-p 512] [-n 64] [-d DEPTH] [-t THREADS] [-b BATCH] [-r REPS] [flags]",
    positionals: 0,
    flags: &[&[
        MODEL,
        short("prefill", 'p', "N", "Prompt tokens of the prefill test; 0 leaves it out [default: 512]"),
        short("decode", 'n', "N", "Tokens of the decoding test; 0 leaves it out [default: 64]"),
        short("depth", 'd', "N", "Tokens in the cache before the decoding test, not timed [default: 0]"),
        THREADS,
        short("batch", 'b', "N", "Sequences that decode together [default: 1]"),
        short("repetitions", 'r', "N", "Repetitions of each test [default: 3]"),
        KV,
        WINDOW,
        SINKS,
        PRECISION,
        QUANTIZE,
        flag("kernel", "scalar|avx2|avx512|neon", "Kernel level [default: the best that this processor has]"),
        switch("ceilings", "Also measure what the machine can do at most"),
        JSON,
    ]],
};

/// `models`.
pub(crate) static MODELS: Command = Command {
    name: "models",
    about: "Lists the catalog and fetches models into the cache.",
    usage: "list | fetch all|NAME | path NAME",
    positionals: 2,
    flags: &[],
};

/// Every command, for tests.
pub(crate) static ALL: [&Command; 7] = [&CHAT, &GENERATE, &TOKENIZE, &LOGITS, &PERPLEXITY, &BENCH, &MODELS];
