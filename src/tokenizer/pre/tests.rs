//! Pieces of tricky texts, derived by hand from each family's rule.

use super::{family, Splitter};

fn pieces<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
    let splitter = Splitter::new(family(pre).expect(pre).rules).expect(pre);
    let mut pieces = Vec::new();
    splitter
        .split(text, &mut |piece| {
            pieces.push(piece);
            Ok(())
        })
        .expect(pre);
    pieces
}

#[track_caller]
fn check(pre: &str, text: &str, expected: &[&str]) {
    assert_eq!(pieces(pre, text), expected, "{pre}: {text:?}");
}

const NAMES: &[&str] = &[
    "gpt-2",
    "smollm",
    "llama-bpe",
    "glm4",
    "dbrx",
    "qwen2",
    "qwen35",
    "ufakzeka",
    "bailingmoe",
    "seed-coder",
    "laguna",
    "exaone-moe",
    "minicpm5",
    "jais-2",
    "gpt-4o",
    "granite-embed-multi-97m",
    "tiny_aya",
    "tekken",
    "deepseek-v3",
    "spark2_5",
    "afmoe",
    "deepseek-llm",
    "deepseek-coder",
    "youtu",
    "kimi-k2",
    "bloom",
    "viking",
    "falcon",
    "default",
    "chameleon",
    "superbpe",
    "gemma4",
    "whitespace",
];

#[test]
fn pieces_are_the_text() {
    let texts = [
        "",
        " ",
        "a  1\r\n\r\n  b'S  'll don't 12345678 x9y\t\t\u{A0}z",
        "e\u{301}te\u{301} HTMLParser ÄÖ ǅungla मान 大模型 ひらカタ 한글 Ⅳ½ 🚀🔥!? (x|y) <sentinel:3>IMGIMGABZ ",
        "\n\n \n\n\n x \u{200B}\u{3000}。「」 $^~`_ ... 1,234,567.89\r",
    ];
    for pre in NAMES {
        for text in texts {
            let found = pieces(pre, text);
            assert_eq!(found.concat(), text, "{pre}");
            assert!(found.iter().all(|piece| !piece.is_empty()), "{pre}: {found:?}");
        }
    }
}

#[test]
fn unknown_names_have_no_rule() {
    assert!(family("").is_none());
    assert!(family("qwen").is_none());
    assert!(family("GPT-2").is_none());
}

#[test]
fn gpt2() {
    check("gpt-2", "Hello  world", &["Hello", " ", " world"]);
    check("gpt-2", "a\n\nb", &["a", "\n", "\n", "b"]);
    check("gpt-2", "x = 123 ", &["x", " =", " 123", " "]);
    check("gpt-2", "it's IT'S", &["it", "'s", " IT", "'", "S"]);
    check("gpt-2", "a\t b", &["a", "\t", " b"]);
    check("gpt-2", "wow!!\n", &["wow", "!!", "\n"]);
}

#[test]
fn single_digits_come_first_in_smollm() {
    check("smollm", "a  1", &["a", "  ", "1"]);
    check("smollm", "v12 x", &["v", "1", "2", " x"]);
    check("gpt-2", "a  1", &["a", " ", " 1"]);
    check("qwen2", "a  1", &["a", " ", " ", "1"]);
}

#[test]
fn llama3() {
    check("llama-bpe", "12345 6", &["123", "45", " ", "6"]);
    check("llama-bpe", "I'LL go", &["I", "'LL", " go"]);
    check("llama-bpe", "a  \n\n  b", &["a", "  \n\n", " ", " b"]);
    check("llama-bpe", "end.\n\nNext", &["end", ".\n\n", "Next"]);
    check("llama-bpe", "(foo)\r\n", &["(foo", ")\r\n"]);
    check("llama-bpe", "a   ", &["a", "   "]);
    check("llama-bpe", "\tx", &["\tx"]);
}

