//! The default sampler: penalties and filters in one documented order, as far as the request sets them.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::sample::candidates::Candidates;
use crate::sample::dry::Dry;
use crate::sample::logits::argmax;
use crate::sample::penalty::{add_bias, Penalties};
use crate::sample::{Candidate, Distribution, SampleContext, Sampler, SamplerSession, SamplingParams, Stage};
use crate::TokenId;

/// Reads every parameter of the request, by default in this order: penalties → DRY → bias → temperature → top-n-sigma
/// → top-k → typical → top-p → min-p → XTC → mirostat. [`Chain::with_order`] makes another.
///
/// * A temperature of 0, the default, takes the token with the highest logit of those that are left, ties to the lower
///   id; filters behind it have nothing to choose and so change nothing.
/// * Each filter sees the renormalized result of the one before it, and leaves at least one token. The most probable
///   token survives all of them but typical and XTC, whose purpose is to drop it at times.
/// * Equal logits rank by the lower id. Probabilities are f32, their sums f64.
/// * Mirostat starts at twice `mirostat_tau`. It learns from a token only if that was among the candidates.
#[derive(Clone, Debug)]
pub struct Chain {
    order: Vec<Stage>,
}

impl Chain {
    /// All stages in the default order.
    pub fn new() -> Self {
        Chain { order: Stage::DEFAULT_ORDER.to_vec() }
    }

    /// These stages in this order. Parameters of stages that are left out are refused; without
    /// [`Stage::Temperature`], logits are taken as they are.
    ///
    /// ```
    /// use candlewick::sample::{Chain, Stage};
    ///
    /// // The temperature last: filters then choose by the model's own probabilities.
    /// let chain = Chain::with_order([Stage::Penalties, Stage::TopK, Stage::TopP, Stage::MinP, Stage::Temperature])?;
    /// assert_eq!(chain.order().len(), 5);
    /// assert!(Chain::with_order([Stage::TopK, Stage::Penalties]).is_err());
    /// # Ok::<(), candlewick::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`RequestError::InvalidParameter`](crate::RequestError) for a stage that stands twice, penalties, DRY or bias
    /// behind another stage than these, and mirostat before another stage.
    pub fn with_order(order: impl Into<Vec<Stage>>) -> Result<Self> {
        let order = order.into();
        Stage::check_order(&order)?;
        Ok(Chain { order })
    }

    /// The stages in their order.
    pub fn order(&self) -> &[Stage] {
        &self.order
    }
}

impl Default for Chain {
    fn default() -> Self {
        Chain::new()
    }
}

impl Sampler for Chain {
    fn name(&self) -> &str {
        "chain"
    }

    fn open(&self, params: &SamplingParams) -> Result<Box<dyn SamplerSession>> {
        params.validate()?;
        let used: Vec<&str> = self.order.iter().flat_map(|stage| stage.parameters()).copied().collect();
        params.allow_only(&used, self.name())?;
        let mut session =
            ChainSession { on_row: Vec::new(), filters: Vec::new(), mirostat: None, candidates: Candidates::default() };
        self.order.iter().try_for_each(|stage| session.add(*stage, params))?;
        Ok(Box::new(session))
    }
}

/// What changes single logits.
#[derive(Clone)]
enum OnRow {
    Penalties(Penalties),
    Dry(Box<Dry>),
    Bias(BTreeMap<TokenId, f32>),
}

/// What drops or reweighs tokens.
#[derive(Clone, Copy)]
enum Filter {
    /// Also a temperature of 0.
    Best,
    Temperature(f32),
    DynamicTemperature {
        temperature: f32,
        range: f32,
        exponent: f32,
    },
    TopNSigma(f32),
    TopK(usize),
    Typical(f32),
    TopP(f32),
    MinP(f32),
    Xtc {
        probability: f32,
        threshold: f32,
    },
}

/// Mirostat's state.
#[derive(Clone)]
struct Mirostat {
    tau: f64,
    eta: f64,
    /// The surprise that is allowed now, in bits.
    bound: f64,
    /// The candidates of the last distribution, to know how surprising the drawn one was.
    last: Vec<Candidate>,
}

struct ChainSession {
    on_row: Vec<OnRow>,
    filters: Vec<Filter>,
    mirostat: Option<Mirostat>,
    /// Memory of the filters, reused from step to step.
    candidates: Candidates,
}

