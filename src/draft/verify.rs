//! Exact verification: where a draft and the model's own choices part.
//!
//! Nothing but the comparison: the caller draws the model's token at each position from the model's logits, with the
//! same noise, penalties and masks as without a draft. Since a token is only drawn where all earlier draft tokens were
//! the model's own, the drawn sequence is the one that decoding without a draft gives, whatever was proposed.

use crate::types::TokenId;

/// A walk along one draft. Row 0 of a step follows the sequence's last token, row d the draft's first d tokens.
#[derive(Debug, Default)]
pub(crate) struct Verification {
    draft: Vec<TokenId>,
    accepted: usize,
    ended: bool,
    finished: bool,
}

impl Verification {
    pub(crate) fn new(draft: Vec<TokenId>) -> Verification {
        Verification { draft, accepted: 0, ended: false, finished: false }
    }

    pub(crate) fn draft(&self) -> &[TokenId] {
        &self.draft
    }

    /// Whether the next row's logits follow from tokens that the model itself chose.
    pub(crate) fn is_open(&self) -> bool {
        !self.ended
    }

    /// The model chose `token` at the next row; `finished` if the answer ends with it.
    pub(crate) fn chose(&mut self, token: TokenId, finished: bool) {
        let agrees = self.draft.get(self.accepted) == Some(&token);
        self.accepted += usize::from(agrees);
        self.ended = !agrees || finished;
        self.finished = finished;
    }

    /// No token could be chosen.
    pub(crate) fn stop(&mut self) {
        self.ended = true;
        self.finished = true;
    }

    /// Whether the answer ended within the walk.
    pub(crate) fn finished(&self) -> bool {
        self.finished
    }

    /// Draft tokens that the model agreed with so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted
    }
}
