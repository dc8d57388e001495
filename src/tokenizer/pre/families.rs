//! The table from `tokenizer.ggml.pre` to a splitting rule.
//!
//! The patterns are those of the models' own tokenizers. Where those end in "whitespace not followed by text, else
//! whitespace", a pattern here ends in plain `\s+` and the stage gives the last character of a run back.

use super::Rule::{self, Cut, Isolate, Words};
use super::{DigitCut, Whitespace};

/// How the pieces are written in the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// Every byte as one character of the byte-level alphabet.
    ByteLevel,
    /// UTF-8 with spaces as U+2581.
    Marked,
    /// UTF-8 as it is.
    Plain,
}

/// What a `pre` name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// Rules in order, each applied inside the pieces of the one before.
    pub(crate) rules: &'static [Rule],
    pub(crate) writing: Writing,
    /// A piece that is a token as a whole is taken without merging.
    pub(crate) ignore_merges: bool,
    /// BOS is added where the file does not say.
    pub(crate) adds_bos: bool,
    /// Merge ranks are token ids where the file has no merges.
    pub(crate) ranks_are_ids: bool,
}

// A rule whose newline runs end a piece and whose other whitespace gives its last character back.
macro_rules! words {
    ($pattern:expr $(,)?) => {
        Words { pattern: $pattern, whitespace: Whitespace::NewlinesFirst }
    };
}

macro_rules! contraction {
    () => {
        "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
    };
}

macro_rules! gpt2 {
    () => {
        r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+"
    };
}

macro_rules! llama3_with {
    ($digits:literal) => {
        concat!(contraction!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|", $digits, r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
    };
}

// A word starts a new piece at a change from lower to upper case; letters without case and marks go with either.
macro_rules! cased {
    ($suffix:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $suffix,
        )
    };
}

macro_rules! cased_with {
    ($suffix:expr, $digits:literal) => {
        concat!(cased!($suffix), "|", $digits, r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+")
    };
}

macro_rules! optional_contraction {
    () => {
        concat!("(?:", contraction!(), ")?")
    };
}

macro_rules! deepseek_words {
    ($rest:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+",
            $rest
        )
    };
}

/// GPT-2's splitting pattern.
pub(crate) const GPT2_PATTERN: &str = gpt2!();
const GPT2: Rule = Words { pattern: GPT2_PATTERN, whitespace: Whitespace::GiveBack };
const LLAMA3: Rule = words!(llama3_with!(r"\p{N}{1,3}"));
const QWEN2: Rule = words!(llama3_with!(r"\p{N}"));
const GPT4O: Rule = words!(cased_with!(optional_contraction!(), r"\p{N}{1,3}"));
const DEEPSEEK_CJK: Rule = Isolate("[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+");
const DEEPSEEK_WORDS: Rule = words!(deepseek_words!(r"[\r\n]*|\s*[\r\n]+|\s+"));
const BLOOM: Rule = Isolate(" ?[^(\\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+");
const LINES: Rule = Isolate(r"\n+");

const KIMI: Rule = words!(concat!(
    r"\p{Han}+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    optional_contraction!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    optional_contraction!(),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
));

/// Alphabets with case, as DeepSeek's first tokenizers list them.
const CASED_ALPHABETS: &str = concat!(
    "\\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
    "\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
    "\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
    "\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}",
    "\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}",
    "\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}",
    "\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}",
    "\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}",
    "\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}",
    "\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}",
    "\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}",
    "\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}",
    "\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}",
    "\u{1E900}-\u{1E943}]+",
);
const DEEPSEEK_OLD_CJK: Rule = Isolate("[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+");

const AFMOE_SCRIPTS: Rule = Isolate(concat!(
    "[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}\u{FF65}-\u{FF9F}",
    "\u{2F00}-\u{2FDF}\u{E40}-\u{E7F}\u{E80}-\u{EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}",
    "\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+"
));

