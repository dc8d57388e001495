//! Byte-pair merging: splits text into pieces and merges each piece's symbols, lowest rank first.
//!
//! Works on text between special tokens. Symbols are vocabulary ids; texts that occur in merges without being
//! tokens get ids above the vocabulary and fall apart into bytes again if they survive.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::alphabet;
use super::pre::{Family, Splitter, Writing};
use super::vocabulary::{TokenKind, Vocabulary};
use crate::source::Metadata;
use crate::{Result, TokenId, TokenizerError};

pub(crate) const MERGES: &str = "tokenizer.ggml.merges";

/// A character that occurs neither in the vocabulary nor in a merge.
const NO_SYMBOL: u32 = u32::MAX;

/// Merge lists may name as many new symbols as ids above the vocabulary allow.
const MAX_MERGES: usize = (u32::MAX / 8) as usize;

/// Merges whose texts are looked up side by side.
const LOOKED_UP_TOGETHER: usize = 32;

/// Where ranks are token ids, longer tokens are not looked for: their splits would cost the square of their length.
const LONGEST_RANKED_TOKEN: usize = 512;

#[derive(Clone, Copy, Debug)]
struct Merge {
    rank: u32,
    symbol: u32,
}

/// The byte-pair algorithm with its tables.
#[derive(Debug)]
pub(crate) struct Bpe {
    splitter: Splitter,
    writing: Writing,
    ignore_merges: bool,
    merges: HashMap<(u32, u32), Merge>,
    /// Symbols of merges that are no tokens.
    extra: HashMap<String, u32>,
    /// Byte-level: the symbol of each byte. Otherwise: the `<0xXX>` token of each byte.
    bytes: Vec<u32>,
    unknown: Unknown,
    /// Whether user-defined tokens are entries of this model too; else they only occur where they were cut out of text.
    takes_user_defined: bool,
    vocabulary_size: u32,
}

/// What stands for text that has neither a token nor tokens of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// Nothing does: such text is an error.
    None,
    /// This token for every byte that has none.
    PerByte(TokenId),
    /// This token for every character of which a byte has none.
    PerCharacter(TokenId),
    /// This token for every run of such characters.
    PerRun(TokenId),
}

#[derive(Clone, Copy)]
struct Node {
    symbol: u32,
    start: u32,
    end: u32,
    previous: u32,
    next: u32,
}

/// Buffers that one call of [`Bpe::encode`] reuses from piece to piece.
#[derive(Default)]
pub(crate) struct Scratch {
    nodes: Vec<Node>,
    /// Rank, left node, left symbol, right symbol; the lowest rank and then the leftmost pair comes first.
    queue: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
    written: String,
}

const END: u32 = u32::MAX;

impl Bpe {
    /// From the keys of GGUF. `unknown`: what stands for bytes that have no token.
    pub(crate) fn new(
        metadata: &Metadata,
        vocabulary: &Vocabulary,
        family: &Family,
        unknown: Option<TokenId>,
    ) -> Result<Bpe> {
        let unknown = unknown.map_or(Unknown::None, Unknown::PerByte);
        let mut bpe = Bpe::without_merges(
            vocabulary,
            Splitter::new(family.rules)?,
            family.writing,
            family.ignore_merges,
            true,
            unknown,
        );
        match metadata.strings(MERGES)? {
            Some(merges) => bpe.read_merges(vocabulary, merges)?,
            None if family.ranks_are_ids => bpe.rank_by_id(vocabulary),
            None => return Err(metadata.missing(MERGES).into()),
        }
        Ok(bpe)
    }

    /// A model that only knows its alphabet; `add_merges` gives it the rest.
    pub(crate) fn without_merges(
        vocabulary: &Vocabulary,
        splitter: Splitter,
        writing: Writing,
        ignore_merges: bool,
        takes_user_defined: bool,
        unknown: Unknown,
    ) -> Bpe {
        let mut bpe = Bpe {
            splitter,
            writing,
            ignore_merges,
            merges: HashMap::new(),
            extra: HashMap::new(),
            bytes: Vec::new(),
            unknown,
            takes_user_defined,
            vocabulary_size: vocabulary.len() as u32,
        };
        bpe.bytes = (0..=255)
            .map(|byte| match writing {
                Writing::ByteLevel => bpe.intern(vocabulary, alphabet::character(byte).encode_utf8(&mut [0; 4])),
                _ => vocabulary.byte_token(byte).unwrap_or(NO_SYMBOL),
            })
            .collect();
        bpe
    }

    /// Leaves characters without a token to the unknown token, although the vocabulary has tokens of bytes.
    pub(crate) fn forget_bytes(&mut self) {
        self.bytes.fill(NO_SYMBOL);
    }

