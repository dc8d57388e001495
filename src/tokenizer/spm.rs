//! SentencePiece's byte-pair variant: merges the adjacent pair whose joined text is the token of highest score.
//!
//! Works on text between special tokens, whole, without splitting it into pieces first.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::vocabulary::{check_length, TokenKind, Vocabulary, SCORES};
use crate::source::Metadata;
use crate::{Result, TokenId, TokenizerError};

/// How SentencePiece writes a space.
pub(crate) const SPACE: char = '\u{2581}';

/// The SentencePiece algorithm with its tables.
#[derive(Debug)]
pub(crate) struct Sentencepiece {
    scores: Vec<f32>,
    bytes: Vec<Option<TokenId>>,
    unknown: Option<TokenId>,
}

#[derive(Clone, Copy)]
struct Node {
    start: u32,
    /// Bytes; 0 once the node is merged into its left neighbor.
    len: u32,
    previous: u32,
    next: u32,
}

#[derive(PartialEq)]
struct Pair {
    score: f32,
    left: u32,
    right: u32,
    len: u32,
    id: TokenId,
}

const END: u32 = u32::MAX;

impl Sentencepiece {
    pub(crate) fn new(
        metadata: &Metadata,
        vocabulary: &Vocabulary,
        unknown: Option<TokenId>,
    ) -> Result<Sentencepiece> {
        let mut scores = metadata.floats(SCORES)?.ok_or_else(|| metadata.missing(SCORES))?;
        check_length(SCORES, vocabulary.len(), scores.len())?;
        for (token, score) in (0u32..).zip(&mut scores) {
            if !score.is_finite() {
                return Err(TokenizerError::InvalidScore { token, score: *score }.into());
            }
            // −0 and 0 must tie.
            *score += 0.0;
        }
        Ok(Sentencepiece { scores, bytes: (0..=255).map(|byte| vocabulary.byte_token(byte)).collect(), unknown })
    }

    /// Appends the tokens of `text`, which holds no special tokens; `prefix` puts a space before it.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        prefix: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let mut marked = String::with_capacity(text.len() + text.len() / 2 + 3);
        if prefix {
            marked.push(SPACE);
        }
        marked.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));

        let mut nodes: Vec<Node> = Vec::with_capacity(marked.len());
        for (start, character) in marked.char_indices() {
            let index = nodes.len() as u32;
            nodes.push(Node {
                start: start as u32,
                len: character.len_utf8() as u32,
                previous: index.checked_sub(1).unwrap_or(END),
                next: index + 1,
            });
        }
        if let Some(last) = nodes.last_mut() {
            last.next = END;
        }
        let splits = self.merge(vocabulary, &marked, &mut nodes);
        let mut at = 0;
        while let Some(node) = nodes.get(at as usize) {
            self.emit(vocabulary, &marked, &splits, *node, out)?;
            at = node.next;
        }
        Ok(())
    }

    /// Merges to the end. Answers where unused tokens, which must not be emitted, were joined: by start and length,
    /// the length of the left part.
    fn merge(&self, vocabulary: &Vocabulary, text: &str, nodes: &mut [Node]) -> HashMap<(u32, u32), u32> {
        let mut splits = HashMap::new();
        let mut queue = BinaryHeap::new();
        for left in 1..nodes.len() {
            self.offer(vocabulary, text, nodes, &mut queue, left as u32 - 1);
        }
        while let Some(pair) = queue.pop() {
            let (left, right) = (nodes[pair.left as usize], nodes[pair.right as usize]);
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            if vocabulary.kind(pair.id) == Some(TokenKind::Unused) {
                splits.insert((left.start, pair.len), left.len);
            }
            nodes[pair.right as usize].len = 0;
            nodes[pair.left as usize].len = pair.len;
            nodes[pair.left as usize].next = right.next;
            if right.next != END {
                nodes[right.next as usize].previous = pair.left;
                self.offer(vocabulary, text, nodes, &mut queue, pair.left);
            }
            if left.previous != END {
                self.offer(vocabulary, text, nodes, &mut queue, left.previous);
            }
        }
        splits
    }

    /// Queues the pair that starts at this node, if its text is a token.
    fn offer(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        nodes: &[Node],
        queue: &mut BinaryHeap<Pair>,
        left: u32,
    ) {
        let node = nodes[left as usize];
        if node.next == END {
            return;
        }
        let len = node.len + nodes[node.next as usize].len;
        let joined = &text[node.start as usize..(node.start + len) as usize];
        if let Some(id) = vocabulary.plain_id(joined) {
            queue.push(Pair { score: self.scores[id as usize], left, right: node.next, len, id });
        }
    }

    fn emit(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        splits: &HashMap<(u32, u32), u32>,
        node: Node,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let mut parts = vec![(node.start, node.len)];
        while let Some((start, len)) = parts.pop() {
            if let Some(&left) = splits.get(&(start, len)) {
                parts.push((start + left, len - left));
                parts.push((start, left));
                continue;
            }
            let part = &text[start as usize..(start + len) as usize];
            match vocabulary.plain_id(part).filter(|&id| vocabulary.kind(id) != Some(TokenKind::Unused)) {
                Some(id) => out.push(id),
                None => self.emit_bytes(part, out)?,
            }
        }
        Ok(())
    }

    /// One character without a token: its bytes if all have tokens, else one unknown token.
    fn emit_bytes(&self, part: &str, out: &mut Vec<TokenId>) -> Result<()> {
        let bytes: Option<Vec<TokenId>> = part.bytes().map(|byte| self.bytes[usize::from(byte)]).collect();
        match (bytes, self.unknown) {
            (Some(ids), _) => out.extend(ids),
            (None, Some(unknown)) => out.push(unknown),
            (None, None) => {
                let missing = part.bytes().find(|&byte| self.bytes[usize::from(byte)].is_none());
                let context = part.chars().take(40).collect();
                return Err(TokenizerError::Unencodable { byte: missing.unwrap_or(0), context }.into());
            }
        }
        Ok(())
    }
}

impl Eq for Pair {}

impl Ord for Pair {
    /// The highest score comes first out of the queue, and of equal ones the leftmost.
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