/// The family of a `pre` name; `None` for an unknown one.
pub(crate) fn family(pre: &str) -> Option<Family> {
    Some(match pre {
        "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "exaone4" | "jina-es"
        | "jina-de" | "jina-v2-es" | "jina-v2-de" | "jina-v1-en" | "jina-v2-code" | "roberta-bpe" | "gigachat"
        | "a.x-4.0" | "mellum" | "modern-bert" => byte_level(&[GPT2]),

        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" | "mellum2" => {
            byte_level(&[Isolate(r"\p{N}"), GPT2])
        }

        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0" | "lfm2"
        | "jina-v5-nano" => byte_level(&[LLAMA3]).whole_pieces().with_bos(),
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => byte_level(&[LLAMA3]),
        "glm4" | "glm5" => byte_level(&[LLAMA3]).whole_pieces(),

        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan" | "solar-open"
        | "grok-2" => byte_level(&[QWEN2]),
        "qwen35" => byte_level(&[words!(concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
        ))]),
        "ufakzeka" => {
            byte_level(&[words!(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",)])
        }
        "bailingmoe" | "bailingmoe2" | "llada-moe" => byte_level(&[words!(concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+"
        ))]),
        "seed-coder" => byte_level(&[words!(concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+"
        ))]),
        "laguna" => byte_level(&[LINES, QWEN2]),
        "exaone-moe" => byte_level(&[words!(concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+"
        ))]),

        "minicpm5" => byte_level(&[Isolate(r"\p{N}{1,3}"), words!(llama3_with!(r"\p{N}+"))]).whole_pieces(),
        "jais-2" => byte_level(&[Words { pattern: llama3_with!(r"\p{N}{1,3}"), whitespace: Whitespace::Halving }]),

        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => byte_level(&[GPT4O]),
        "granite-embed-multi-97m" => byte_level(&[GPT4O]).whole_pieces(),
        "tiny_aya" | "cohere2moe" => byte_level(&[Cut(DigitCut::ThreesAtWordEnd), GPT4O]),
        "tekken" => byte_level(&[words!(cased_with!("", r"\p{N}"))]).whole_pieces().with_bos(),

        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
            byte_level(&[Isolate(r"\p{N}{1,3}"), DEEPSEEK_CJK, DEEPSEEK_WORDS])
        }
        "spark2_5" => byte_level(&[
            Isolate(r"\p{N}{1,3}"),
            DEEPSEEK_CJK,
            Words { pattern: deepseek_words!(r"|[\r\n]|\s+"), whitespace: Whitespace::GiveBack },
            Isolate(r"\p{N}"),
        ]),
        "afmoe" => byte_level(&[Cut(DigitCut::Threes), AFMOE_SCRIPTS, DEEPSEEK_WORDS]),
        "deepseek-llm" => byte_level(&[
            Isolate(r"[\r\n]"),
            Isolate(CASED_ALPHABETS),
            Isolate("\\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+"),
            Isolate(r"\s+$"),
            DEEPSEEK_OLD_CJK,
            Isolate(r"\p{N}+"),
        ]),
        "deepseek-coder" => byte_level(&[
            Isolate(r"[\r\n]"),
            Isolate(r"\s?\p{L}+"),
            Isolate(r"\s?\p{P}+"),
            DEEPSEEK_OLD_CJK,
            Isolate(r"\p{N}"),
        ]),

        "youtu" => byte_level(&[
            Isolate(concat!(
                "[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+",
                "|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}",
                "\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+",
                "|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"
            )),
            words!(cased_with!(optional_contraction!(), r"\p{N}")),
        ])
        .whole_pieces(),
        "kimi-k2" => Family { ranks_are_ids: true, ..byte_level(&[KIMI]) },

        "bloom" | "poro-chat" | "gpt3-finnish" => byte_level(&[BLOOM]),
        "viking" => byte_level(&[BLOOM, Isolate(r"\p{N}")]),
        "falcon" => byte_level(&[Isolate(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, Isolate("[0-9][0-9][0-9]")]),
        "default" => {
            byte_level(&[Isolate(r"[\p{P}\$\+<=>\^~\|]+"), GPT2, Isolate(r"\p{N}+"), Isolate("[0-9][0-9][0-9]")])
        }
        "chameleon" => byte_level(&[
            Isolate("<sentinel:[0-9]+>"),
            Isolate("IMGIMG[A-I]{1,4}Z"),
            Isolate(r"[\t\n]|    |  "),
            Isolate(r"\p{N}"),
            Isolate(r"[\p{P}!-/:-@\[-`{-~]"),
            GPT2,
        ])
        .with_bos(),
        "superbpe" => byte_level(&[Isolate(r"\p{N}+"), Cut(DigitCut::BeforeThrees)]),

        "gemma4" | "granite-embed-multi-311m" | "sarvam-moe" => {
            Family { writing: Writing::Marked, ..byte_level(&[LINES]) }
        }
        "whitespace" => Family { writing: Writing::Plain, ..byte_level(&[Isolate(r"\S+")]) },
        _ => return None,
    })
}

const fn byte_level(rules: &'static [Rule]) -> Family {
    Family { rules, writing: Writing::ByteLevel, ignore_merges: false, adds_bos: false, ranks_are_ids: false }
}

impl Family {
    const fn whole_pieces(self) -> Family {
        Family { ignore_merges: true, ..self }
    }

    const fn with_bos(self) -> Family {
        Family { adds_bos: true, ..self }
    }
}
