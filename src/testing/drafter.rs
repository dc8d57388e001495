//! The conformance suite of drafters.

use crate::draft::{DraftBatch, DraftContext, DraftJob, Drafter};
use crate::types::{SequenceId, TokenId};

const VOCAB: usize = 50;

/// Whether a drafter keeps the contract of [`Drafter`]: proposals that are within bounds and of the vocabulary, the same
/// for the same sequences, and no error for sequences that come, repeat themselves, end and are gone.
///
/// # Errors
/// What is broken, in a sentence.
pub fn check_drafter(drafter: &dyn Drafter) -> Result<(), String> {
    let name = drafter.name();
    if name.is_empty() {
        return Err("the drafter has no name".to_string());
    }
    for max_tokens in [1, 3, 16] {
        let first = run(drafter, max_tokens).map_err(|e| format!("{name}, drafts of up to {max_tokens}: {e}"))?;
        let second = run(drafter, max_tokens).map_err(|e| format!("{name}, drafts of up to {max_tokens}: {e}"))?;
        if first != second {
            return Err(format!("{name}: two batches with the same sequences proposed {first:?} and {second:?}"));
        }
    }
    Ok(())
}

/// Sequences that repeat, alternate, never repeat, and one of a single token.
fn sequences() -> Vec<Vec<TokenId>> {
    vec![
        (0..40).map(|i| i % 5).collect(),
        (0..23).map(|i| i * i % 7 + 10).collect(),
        (0..45).collect(),
        vec![49],
        vec![7; 30],
    ]
}

/// All proposals of a batch over some steps, with an answer that follows its drafts in part.
fn run(drafter: &dyn Drafter, max_tokens: usize) -> Result<Vec<Vec<TokenId>>, String> {
    let context = DraftContext::new(VOCAB, max_tokens);
    let mut batch = drafter.start(&context).map_err(|e| format!("start: {e}"))?;
    let mut tokens = sequences();
    let id = |index: usize| SequenceId(index as u64 * 3 + 1);
    for (index, tokens) in tokens.iter().enumerate() {
        batch.add(id(index), tokens).map_err(|e| format!("add: {e}"))?;
    }
    let mut all = Vec::new();
    for step in 0..12 {
        // Not every sequence is asked in every step.
        let asked: Vec<usize> = (0..tokens.len()).filter(|index| (index + step) % 4 != 0).collect();
        let room = |index: usize| 1 + (index + step) % max_tokens;
        let drafts = propose(&mut *batch, asked.iter().map(|&i| (id(i), &tokens[i][..], room(i))).collect())?;
        for (&index, draft) in asked.iter().zip(&drafts) {
            let accepted = draft.len().min(step % 3);
            tokens[index].extend(&draft[..accepted]);
            tokens[index].push((step * 11 + index) as TokenId % VOCAB as TokenId);
            if !draft.is_empty() {
                batch.verified(id(index), &tokens[index], accepted);
            }
        }
        all.extend(drafts);
    }
    for index in 0..tokens.len() {
        batch.remove(id(index));
    }
    // What was removed may be named once more, and a name that never was.
    batch.remove(id(0));
    batch.verified(id(99), &[1, 2], 1);
    // Prompts come again under new names.
    let again = SequenceId(1000);
    batch.add(again, &tokens[0]).map_err(|e| format!("add after all had ended: {e}"))?;
    all.extend(propose(&mut *batch, vec![(again, &tokens[0], max_tokens)])?);
    propose(&mut *batch, Vec::new())?;
    Ok(all)
}

fn propose(
    batch: &mut dyn DraftBatch,
    jobs: Vec<(SequenceId, &[TokenId], usize)>,
) -> Result<Vec<Vec<TokenId>>, String> {
    let mut jobs: Vec<DraftJob<'_>> =
        jobs.into_iter().map(|(id, tokens, max)| DraftJob::new(id, tokens, max)).collect();
    batch.propose(&mut jobs).map_err(|e| format!("propose: {e}"))?;
    let drafts: Vec<Vec<TokenId>> = jobs.into_iter().map(DraftJob::into_draft).collect();
    match drafts.iter().flatten().find(|&&token| token as usize >= VOCAB) {
        Some(token) => Err(format!("token {token} was proposed, the vocabulary has {VOCAB}")),
        None => Ok(drafts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::{DraftSession, Ngram, PerSequence};
    use crate::Result;

    #[test]
    fn built_in_drafters_conform() {
        for drafter in [Ngram::default(), Ngram::new(1, 1), Ngram::new(3, 8)] {
            check_drafter(&drafter).unwrap();
        }
        // They propose something there.
        assert!(run(&Ngram::default(), 16).unwrap().iter().any(|draft| draft.len() > 1));
    }

    #[derive(Clone, Debug)]
    struct Broken(&'static str);

    impl Drafter for Broken {
        fn name(&self) -> &str {
            if self.0 == "name" {
                ""
            } else {
                "broken"
            }
        }
        fn start(&self, _: &DraftContext) -> Result<Box<dyn DraftBatch>> {
            let mut this = self.clone();
            if this.0 == "address" {
                // Differs from batch to batch.
                static CALLS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
                let calls = CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                this.0 = if calls.is_multiple_of(2) { "address" } else { "ok" };
            }
            Ok(Box::new(PerSequence::new(move |_: &[TokenId]| this.clone())))
        }
    }

    impl DraftSession for Broken {
        fn propose(&mut self, _: &[TokenId], max_tokens: usize, draft: &mut Vec<TokenId>) -> Result<()> {
            match self.0 {
                "vocabulary" => draft.push(50),
                "address" => draft.push(1),
                "error" => return Err(crate::RequestError::EmptyPrompt.into()),
                _ => draft.extend(std::iter::repeat_n(2, max_tokens + 5)),
            }
            Ok(())
        }
    }

    #[test]
    fn broken_drafters_are_found_out() {
        check_drafter(&Broken("ok")).unwrap();
        for (kind, says) in [("name", "name"), ("vocabulary", "token 50"), ("address", "same"), ("error", "propose")] {
            let error = check_drafter(&Broken(kind)).unwrap_err();
            assert!(error.contains(says), "{kind}: {error}");
        }
    }
}
