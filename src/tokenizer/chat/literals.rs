//! Finds many fixed strings in one pass over a text (Aho and Corasick 1975), byte by byte.
//!
//! Serves the guarding of control tokens and the stop strings. Knows nothing of either.

use std::collections::HashMap;

/// A set of non-empty strings as an automaton over bytes. Memory is linear in their total length.
#[derive(Clone, Debug, Default)]
pub(crate) struct Literals {
    /// Length in bytes of each string, in the order given; 0 for the empty string, which never matches.
    lengths: Vec<usize>,
    edges: HashMap<(u32, u8), u32>,
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// Bytes from the start: the longest end of the text that begins one of the strings.
    depth: u32,
    /// Node of the longest proper end of this node's string that is a node too.
    fallback: u32,
    /// The longest string that ends here.
    longest: Option<u32>,
    /// The shortest string that ends here.
    shortest: Option<u32>,
}

impl Literals {
    /// The state before any byte.
    pub(crate) const START: u32 = 0;

    /// Of equal strings the first is reported. Empty ones are never found.
    pub(crate) fn new<'a>(literals: impl IntoIterator<Item = &'a str>) -> Literals {
        let mut set = Literals { nodes: vec![Node::default()], ..Literals::default() };
        // Nodes by depth, with the edge that leads to each: fallbacks of a level need those of all levels above.
        let mut order: Vec<(u32, u8, u32)> = Vec::new();
        for (index, literal) in literals.into_iter().enumerate() {
            set.lengths.push(literal.len());
            let mut node = Self::START;
            for &byte in literal.as_bytes() {
                let fresh = set.nodes.len() as u32;
                let child = *set.edges.entry((node, byte)).or_insert(fresh);
                if child == fresh {
                    let depth = set.nodes[node as usize].depth + 1;
                    set.nodes.push(Node { depth, ..Node::default() });
                    order.push((node, byte, child));
                }
                node = child;
            }
            if node != Self::START {
                let node = &mut set.nodes[node as usize];
                node.longest.get_or_insert(index as u32);
                node.shortest = node.longest;
            }
        }
        order.sort_by_key(|&(_, _, child)| set.nodes[child as usize].depth);
        for (parent, byte, child) in order {
            let fallback = match parent {
                Self::START => Self::START,
                _ => set.next(set.nodes[parent as usize].fallback, byte),
            };
            let Node { longest, shortest, .. } = set.nodes[fallback as usize];
            let node = &mut set.nodes[child as usize];
            node.fallback = fallback;
            node.longest = node.longest.or(longest);
            node.shortest = shortest.or(node.shortest);
        }
        set
    }

    /// The state after one more byte. Amortized constant time over a text.
    pub(crate) fn next(&self, mut state: u32, byte: u8) -> u32 {
        loop {
            if let Some(&child) = self.edges.get(&(state, byte)) {
                return child;
            }
            if state == Self::START {
                return Self::START;
            }
            state = self.nodes[state as usize].fallback;
        }
    }

    /// Bytes of the text's longest end that begins one of the strings, a whole one included.
    pub(crate) fn depth(&self, state: u32) -> usize {
        self.nodes.get(state as usize).map_or(0, |node| node.depth as usize)
    }

    /// Index of the longest string that ends here.
    pub(crate) fn longest_match(&self, state: u32) -> Option<usize> {
        self.nodes.get(state as usize)?.longest.map(|index| index as usize)
    }

    /// Index of the shortest string that ends here.
    pub(crate) fn shortest_match(&self, state: u32) -> Option<usize> {
        self.nodes.get(state as usize)?.shortest.map(|index| index as usize)
    }

    /// Bytes of the string of this index.
    pub(crate) fn len_of(&self, index: usize) -> usize {
        self.lengths[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn states_tell_the_longest_beginning_and_the_longest_match(
            literals in prop::collection::vec("[abé]{0,5}", 0..6), text in "[abé]{0,40}",
        ) {
            let set = Literals::new(literals.iter().map(String::as_str));
            let mut state = Literals::START;
            for (at, byte) in text.bytes().enumerate() {
                state = set.next(state, byte);
                let seen = &text.as_bytes()[..=at];
                let begins = |n: usize| literals.iter().any(|l| l.as_bytes().starts_with(&seen[seen.len() - n..]));
                let depth = (0..=seen.len()).rev().find(|&n| begins(n)).unwrap_or(0);
                prop_assert_eq!(set.depth(state), depth);
                let ends = literals.iter().filter(|l| !l.is_empty() && seen.ends_with(l.as_bytes())).map(|l| l.len());
                prop_assert_eq!(set.longest_match(state).map(|index| literals[index].len()), ends.clone().max());
                prop_assert_eq!(set.shortest_match(state).map(|index| literals[index].len()), ends.min());
            }
        }
    }

    #[test]
    fn no_strings_match_nothing() {
        let set = Literals::new([]);
        assert_eq!(set.next(Literals::START, b'a'), Literals::START);
        assert_eq!(set.longest_match(Literals::START), None);
    }
}
