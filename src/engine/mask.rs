//! Which tokens may come at all.

use crate::types::TokenId;

/// A set of tokens of one vocabulary, a bit for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenSet {
    bits: Vec<u64>,
    len: usize,
}

impl TokenSet {
    /// All tokens.
    pub(super) fn all(vocab_size: usize) -> TokenSet {
        let mut set = TokenSet { bits: vec![!0; vocab_size.div_ceil(64)], len: vocab_size };
        if let (Some(last), rest @ 1..) = (set.bits.last_mut(), vocab_size % 64) {
            *last = (1 << rest) - 1;
        }
        set
    }

    /// These tokens of another set.
    pub(super) fn only(&self, tokens: &[TokenId]) -> TokenSet {
        let mut set = TokenSet { bits: vec![0; self.bits.len()], len: self.len };
        for &token in tokens.iter().filter(|&&token| self.contains(token)) {
            set.bits[token as usize / 64] |= 1 << (token % 64);
        }
        set
    }

    pub(super) fn remove(&mut self, token: TokenId) {
        if let Some(word) = self.bits.get_mut(token as usize / 64) {
            *word &= !(1 << (token % 64));
        }
    }

    pub(super) fn contains(&self, token: TokenId) -> bool {
        self.bits.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bits.iter().all(|word| *word == 0)
    }

    /// Sets the logits of all other tokens to −∞.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (word, logits) in self.bits.iter().zip(logits.chunks_mut(64)) {
            if *word != !0 {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_they_were_given() {
        for len in [1, 63, 64, 65, 200] {
            let mut set = TokenSet::all(len);
            assert!((0..len as TokenId).all(|t| set.contains(t)) && !set.contains(len as TokenId));
            set.remove(0);
            set.remove(1 << 30);
            let mut logits = vec![1.0; len];
            set.apply(&mut logits);
            assert!(logits[0] == f32::NEG_INFINITY && logits[1..].iter().all(|&l| l == 1.0));
            let some = set.only(&[0, len as TokenId - 1, 5000]);
            assert!(!some.contains(0), "what is not in the first set is in none of it");
            assert_eq!(some.contains(len as TokenId - 1), len > 1);
        }
    }
}
