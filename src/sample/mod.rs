//! From logits to the next token: samplers turn logits into a distribution, and keyed noise draws from it.
//!
//! After the model and the schedule in the flow. Knows logits and token ids; must not know models, text or requests.
//!
//! Order of one step: the engine forbids tokens by setting logits to −∞ → [`SamplerSession::distribution`] → [`draw`] →
//! [`SamplerSession::observe`]. Log-probabilities are read from the untouched logits by [`log_probs()`], those of the
//! distribution by [`processed_log_probs`].

mod breakers;
mod candidates;
mod chain;
mod distribution;
mod dry;
#[cfg(test)]
mod fixtures;
mod greedy;
mod log_probs;
mod logits;
mod noise;
mod order;
mod params;
mod penalty;
mod validate;

use std::fmt::Debug;

pub use chain::Chain;
pub use distribution::{Candidate, Distribution};
pub use greedy::Greedy;
pub use log_probs::{log_probs, processed_log_probs, LogProbs, LogprobsMode, TokenLogProb};
pub use logits::argmax;
pub use noise::{draw, NoiseKey};
pub use order::Stage;
pub use params::SamplingParams;

use crate::{Result, TokenId};

/// A way to choose tokens: immutable and shared, it opens one session per answer.
///
/// # Contract
/// * A session's distribution is a function of the logits, the context and the tokens that it observed. It keeps no
///   random numbers of its own: the engine draws, and a sampler that decides by chance takes
///   [`NoiseKey::decision`] of the context's noise.
/// * Tokens with a logit of −∞ are forbidden and never get probability.
/// * Parameters of the request are used or refused, and nothing set is always accepted.
/// * Sessions do not influence each other.
///
/// # When it is called
/// [`Sampler::open`] once per answer, at submit. Then per token, in order: [`SamplerSession::distribution`], the
/// engine's draw, [`SamplerSession::observe`]. A drafter may have a fork of the session draw ahead; the session itself
/// goes through accepted tokens only and is never rolled back.
///
/// # Provided implementations
/// [`Greedy`] and [`Chain`].
///
/// # Implementing your own
/// A sampler that gives all allowed tokens the same chance:
///
/// ```
/// use candlewick::sample::{argmax, Distribution, SampleContext, Sampler, SamplerSession, SamplingParams};
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
///         params.validate()?;
///         params.allow_only(&[], self.name())?;
///         Ok(Box::new(Uniform))
///     }
/// }
///
/// impl SamplerSession for Uniform {
///     fn distribution(&mut self, _: &SampleContext<'_>, logits: &mut [f32], out: &mut Distribution) -> Result<()> {
///         argmax(logits)?; // its errors are those that are due here
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
/// candlewick::testing::check_sampler(&Uniform, &[SamplingParams::new()])?;
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// Those of [`Sampler::open`] refuse the request at submit; those of [`SamplerSession::distribution`], and panics, end
/// the request they happen in and no other.
pub trait Sampler: Debug + Send + Sync + 'static {
    /// Name for error messages.
    fn name(&self) -> &str;

    /// Opens the state of one answer. Called at submit, before any token is computed. DRY's breakers are token ids by
    /// then ([`SamplingParams::resolve_dry_breakers`]).
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
    /// Logits that are NaN or +∞, or none that is allowed: what [`argmax`] says. The error ends the request only.
    fn distribution(&mut self, context: &SampleContext<'_>, logits: &mut [f32], out: &mut Distribution) -> Result<()>;

    /// Takes note of the token that was chosen at the position of the last `distribution`. It need not be one of its
    /// candidates: a constraint may force another.
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
    /// Names the noise of this position, which the engine draws with; for [`NoiseKey::decision`].
    pub noise: NoiseKey,
}
