//! Stop strings: what is shown is the text up to the first stop string, wherever the pieces are cut, and at every
//! moment nothing of a stop string is out and nothing else is held back.

use candlewick::stream::StopMatcher;

use super::{check_error, Input};

/// `data`: how many stop strings, each with its length, then the pieces, each with its length. Whether the stop
/// strings are accepted.
pub(crate) fn check(data: &[u8]) -> bool {
    let mut input = Input(data);
    let count = input.below(6);
    let stops: Vec<String> = (0..count).map(|_| input.text(12)).collect();
    let mut pieces = Vec::new();
    while !input.0.is_empty() {
        pieces.push(input.text(9));
    }
    let mut matcher = match StopMatcher::new(&stops) {
        Ok(matcher) => matcher,
        Err(error) => {
            assert!(stops.iter().any(String::is_empty), "{error}");
            check_error(&error);
            return false;
        }
    };
    assert!(stops.iter().all(|stop| !stop.is_empty()));
    let text = pieces.concat();
    let (expected, stopped) = by_definition(&stops, &text);
    let (mut shown, mut seen) = (String::new(), 0);
    for piece in &pieces {
        let outcome = matcher.push(piece);
        shown += &outcome.text;
        seen += piece.len();
        if outcome.stopped.is_some() {
            assert_eq!((shown.as_str(), outcome.stopped), (expected, stopped));
            let after = matcher.push("more");
            assert!(after.text.is_empty() && after.stopped == stopped && matcher.finish().is_empty());
            return true;
        }
        // Of the text so far, exactly its longest end that begins a stop string is held back.
        let held = stops.iter().filter_map(|stop| beginning_at_end(stop, &text[..seen])).max().unwrap_or(0);
        assert_eq!(shown.len(), seen - held, "{stops:?} {:?}", &text[..seen]);
        assert!(text.starts_with(&shown));
    }
    assert_eq!(stopped, None);
    shown += &matcher.finish();
    assert_eq!(shown, expected);
    true
}

/// Tries every end, the longest stop string first, of equal ones the first.
fn by_definition<'t>(stops: &[String], text: &'t str) -> (&'t str, Option<usize>) {
    for end in text.char_indices().map(|(at, c)| at + c.len_utf8()) {
        let here = stops.iter().enumerate().filter(|(_, stop)| text[..end].ends_with(stop.as_str()));
        if let Some((index, stop)) = here.max_by_key(|(index, stop)| (stop.len(), usize::MAX - index)) {
            return (&text[..end - stop.len()], Some(index));
        }
    }
    (text, None)
}

/// Length of the longest proper beginning of `stop`, in whole characters, that `text` ends with.
fn beginning_at_end(stop: &str, text: &str) -> Option<usize> {
    stop.char_indices().map(|(at, _)| at).rev().find(|&at| text.ends_with(&stop[..at]))
}
