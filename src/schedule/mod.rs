//! Who runs in the next step, and with how many rows. Must not know text or sampling.

mod sequence;

pub(crate) use sequence::Sequence;

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// The sequence's place among the running ones.
    pub(crate) index: usize,
    /// Rows that it runs.
    pub(crate) rows: usize,
}

/// What a sequence has to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Rows of tokens, drafted ones included.
    pub(crate) rows: usize,
    /// Whether they give the next token at once: the last token alone, or with a draft.
    pub(crate) decodes: bool,
}

/// Divides a step's rows: every sequence that waits for its next token runs all of its rows, and beside them prompts fill
/// the budget in order of arrival.
///
/// Decode rows are never refused, so a long prompt cannot stall running answers for more than a step; and they leave the
/// budget alone, so that running answers cannot keep a prompt from its turn.
pub(crate) fn plan(pending: &[Pending], budget: usize) -> Vec<Share> {
    let mut left = budget.max(1);
    let mut shares = Vec::with_capacity(pending.len());
    for (index, pending) in pending.iter().enumerate() {
        let rows = if pending.decodes {
            pending.rows
        } else {
            let rows = pending.rows.min(left);
            left -= rows;
            rows
        };
        if rows > 0 {
            shares.push(Share { index, rows });
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(rows: &[usize]) -> Vec<Pending> {
        rows.iter().map(|&rows| Pending { rows, decodes: rows == 1 }).collect()
    }

    fn rows(rows: &[usize], budget: usize) -> Vec<(usize, usize)> {
        plan(&pending(rows), budget).into_iter().map(|s| (s.index, s.rows)).collect()
    }

    #[test]
    fn drafts_are_run_whole_and_count() {
        let mut pending = pending(&[4, 100]);
        pending[0].decodes = true;
        let shares = plan(&pending, 10);
        assert_eq!(shares, [Share { index: 0, rows: 4 }, Share { index: 1, rows: 10 }]);
        assert_eq!(plan(&pending, 0), [Share { index: 0, rows: 4 }, Share { index: 1, rows: 1 }]);
    }

    #[test]
    fn decodes_come_first_and_prompts_share_the_rest_in_order() {
        assert_eq!(rows(&[1, 100, 1, 50], 64), [(0, 1), (1, 64), (2, 1)]);
        assert_eq!(rows(&[40, 100, 1], 64), [(0, 40), (1, 24), (2, 1)]);
        assert_eq!(rows(&[0, 7], 64), [(1, 7)]);
        assert!(rows(&[], 64).is_empty());
    }

    #[test]
    fn there_is_always_progress() {
        assert_eq!(rows(&[10], 0), [(0, 1)]);
        assert_eq!(rows(&[1, 1, 1], 2), [(0, 1), (1, 1), (2, 1)]);
        // However many answers run, prompts go on.
        assert_eq!(rows(&[1, 1, 9], 2), [(0, 1), (1, 1), (2, 2)]);
    }

    #[test]
    fn no_step_exceeds_the_budget_by_prompts() {
        for budget in 1..40 {
            for a in 0..20 {
                for b in 0..20 {
                    let pending = pending(&[a, b, 1]);
                    let shares = plan(&pending, budget);
                    let prompts = shares.iter().filter(|s| !pending[s.index].decodes);
                    assert!(prompts.map(|s| s.rows).sum::<usize>() <= budget);
                }
            }
        }
    }
}