    fn read_merges(&mut self, vocabulary: &Vocabulary, merges: &[String]) -> Result<()> {
        let pairs = merges.iter().enumerate().map(|(index, merge)| {
            split_merge(merge)
                .ok_or_else(|| TokenizerError::InvalidMerge { index, merge: merge.chars().take(40).collect() }.into())
        });
        self.add_merges(vocabulary, MERGES, merges.len(), pairs)
    }

    /// Adds the merges in order of rank; `key` names the list in errors, `count` is its length.
    pub(crate) fn add_merges<'m>(
        &mut self,
        vocabulary: &Vocabulary,
        key: &'static str,
        count: usize,
        pairs: impl Iterator<Item = Result<(&'m str, &'m str)>>,
    ) -> Result<()> {
        if count > MAX_MERGES {
            return Err(TokenizerError::TooLarge { key, found: count, limit: MAX_MERGES }.into());
        }
        self.merges.reserve(count);
        let (mut pairs, mut rank) = (pairs, 0u32);
        let mut joined = String::new();
        loop {
            let parts: Vec<(&str, &str)> = pairs.by_ref().take(LOOKED_UP_TOGETHER).collect::<Result<_>>()?;
            if parts.is_empty() {
                return Ok(());
            }
            joined.clear();
            parts.iter().for_each(|(left, right)| joined.extend([*left, *right]));
            let mut rest = &joined[..];
            let mut texts = Vec::with_capacity(3 * parts.len());
            for (left, right) in parts {
                let (both, after) = rest.split_at(left.len() + right.len());
                texts.extend([left, right, both]);
                rest = after;
            }
            let ids = vocabulary.ids(&texts);
            for (texts, ids) in texts.chunks_exact(3).zip(ids.chunks_exact(3)) {
                // Text must not turn into a control token, whatever the list says.
                if ids[2].is_none_or(|id| self.is_entry(vocabulary, id)) {
                    let pair = (self.named(vocabulary, ids[0], texts[0]), self.named(vocabulary, ids[1], texts[1]));
                    let symbol = self.named(vocabulary, ids[2], texts[2]);
                    // Of two equal merges the first counts.
                    self.merges.entry(pair).or_insert(Merge { rank, symbol });
                }
                rank += 1;
            }
        }
    }

    /// Any two tokens whose texts join to a third merge into it, earlier tokens first.
    fn rank_by_id(&mut self, vocabulary: &Vocabulary) {
        for (id, text, kind) in vocabulary.iter() {
            if kind != TokenKind::Normal || text.len() > LONGEST_RANKED_TOKEN || vocabulary.id(text) != Some(id) {
                continue;
            }
            for (at, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(at);
                if let (Some(left), Some(right)) = (vocabulary.plain_id(left), vocabulary.plain_id(right)) {
                    self.merges.insert((left, right), Merge { rank: id, symbol: id });
                }
            }
        }
    }

    fn intern(&mut self, vocabulary: &Vocabulary, text: &str) -> u32 {
        self.named(vocabulary, vocabulary.id(text), text)
    }

    /// The symbol of a text that is this token's, if it is a token's.
    fn named(&mut self, vocabulary: &Vocabulary, token: Option<TokenId>, text: &str) -> u32 {
        if let Some(id) = token.filter(|&id| self.is_entry(vocabulary, id)) {
            return id;
        }
        if let Some(&symbol) = self.extra.get(text) {
            return symbol;
        }
        let symbol = self.vocabulary_size + self.extra.len() as u32;
        self.extra.insert(text.to_string(), symbol);
        symbol
    }

    fn symbol(&self, vocabulary: &Vocabulary, text: &str) -> Option<u32> {
        self.entry(vocabulary, text).or_else(|| self.extra.get(text).copied())
    }

    fn entry(&self, vocabulary: &Vocabulary, text: &str) -> Option<TokenId> {
        vocabulary.id(text).filter(|&id| self.is_entry(vocabulary, id))
    }

    /// Whether plain text may turn into this token.
    fn is_entry(&self, vocabulary: &Vocabulary, id: TokenId) -> bool {
        vocabulary.is_plain(id) && (self.takes_user_defined || vocabulary.kind(id) != Some(TokenKind::UserDefined))
    }

    /// Appends the tokens of `text`, which holds no special tokens.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, out: &mut Vec<TokenId>) -> Result<()> {
        self.encode_with(vocabulary, text, &mut Scratch::default(), out)
    }

    /// As [`Bpe::encode`], for callers with many short texts.
    pub(crate) fn encode_with(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        let marked;
        let text = if self.writing == Writing::Marked {
            marked = text.replace(' ', "\u{2581}");
            &marked
        } else {
            text
        };
        self.splitter.split(text, &mut |piece| self.encode_piece(vocabulary, piece, scratch, out))
    }

    /// Appends the tokens of one piece, in the writing that the splitter works on.
    fn encode_piece(
        &self,
        vocabulary: &Vocabulary,
        piece: &str,
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) -> Result<()> {
        if self.ignore_merges && piece.len() <= vocabulary.longest() {
            if let Some(id) = self.entry(vocabulary, self.write(piece, &mut scratch.written)) {
                out.push(id);
                return Ok(());
            }
        }
        self.fill(vocabulary, piece, &mut scratch.nodes);
        self.merge(scratch);
        let mut at = 0;
        let mut after_unknown = false;
        while let Some(node) = scratch.nodes.get(at as usize) {
            if node.symbol < self.vocabulary_size {
                out.push(node.symbol);
                after_unknown = false;
            } else {
                after_unknown = self.fall_apart(piece, node.start as usize..node.end as usize, after_unknown, out)?;
            }
            at = node.next;
        }
        Ok(())
    }

    fn write<'w>(&self, piece: &'w str, written: &'w mut String) -> &'w str {
        if self.writing != Writing::ByteLevel {
            return piece;
        }
        written.clear();
        written.extend(piece.bytes().map(alphabet::character));
        written
    }

    fn fill(&self, vocabulary: &Vocabulary, piece: &str, nodes: &mut Vec<Node>) {
        nodes.clear();
        let mut push = |symbol, start: usize, end: usize| {
            let index = nodes.len() as u32;
            let previous = index.checked_sub(1).unwrap_or(END);
            nodes.push(Node { symbol, start: start as u32, end: end as u32, previous, next: index + 1 });
        };
        if self.writing == Writing::ByteLevel {
            for (at, byte) in piece.bytes().enumerate() {
                push(self.bytes[usize::from(byte)], at, at + 1);
            }
        } else {
            for (at, character) in piece.char_indices() {
                let end = at + character.len_utf8();
                push(self.symbol(vocabulary, &piece[at..end]).unwrap_or(NO_SYMBOL), at, end);
            }
        }
        if let Some(last) = nodes.last_mut() {
            last.next = END;
        }
    }

    fn merge(&self, Scratch { nodes, queue, .. }: &mut Scratch) {
        queue.clear();
        for left in 1..nodes.len() {
            self.offer(nodes, queue, left as u32 - 1);
        }
        while let Some(Reverse((_, left, left_symbol, right_symbol))) = queue.pop() {
            let node = nodes[left as usize];
            // A symbol only ever grows, so equal ids mean that the pair is the one that was queued.
            if node.symbol != left_symbol || node.next == END || nodes[node.next as usize].symbol != right_symbol {
                continue;
            }
            let Some(merge) = self.merges.get(&(left_symbol, right_symbol)) else { continue };
            let right = nodes[node.next as usize];
            nodes[node.next as usize].symbol = NO_SYMBOL;
            let merged = &mut nodes[left as usize];
            merged.symbol = merge.symbol;
            merged.end = right.end;
            merged.next = right.next;
            if right.next != END {
                nodes[right.next as usize].previous = left;
                self.offer(nodes, queue, left);
            }
            if node.previous != END {
                self.offer(nodes, queue, node.previous);
            }
        }
    }

    /// Queues the pair that starts at this node, if it can merge.
    fn offer(&self, nodes: &[Node], queue: &mut BinaryHeap<Reverse<(u32, u32, u32, u32)>>, left: u32) {
        let node = nodes[left as usize];
        if node.next == END {
            return;
        }
        let pair = (node.symbol, nodes[node.next as usize].symbol);
        if let Some(merge) = self.merges.get(&pair) {
            queue.push(Reverse((merge.rank, left, pair.0, pair.1)));
        }
    }

    /// Tokens of single bytes for text that has no token of its own; answers whether it became the unknown token.
    fn fall_apart(
        &self,
        piece: &str,
        range: std::ops::Range<usize>,
        after_unknown: bool,
        out: &mut Vec<TokenId>,
    ) -> Result<bool> {
        let bytes = &piece.as_bytes()[range];
        let symbol = |byte: &u8| Some(self.bytes[usize::from(*byte)]).filter(|&symbol| symbol < self.vocabulary_size);
        let Some(missing) = bytes.iter().copied().find(|byte| symbol(byte).is_none()) else {
            out.extend(bytes.iter().filter_map(symbol));
            return Ok(false);
        };
        match self.unknown {
            Unknown::None => {
                let context = piece.chars().take(40).collect();
                return Err(TokenizerError::Unencodable { byte: missing, context }.into());
            }
            Unknown::PerByte(unknown) => out.extend(bytes.iter().map(|byte| symbol(byte).unwrap_or(unknown))),
            Unknown::PerRun(_) if after_unknown => {}
            Unknown::PerCharacter(unknown) | Unknown::PerRun(unknown) => out.push(unknown),
        }
        Ok(true)
    }
}

/// The two parts of a merge; the left one may itself be a space.
pub(crate) fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next().map_or(0, char::len_utf8);
    let at = first + merge[first..].find(' ')?;
    let (left, right) = (&merge[..at], &merge[at + 1..]);
    (!left.is_empty() && !right.is_empty()).then_some((left, right))
}