impl ChainSession {
    /// Adds a stage, if the request sets it to anything but its neutral value.
    fn add(&mut self, stage: Stage, params: &SamplingParams) -> Result<()> {
        match stage {
            Stage::Penalties => self.on_row.extend(Penalties::new(params).map(OnRow::Penalties)),
            Stage::Dry => self.on_row.extend(Dry::new(params)?.map(|dry| OnRow::Dry(Box::new(dry)))),
            Stage::Bias => self.on_row.extend(params.logit_bias.clone().map(OnRow::Bias)),
            Stage::Mirostat => {
                self.mirostat = params.mirostat_tau.map(|tau| Mirostat {
                    tau: f64::from(tau),
                    eta: f64::from(params.mirostat_eta.unwrap_or(0.1)),
                    bound: 2.0 * f64::from(tau),
                    last: Vec::new(),
                });
            }
            _ => self.filters.extend(filter(stage, params)),
        }
        Ok(())
    }
}

fn filter(stage: Stage, params: &SamplingParams) -> Option<Filter> {
    match stage {
        Stage::Temperature => {
            let temperature = params.temperature.unwrap_or(0.0);
            let range = params.dynamic_temperature_range.unwrap_or(0.0);
            let exponent = params.dynamic_temperature_exponent.unwrap_or(1.0);
            Some(if temperature == 0.0 {
                Filter::Best
            } else if range > 0.0 {
                Filter::DynamicTemperature { temperature, range, exponent }
            } else {
                Filter::Temperature(temperature)
            })
        }
        Stage::TopNSigma => params.top_n_sigma.map(Filter::TopNSigma),
        Stage::TopK => {
            let k = params.top_k.filter(|&k| k > 0)?;
            Some(Filter::TopK(usize::try_from(k).unwrap_or(usize::MAX)))
        }
        Stage::Typical => params.typical_p.filter(|&p| p < 1.0).map(Filter::Typical),
        Stage::TopP => params.top_p.filter(|&p| p < 1.0).map(Filter::TopP),
        Stage::MinP => params.min_p.filter(|&p| p > 0.0).map(Filter::MinP),
        Stage::Xtc => {
            let probability = params.xtc_probability.filter(|&p| p > 0.0)?;
            Some(Filter::Xtc { probability, threshold: params.xtc_threshold.unwrap_or(0.1) })
        }
        Stage::Penalties | Stage::Dry | Stage::Bias | Stage::Mirostat => None,
    }
}

impl SamplerSession for ChainSession {
    fn distribution(&mut self, context: &SampleContext<'_>, logits: &mut [f32], out: &mut Distribution) -> Result<()> {
        for stage in &mut self.on_row {
            match stage {
                OnRow::Penalties(penalties) => penalties.apply(context, logits),
                OnRow::Dry(dry) => dry.apply(context, logits),
                OnRow::Bias(bias) => add_bias(bias, logits)?,
            }
        }
        let candidates = &mut self.candidates;
        candidates.begin(argmax(logits)?);
        for filter in &self.filters {
            match *filter {
                Filter::Best => candidates.keep_best(),
                Filter::Temperature(temperature) => candidates.temperature(temperature),
                Filter::DynamicTemperature { temperature, range, exponent } => {
                    candidates.dynamic_temperature(logits, temperature, range, exponent);
                }
                Filter::TopNSigma(n) => candidates.top_n_sigma(logits, n),
                Filter::TopK(k) => candidates.top_k(logits, k),
                Filter::Typical(p) => candidates.typical(logits, p),
                Filter::TopP(p) => candidates.top_p(logits, p),
                Filter::MinP(p) => candidates.min_p(logits, p),
                Filter::Xtc { probability, threshold } => {
                    if context.noise.decision(0) < f64::from(probability) {
                        candidates.exclude_top(logits, threshold);
                    }
                }
            }
        }
        if let Some(mirostat) = &mut self.mirostat {
            candidates.keep_surprise(logits, mirostat.bound);
        }
        candidates.finish(logits, out);
        if let Some(mirostat) = &mut self.mirostat {
            mirostat.last.clear();
            mirostat.last.extend_from_slice(out.candidates());
        }
        Ok(())
    }

    fn observe(&mut self, token: TokenId) {
        let Some(Mirostat { tau, eta, bound, last }) = &mut self.mirostat else { return };
        if let Some(drawn) = last.iter().find(|candidate| candidate.token == token && candidate.probability > 0.0) {
            let surprise = -f64::from(drawn.probability).log2();
            *bound -= *eta * (surprise - *tau);
        }
    }

    fn can_fork(&self) -> bool {
        true
    }

    fn fork(&self) -> Option<Box<dyn SamplerSession>> {
        Some(Box::new(ChainSession {
            on_row: self.on_row.clone(),
            filters: self.filters.clone(),
            mirostat: self.mirostat.clone(),
            // The next distribution fills it anew.
            candidates: Candidates::default(),
        }))
    }
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