#[test]
fn qwen() {
    check("qwen2", "a12", &["a", "1", "2"]);
    // A combining mark is no letter for qwen2, so it starts a piece of "other" characters.
    check("qwen2", "e\u{301}t", &["e", "\u{301}t"]);
    check("qwen35", "e\u{301}t", &["e\u{301}t"]);
    check("ufakzeka", "it's", &["it", "'s"]);
    check("ufakzeka", "Ali'den", &["Ali", "'den"]);
    check("qwen2", "Ali'den", &["Ali", "'d", "en"]);
    check("seed-coder", "x!\n\ny", &["x", "!", "\n\n", "y"]);
    check("laguna", "x!\n\ny", &["x", "!", "\n\n", "y"]);
    check("laguna", "x  \ny", &["x", "  ", "\n", "y"]);
    check("exaone-moe", "one two3", &["one two", "3"]);
    check("exaone-moe", "a/\n\nb", &["a", "/\n", "\n", "b"]);
}

#[test]
fn whitespace_in_halving_runs() {
    let text = format!("{}x", " ".repeat(14));
    check("jais-2", &text, &["        ", "    ", " ", " x"]);
    check("jais-2", "a   ", &["a", "  ", " "]);
    check("jais-2", " \t1", &[" ", "\t", "1"]);
}

#[test]
fn case_decides_in_gpt4o_and_tekken() {
    check("gpt-4o", "HTMLParser don't", &["HTMLParser", " don't"]);
    check("gpt-4o", "parseHTML", &["parse", "HTML"]);
    check("gpt-4o", "x/\n//y 1234", &["x", "/\n//", "y", " ", "123", "4"]);
    check("tekken", "parseHTML don't 12", &["parse", "HTML", " don", "'t", " ", "1", "2"]);
}

#[test]
fn digits_from_the_right() {
    check("tiny_aya", "1234567", &["1", "234", "567"]);
    check("tiny_aya", "12345a", &["123", "45", "a"]);
    check("afmoe", "x12345678y", &["x", "12", "345", "678", "y"]);
    check("afmoe", "123", &["123"]);
    check("superbpe", "a b 12345 c", &["a b ", "12", "345", " c"]);
    check("superbpe", "123456", &["123", "456"]);
}

#[test]
fn deepseek() {
    check("deepseek-v3", "1234大ab,c", &["123", "4", "大", "ab", ",c"]);
    check("deepseek-v3", "a\n\n b", &["a", "\n\n", " b"]);
    check("spark2_5", "a\n\nb", &["a", "\n", "\n", "b"]);
    check("deepseek-llm", "Hi, 大模12\n", &["Hi", ",", " ", "大模", "12", "\n"]);
    check("deepseek-llm", "a  ", &["a", "  "]);
    check("deepseek-coder", "f(x) 12", &["f", "(", "x", ")", " ", "1", "2"]);
}

#[test]
fn scripts() {
    check("kimi-k2", "大模abc大", &["大模", "abc", "大"]);
    check("kimi-k2", "Don't1234", &["Don't", "123", "4"]);
    check("youtu", "한글大a12", &["한글", "大", "a", "1", "2"]);
    // What no pattern matches stays together.
    check("bloom", "a, (b c", &["a", ", (", "b", " c"]);
    check("viking", "a12", &["a", "1", "2"]);
}

#[test]
fn rules_in_sequence() {
    check("falcon", "a==1234", &["a", "==", "123", "4"]);
    check("default", "x.12345", &["x", ".", "123", "45"]);
    // The space does not reach the digits: the third rule cuts them out.
    check("default", "a 12", &["a", " ", "12"]);
    check("falcon", "a 12", &["a", " 12"]);
    check("chameleon", "a    b!!1", &["a", "    ", "b", "!", "!", "1"]);
    check("chameleon", "IMGIMGACZx", &["IMGIMGACZ", "x"]);
    check("minicpm5", "a 1234", &["a", " ", "123", "4"]);
}

#[test]
fn families_without_the_byte_alphabet() {
    check("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]);
    check("whitespace", "a  b", &["a", "  ", "b"]);
}

#[test]
fn time_is_linear() {
    let start = std::time::Instant::now();
    for unit in ["a", " ", "\n", "1", "é", "🚀", "\r\n", "A", "'", " \t", "\u{301}", "大", "aA", "\n "] {
        let text = unit.repeat(200_000 / unit.len());
        for pre in NAMES {
            assert_eq!(pieces(pre, &text).iter().map(|piece| piece.len()).sum::<usize>(), text.len());
        }
    }
    // A quadratic rule would take hours.
    assert!(start.elapsed().as_secs() < 300, "{:?}", start.elapsed());
}
