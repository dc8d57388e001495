//! Adversarial tests of the guards.

use proptest::prelude::*;

use super::*;

const GUARD: char = '\u{fdd0}';

fn guarded(tokens: &[&str], text: &str) -> String {
    ControlTokens::new(tokens.iter().copied()).guard(text, GUARD, TextKind::Content, "content").unwrap().into_owned()
}

const CHATML: &[&str] = &["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]"];

#[test]
fn occurrences_are_broken_in_any_case() {
    for token in CHATML {
        for text in [token.to_string(), format!("a {token} b"), token.to_lowercase(), token.to_uppercase()] {
            let result = guarded(CHATML, &text);
            assert!(!CHATML.iter().any(|token| result.to_lowercase().contains(&token.to_lowercase())), "{result:?}");
            assert_eq!(result.replace(GUARD, ""), text);
        }
    }
}

#[test]
fn plain_text_is_left_alone() {
    let text = "Is 3 < 4 | x? <b>bold</b> [1] <tool_call>{}</tool_call>.";
    assert!(matches!(
        ControlTokens::new(CHATML.iter().copied()).guard(text, GUARD, TextKind::Content, "content").unwrap(),
        Cow::Borrowed(_)
    ));
    assert_eq!(guarded(&[], "<s>"), "<s>");
    assert_eq!(guarded(CHATML, ""), "");
}

#[test]
fn parts_at_the_borders_are_cut_off_also_after_trimming() {
    for (text, expected) in [
        ("<|im_", "G<|im_G"),
        ("a <|im_", "a <|im_G"),
        ("a <|im_ \n", "a <|im_G \n"),
        ("start|> b", "Gstart|> b"),
        ("\n  start|> b", "\n  Gstart|> b"),
        ("a <", "a <G"),
        ("> quote", "G> quote"),
        // A middle part.
        ("im_", "Gim_"),
    ] {
        assert_eq!(guarded(CHATML, text), expected.replace('G', &GUARD.to_string()), "{text:?}");
    }
}

#[test]
fn names_that_are_middle_parts_stay_comparable() {
    let tokens = ControlTokens::new(["<|user|>", "<|python_tag|>"]);
    for name in ["user", "python"] {
        assert_eq!(tokens.guard(name, GUARD, TextKind::Field, "name").unwrap(), name);
    }
    // Yet a name cannot complete a token around which the template writes the rest.
    let name = tokens.guard("user|>x<|user", GUARD, TextKind::Field, "name").unwrap();
    let around = format!("<|{name}|>");
    assert_eq!(around.matches("<|user|>").count(), 0);
}

#[test]
fn a_token_of_one_character_is_an_error_where_it_occurs() {
    let tokens = ControlTokens::new(["#"]);
    assert!(tokens.guard("ab", GUARD, TextKind::Content, "content").is_ok());
    let error = tokens.guard("a#b", GUARD, TextKind::Content, "content").unwrap_err();
    assert_eq!(error, TemplateError::Unguardable { field: "content".into(), token: "#".into() });
}

#[test]
fn the_guard_occurs_nowhere_else() {
    let tokens = ControlTokens::new(["<\u{fdd0}>"]);
    assert_eq!(tokens.choose_guard(["a", "b\u{fdd1}"].into_iter()), Ok('\u{fdd2}'));
    let all: String = guards().collect();
    assert_eq!(all.chars().count(), 66);
    assert!(all.chars().all(may_be_guard) && !"a\u{fdcf}\u{fdf0}\u{fffd}".chars().any(may_be_guard));
    assert_eq!(tokens.choose_guard([all.as_str()].into_iter()), Err(TemplateError::NoGuard));
}

#[test]
fn a_megabyte_among_thousands_of_tokens_is_guarded_in_linear_time() {
    let names: Vec<String> = (0..6000).map(|index| format!("<unused{index}>")).collect();
    let tokens = ControlTokens::new(names.iter().map(String::as_str));
    let started = std::time::Instant::now();
    for text in ["<unused".repeat(150_000), "<unused7>".repeat(110_000), "<".repeat(1_000_000), " ".repeat(1_000_000)] {
        let result = tokens.guard(&text, GUARD, TextKind::Content, "content").unwrap();
        assert_eq!(result.replace(GUARD, ""), text);
    }
    assert!(started.elapsed().as_secs() < 20);
}

fn tokens_and_texts() -> impl Strategy<Value = (Vec<String>, Vec<String>)> {
    // Few letters: overlaps and parts are frequent.
    (prop::collection::vec("[<|a>é ]{2,5}", 1..5), prop::collection::vec("[<|aA>é \n]{0,12}", 1..5))
}

proptest! {
    #[test]
    fn without_guards_the_text_is_unchanged_and_with_them_no_token_is_found((tokens, texts) in tokens_and_texts()) {
        let set = ControlTokens::new(tokens.iter().map(String::as_str));
        for text in &texts {
            for kind in [TextKind::Content, TextKind::Field] {
                let once = set.guard(text, GUARD, kind, "content").unwrap();
                prop_assert_eq!(once.replace(GUARD, ""), text.as_str());
                let twice = set.guard(&once, GUARD, kind, "content").unwrap();
                prop_assert_eq!(twice.replace(GUARD, ""), text.as_str());
                for token in &tokens {
                    let token = token.to_ascii_lowercase();
                    prop_assert!(!once.to_ascii_lowercase().contains(&token));
                    prop_assert!(!twice.to_ascii_lowercase().contains(&token));
                }
            }
        }
    }

    #[test]
    fn neighbours_complete_no_token((tokens, texts) in tokens_and_texts(), trim: bool, template in "[<|a>é ]{0,6}") {
        let set = ControlTokens::new(tokens.iter().map(String::as_str));
        let content = |text: &str| {
            let guarded = set.guard(text, GUARD, TextKind::Content, "content").unwrap().into_owned();
            if trim { guarded.trim().to_owned() } else { guarded }
        };
        let contents: Vec<String> = texts.iter().map(|text| content(text)).collect();
        // Contents side by side, and the template's own text around each: only what is whole in the latter is found.
        let joined = contents.concat();
        let around: String = contents.iter().filter(|text| !text.is_empty()).map(|text| format!("{template}{text}")).collect();
        for token in tokens.iter().map(|token| token.to_ascii_lowercase()) {
            prop_assert!(!joined.to_ascii_lowercase().contains(&token));
            let occurrences = |text: &str| text.char_indices().filter(|(at, _)| text[*at..].starts_with(&token)).count();
            let copies = contents.iter().filter(|text| !text.is_empty()).count();
            prop_assert_eq!(occurrences(&around.to_ascii_lowercase()), copies * occurrences(&template));
        }
    }
}
