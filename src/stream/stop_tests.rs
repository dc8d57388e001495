//! Tests of stop strings.

use proptest::prelude::*;

use super::*;
use crate::Error;

fn matcher(stops: &[&str]) -> StopMatcher {
    StopMatcher::new(&stops.iter().map(|stop| stop.to_string()).collect::<Vec<_>>()).unwrap()
}

/// Everything that is shown, and which stop string ended it.
fn run<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<usize>) {
    let mut matcher = matcher(stops);
    let mut shown = String::new();
    for piece in pieces {
        let outcome = matcher.push(piece);
        shown += &outcome.text;
        if outcome.stopped.is_some() {
            return (shown, outcome.stopped);
        }
    }
    shown += &matcher.finish();
    (shown, None)
}

/// The definition: try every end, longest stop string first.
fn by_definition(stops: &[&str], text: &str) -> (String, Option<usize>) {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    for end in ends {
        let here = stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(**stop));
        // Of equal strings the first.
        if let Some((index, stop)) = here.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index)) {
            return (text[..end - stop.len()].to_owned(), Some(index));
        }
    }
    (text.to_owned(), None)
}

#[test]
fn holds_back_only_what_may_become_a_stop_string() {
    let mut matcher = matcher(&["END", "\n\nUser:"]);
    assert_eq!(matcher.push("hello E").text, "hello ");
    assert_eq!(matcher.push("N").text, "");
    assert_eq!(matcher.push("TER\n").text, "ENTER");
    assert_eq!(matcher.push("\nUsE").text, "\n\nUs");
    let outcome = matcher.push("ND more");
    assert_eq!(outcome, StopOutcome { text: String::new(), stopped: Some(0) });
    assert_eq!(matcher.push("after"), StopOutcome { text: String::new(), stopped: Some(0) });
    assert_eq!(matcher.finish(), "");
}

#[test]
fn a_beginning_that_never_completes_is_shown_at_the_end() {
    assert_eq!(run(&["abc"], ["xab"]), ("xab".to_owned(), None));
}

#[test]
fn the_first_to_be_complete_wins_and_of_those_the_longest() {
    assert_eq!(run(&["abcd", "bc"], ["xabcd"]), ("xa".to_owned(), Some(1)));
    assert_eq!(run(&["c", "abc", "bc"], ["xabcd"]), ("x".to_owned(), Some(1)));
    assert_eq!(run(&["a", "aa"], ["aa"]), (String::new(), Some(0)));
    assert_eq!(run(&["z", "z"], ["az"]), ("a".to_owned(), Some(0)));
}

#[test]
fn characters_of_several_bytes_are_never_split() {
    // The two share their first bytes.
    assert_eq!(run(&["né"], ["nè", "né"]), ("nè".to_owned(), Some(0)));
    let mut matcher = matcher(&["日本"]);
    assert_eq!(matcher.push("日").text, "");
    assert_eq!(matcher.push("月").text, "日月");
}

#[test]
fn an_empty_stop_string_is_refused() {
    let error = StopMatcher::new(&["a".into(), String::new()]).unwrap_err();
    assert!(matches!(error, Error::Request(RequestError::InvalidParameter { name: "stop", .. })));
    assert_eq!(run(&[], ["a", "b"]), ("ab".to_owned(), None));
}

#[test]
fn a_long_stop_string_whose_beginning_repeats_costs_linear_time() {
    let stop = format!("{}b", "a".repeat(100_000));
    let mut matcher = matcher(&[&stop]);
    let started = std::time::Instant::now();
    let mut shown = 0;
    for _ in 0..1_000_000 {
        shown += matcher.push("a").text.len();
    }
    assert_eq!(shown, 900_000);
    assert_eq!(matcher.push("b").stopped, Some(0));
    // Quadratic, this would be 10^11 steps.
    assert!(started.elapsed().as_secs() < 20);
}

proptest! {
    #[test]
    fn any_split_gives_the_definition(
        text in "[abé日]{0,40}", stops in prop::collection::vec("[abé日]{1,4}", 0..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| borders[cut.index(borders.len())]).collect();
        cuts.extend([0, text.len()]);
        cuts.sort();
        let pieces = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        prop_assert_eq!(run(&stops, pieces), by_definition(&stops, &text));
    }

    #[test]
    fn nothing_of_a_stop_string_leaks_and_no_more_than_needed_is_held(
        text in "[ab]{0,30}", stop in "[ab]{1,5}",
    ) {
        let mut matcher = matcher(&[&stop]);
        let mut shown = String::new();
        for end in 1..=text.len() {
            let outcome = matcher.push(&text[end - 1..end]);
            shown += &outcome.text;
            if outcome.stopped.is_some() {
                prop_assert_eq!(shown + &stop, &text[..end]);
                break;
            }
            let held = (0..stop.len()).rev().find(|&n| text[..end].ends_with(&stop[..n])).unwrap();
            prop_assert_eq!(shown.len(), end - held);
        }
    }
}
