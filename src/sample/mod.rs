//! From logits to the next token: samplers turn logits into a distribution, and keyed noise draws from it.
//!
//! After the model and the schedule in the flow. Knows logits and token ids; must not know models, text or requests.
//!
//! Order of one step: the engine forbids tokens by setting logits to −∞ → [`SamplerSession::distribution`] → [`draw`] →
//! [`SamplerSession::observe`]. Log-probabilities are read from the untouched logits by [`log_probs`].

mod chain;
mod distribution;
mod greedy;
mod log_probs;
mod logits;
mod noise;
mod params;
mod penalty;

use std::fmt::Debug;

pub use chain::Chain;
pub use distribution::{Candidate, Distribution};
pub use greedy::Greedy;
pub use log_probs::{log_probs, LogProbs, TokenLogProb};
pub use noise::{draw, NoiseKey};
pub use params::SamplingParams;

use crate::{Result, TokenId};

/// A way to choose tokens: immutable and shared, it opens one session per answer.
///
/// # Contract
/// A session's distribution is a function of the logits, the context and the tokens that it observed; it draws no
/// random numbers of its own, for the engine draws. Tokens with a logit of −∞ are forbidden and never get probability.
///
/// # Provided implementations
/// [`Greedy`] and [`Chain`].
///
/// # Implementing your own
/// A sampler that gives all allowed tokens the same chance:
///
/// ```
/// use candlewick::sample::{Distribution, SampleContext, Sampler, SamplerSession, SamplingParams};
/// use candlewick::{Result, TokenId};
///
/// #[derive(Clone, Debug)]
/// struct Uniform;
///
/// impl Sampler for Uniform {
///     fn name(&self) -> &str {
///         "uniform"
///     }
///     fn open(&self, params: &SamplingParams) -> Result<Box<dyn SamplerSession>> {
///         params.allow_only(&[], self.name())?;
///         Ok(Box::new(Uniform))
///     }
/// }
///
/// impl SamplerSession for Uniform {
///     fn distribution(&mut self, _: &SampleContext<'_>, logits: &mut [f32], out: &mut Distribution) -> Result<()> {
///         let allowed = logits.iter().filter(|&&logit| logit > f32::NEG_INFINITY).count();
///         out.clear();
///         for (token, _) in logits.iter().enumerate().filter(|(_, &logit)| logit > f32::NEG_INFINITY) {
///             out.push(token as TokenId, 1.0 / allowed as f32);
///         }
///         Ok(())
///     }
///     fn observe(&mut self, _: TokenId) {}
///     fn can_fork(&self) -> bool {
///         true
///     }
///     fn fork(&self) -> Option<Box<dyn SamplerSession>> {
///         Some(Box::new(self.clone()))
///     }
/// }
///
/// let mut session = Uniform.open(&SamplingParams::new())?;
/// let mut out = Distribution::new();
/// let context = SampleContext { prompt: &[1], generated: &[], position: 1 };
/// session.distribution(&context, &mut [0.0, f32::NEG_INFINITY, 3.0, 1.0], &mut out)?;
/// out.validate("uniform", 4)?;
/// assert_eq!(out.candidates().len(), 3);
/// # Ok::<(), candlewick::Error>(())
/// ```
pub trait Sampler: Debug + Send + Sync + 'static {
    /// Name for error messages.
    fn name(&self) -> &str;

    /// Opens the state of one answer. Called at submit, before any token is computed.
    ///
    /// # Errors
    /// A parameter out of its range ([`SamplingParams::validate`]) or one that this sampler does not use
    /// ([`SamplingParams::allow_only`]); never a clamp.
    fn open(&self, params: &SamplingParams) -> Result<Box<dyn SamplerSession>>;
}

/// Private state of one answer.
pub trait SamplerSession: Send {
    /// Writes the distribution of the next token into `out`, replacing what is there.
    ///
    /// `logits` has one entry per token of the vocabulary, −∞ for forbidden ones, and may be overwritten. It does not
    /// advance the state: called twice with the same input it gives the same result.
    ///
    /// # Errors
    /// Logits that are NaN or +∞, or none that is allowed. The error ends the request only.
    fn distribution(&mut self, context: &SampleContext<'_>, logits: &mut [f32], out: &mut Distribution) -> Result<()>;

    /// Takes note of the token that was drawn at the position of the last `distribution`.
    fn observe(&mut self, token: TokenId);

    /// Whether [`Self::fork`] gives a copy; a sampler that cannot excludes several answers per request and
    /// drafters that draw ahead.
    fn can_fork(&self) -> bool;

    /// An independent copy of the state; `None` exactly if `can_fork` is false.
    fn fork(&self) -> Option<Box<dyn SamplerSession>>;
}

/// What is known when a token is chosen.
#[derive(Clone, Copy, Debug)]
pub struct SampleContext<'a> {
    /// The prompt's tokens.
    pub prompt: &'a [TokenId],
    /// Tokens of the answer so far, under drafting with the accepted drafts before this position.
    pub generated: &'a [TokenId],
    /// Absolute position of the token to choose.
    pub position: usize,
}
