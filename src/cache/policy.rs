//! What a cache policy says about itself, and whether that fits the model. Must not know tables or blocks in use.

use super::CachePolicy;
use crate::BuildError;

/// What a query sees of a layer, by position alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Visibility {
    /// Every position up to its own that is not dropped.
    All,
    /// The first `sinks` positions and the last `size`, its own included.
    ///
    /// Keys are never rewritten. From position `sinks + size` on, a query scores the sinks as if it stood at position
    /// `sinks + size - 1`: they stay as far away as when the window was first full. Applies to layers without a window
    /// of their own, and to those whose own window is larger than `size + sinks`; a smaller one stays as it is,
    /// without sinks, since its layer has learned to do without the beginning.
    Window {
        /// The last positions that a query sees, its own included; at least 1.
        size: usize,
        /// The first positions, which every query sees.
        sinks: usize,
    },
}

/// At which positions a policy chooses what to drop. The engine cuts prompts and drafts there, so that a choice never
/// depends on how the work was divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acts {
    /// It drops nothing beside what leaves its window.
    Never,
    /// Once, when the whole prompt is stored.
    AtPromptEnd,
    /// Whenever the number of stored positions is a multiple of this number, which is at least 1.
    Every(usize),
}

/// A number of kept positions of one cache group, and into how many stretches of consecutive positions they fall.
/// Memory comes in blocks of 32 positions, so scattered positions cost more than those in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Positions at most.
    pub positions: usize,
    /// Stretches at most; at least 1.
    pub runs: usize,
}

/// What a policy keeps at most, right after it has acted or freed what left its window. `None`: everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheBounds {
    /// While the prompt is being stored.
    pub prefill: Option<Kept>,
    /// From the end of the prompt on.
    pub decode: Option<Kept>,
}

impl CacheBounds {
    /// No bound.
    pub const NONE: CacheBounds = CacheBounds { prefill: None, decode: None };

    /// The same bound all the time.
    pub fn always(positions: usize, runs: usize) -> CacheBounds {
        let kept = Some(Kept { positions, runs });
        CacheBounds { prefill: kept, decode: kept }
    }
}

/// A policy's answers, asked once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) visibility: Visibility,
    pub(crate) acts: Acts,
    pub(crate) bounds: CacheBounds,
}

impl Facts {
    /// Asks a policy, and checks its answers against each other and against the model's context.
    pub(crate) fn of(policy: &dyn CachePolicy, context: usize) -> Result<Facts, BuildError> {
        let facts = Facts { visibility: policy.visibility(), acts: policy.acts(), bounds: policy.bounds() };
        let invalid = |reason: &str| {
            Err(BuildError::InvalidCachePolicy { policy: policy.name().to_string(), reason: reason.to_string() })
        };
        let Facts { acts, bounds: CacheBounds { prefill, decode }, .. } = facts;
        let mut kept = 0;
        if let Visibility::Window { size, sinks } = facts.visibility {
            if size == 0 {
                return invalid("its window holds no position; give it a size of at least 1");
            }
            kept = size.saturating_add(sinks);
            if [prefill, decode].iter().any(|bound| bound.is_none_or(|bound| bound.positions < kept)) {
                return invalid("it must state bounds that hold its whole window and its sinks");
            }
        } else {
            match acts {
                Acts::Every(_) => {}
                Acts::AtPromptEnd if prefill.is_none() => {}
                Acts::Never if prefill.is_none() && decode.is_none() => {}
                _ => return invalid("it states a bound for a time in which it drops nothing; state none, or act"),
            }
        }
        if acts == Acts::Every(0) {
            return invalid("it acts every 0 positions; give at least 1");
        }
        for bound in [prefill, decode].into_iter().flatten() {
            if bound.runs == 0 {
                return invalid("it states a bound of no stretch of positions; state at least 1");
            }
            kept = kept.max(bound.positions);
        }
        if kept > context {
            return Err(BuildError::CachePolicyContext { policy: policy.name().to_string(), kept, context });
        }
        Ok(facts)
    }

    /// Whether what is kept stops growing, so that a sequence may outgrow the model's context.
    pub(crate) fn is_bounded(&self) -> bool {
        match (self.visibility, self.acts) {
            (Visibility::Window { .. }, _) => true,
            (Visibility::All, Acts::Every(_)) => self.bounds.prefill.is_some() && self.bounds.decode.is_some(),
            _ => false,
        }
    }

    /// The next position after `len` at which the policy acts.
    pub(crate) fn next_action(&self, len: usize, prompt_len: usize) -> Option<usize> {
        match self.acts {
            Acts::Never => None,
            Acts::AtPromptEnd => (len < prompt_len).then_some(prompt_len),
            Acts::Every(interval) => (len / interval + 1).checked_mul(interval),
        }
    }

    /// Whether the policy acts when `len` positions are stored.
    pub(crate) fn acts_at(&self, len: usize, prompt_len: usize) -> bool {
        len > 0 && self.next_action(len - 1, prompt_len) == Some(len)
    }

    /// The bound that holds after an action at `position`.
    pub(crate) fn bound(&self, position: usize, prompt_len: usize) -> Option<Kept> {
        if position < prompt_len {
            self.bounds.prefill
        } else {
            self.bounds.decode
        }
    }
}
