//! Tests of the conformance suite: the built-in samplers pass, and each kind of broken one is caught by name.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use super::*;
use crate::sample::{argmax, Chain, Greedy, Stage};
use crate::Result as CrateResult;

#[test]
fn the_built_in_samplers_pass() {
    check_sampler(&Greedy, &[SamplingParams::new().with_temperature(0.0)]).unwrap();
    let warm = || SamplingParams::new().with_temperature(0.8);
    let everything = warm()
        .with_dynamic_temperature_range(0.3)
        .with_top_n_sigma(3.0)
        .with_top_k(50)
        .with_typical_p(0.95)
        .with_top_p(0.9)
        .with_min_p(0.02)
        .with_xtc_probability(0.5)
        .with_repetition_penalty(1.1)
        .with_frequency_penalty(0.2)
        .with_presence_penalty(0.1)
        .with_penalty_window(8)
        .with_dry_multiplier(0.8)
        .with_logit_bias(0, 1.0)
        .with_mirostat_tau(3.0);
    let configurations = [
        warm(),
        warm().with_top_k(40).with_top_p(0.95),
        warm().with_typical_p(0.5),
        warm().with_top_n_sigma(1.0).with_min_p(0.1),
        warm().with_mirostat_tau(2.0).with_mirostat_eta(0.5),
        SamplingParams::new().with_repetition_penalty(1.3),
        everything,
    ];
    check_sampler(&Chain::new(), &configurations).unwrap();
    let llama_cpp = [
        Stage::Penalties,
        Stage::Dry,
        Stage::TopNSigma,
        Stage::TopK,
        Stage::Typical,
        Stage::TopP,
        Stage::MinP,
        Stage::Xtc,
        Stage::Temperature,
    ];
    let short = Chain::with_order(llama_cpp).unwrap();
    check_sampler(&short, &[warm().with_top_k(40).with_top_p(0.95).with_xtc_probability(1.0)]).unwrap();
    check_sampler(&Chain::with_order([Stage::TopP]).unwrap(), &[SamplingParams::new().with_top_p(0.5)]).unwrap();
    check_sampler(&Chain::with_order([]).unwrap(), &[]).unwrap();
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Nameless,
    RefusesNothingSet,
    AcceptsAll,
    IgnoresTopK,
    WrongError,
    Impure,
    RemembersQuestions,
    SharedState,
    Halves,
    Masked,
    Twice,
    Appends,
    ForkForgets,
    ForkLies,
    ForkIsShared,
    ToleratesNan,
    ToleratesEmpty,
    PanicsOnOne,
    PanicsOnObserve,
}

/// Takes the best token and one more at random, in as many ways to be wrong as there are faults.
#[derive(Debug)]
struct Broken {
    fault: Fault,
    shared: Arc<AtomicU32>,
}

struct BrokenSession {
    fault: Fault,
    shared: Arc<AtomicU32>,
    /// State that is due: how many tokens were observed.
    observed: Arc<AtomicU32>,
    questions: u32,
}

impl Broken {
    fn with(fault: Fault) -> Broken {
        Broken { fault, shared: Arc::default() }
    }
}

impl Sampler for Broken {
    fn name(&self) -> &str {
        if self.fault == Fault::Nameless {
            ""
        } else {
            "broken"
        }
    }

    fn open(&self, params: &SamplingParams) -> CrateResult<Box<dyn SamplerSession>> {
        let fault = self.fault;
        match fault {
            Fault::RefusesNothingSet if params.top_k.is_none() => {
                params.allow_only(&[], self.name())?;
                return Err(crate::RequestError::EmptyPrompt.into());
            }
            Fault::AcceptsAll => {}
            Fault::IgnoresTopK => {
                params.validate()?;
                params.allow_only(&["top_k"], self.name())?;
            }
            Fault::WrongError => params.validate().map_err(|_| Error::Extension {
                room: "sample",
                name: "broken".to_string(),
                message: "no".to_string(),
            })?,
            _ => {
                params.validate()?;
                params.allow_only(&[], self.name())?;
            }
        }
        Ok(Box::new(BrokenSession { fault, shared: self.shared.clone(), observed: Arc::default(), questions: 0 }))
    }
}

impl SamplerSession for BrokenSession {
    fn distribution(
        &mut self,
        context: &SampleContext<'_>,
        logits: &mut [f32],
        out: &mut Distribution,
    ) -> CrateResult<()> {
        let fault = self.fault;
        if fault == Fault::PanicsOnOne && logits.len() == 1 {
            panic!("one token is too few");
        }
        let tolerates = match fault {
            Fault::ToleratesNan => logits.iter().any(|logit| logit.is_nan()),
            Fault::ToleratesEmpty => logits.is_empty(),
            _ => false,
        };
        if tolerates {
            out.clear();
            out.push(0, 1.0);
            return Ok(());
        }
        let (best, _) = argmax(logits)?;
        let allowed: Vec<usize> = (0..logits.len()).filter(|&at| logits[at] > f32::NEG_INFINITY).collect();
        let state = match fault {
            Fault::SharedState => self.shared.fetch_add(1, Ordering::Relaxed),
            Fault::Impure => {
                self.questions += 1;
                self.questions
            }
            Fault::RemembersQuestions => std::mem::replace(&mut self.questions, logits[0].to_bits()),
            _ => self.observed.load(Ordering::Relaxed),
        };
        let other = allowed[(state as usize + context.position) % allowed.len()] as TokenId;
        if fault != Fault::Appends {
            out.clear();
        }
        if other == best {
            out.push(best, if fault == Fault::Halves { 0.5 } else { 1.0 });
        } else {
            out.push(best, 0.75);
            out.push(other, 0.25);
        }
        if fault == Fault::Masked {
            if let Some(masked) = logits.iter().position(|&logit| logit == f32::NEG_INFINITY) {
                out.clear();
                out.push(masked as TokenId, 1.0);
            }
        }
        if fault == Fault::Twice {
            out.clear();
            out.push(best, 0.5);
            out.push(best, 0.5);
        }
        Ok(())
    }

    fn observe(&mut self, _: TokenId) {
        assert!(self.fault != Fault::PanicsOnObserve, "observed");
        self.observed.fetch_add(1, Ordering::Relaxed);
    }

    fn can_fork(&self) -> bool {
        true
    }

    fn fork(&self) -> Option<Box<dyn SamplerSession>> {
        let observed = match self.fault {
            Fault::ForkLies => return None,
            Fault::ForkForgets => Arc::default(),
            Fault::ForkIsShared => self.observed.clone(),
            _ => Arc::new(AtomicU32::new(self.observed.load(Ordering::Relaxed))),
        };
        let BrokenSession { fault, questions, .. } = *self;
        Some(Box::new(BrokenSession { fault, shared: self.shared.clone(), observed, questions }))
    }
}

#[test]
fn broken_samplers_are_caught() {
    check_sampler(&Broken::with(Fault::None), &[]).unwrap();
    for (fault, word) in [
        (Fault::Nameless, "no name"),
        (Fault::RefusesNothingSet, "refuses what it must accept"),
        (Fault::AcceptsAll, "out of range"),
        (Fault::IgnoresTopK, "`top_k`, but it changes nothing"),
        (Fault::WrongError, "RequestError"),
        (Fault::Impure, "asked twice"),
        (Fault::RemembersQuestions, "asked twice"),
        (Fault::SharedState, "second session"),
        (Fault::Halves, "sum to 0.5"),
        (Fault::Masked, "forbidden token"),
        (Fault::Twice, "stands twice"),
        (Fault::Appends, "cleared first"),
        (Fault::ForkForgets, "of a fork made before"),
        (Fault::ForkLies, "`can_fork` is true"),
        (Fault::ForkIsShared, "after a fork was made"),
        (Fault::ToleratesNan, "NaN logit at the start: gives a distribution"),
        (Fault::ToleratesEmpty, "no logits at all"),
        (Fault::PanicsOnOne, "panicked: one token is too few"),
        (Fault::PanicsOnObserve, "`observe` panicked: observed"),
    ] {
        let said = check_sampler(&Broken::with(fault), &[]).unwrap_err();
        assert!(said.contains(word), "{fault:?}: {said}");
    }
    // A configuration that the sampler refuses is told with its parameters.
    let said = check_sampler(&Greedy, &[SamplingParams::new().with_top_k(3)]).unwrap_err();
    assert!(said.contains("top_k") && said.contains("refuses what it must accept"), "{said}");
}

/// State that sessions share, advanced when a token is observed: asking twice does not show it.
#[derive(Debug)]
struct Gossip(Arc<AtomicU32>);

impl Sampler for Gossip {
    fn name(&self) -> &str {
        "gossip"
    }

    fn open(&self, params: &SamplingParams) -> CrateResult<Box<dyn SamplerSession>> {
        params.validate()?;
        params.allow_only(&[], self.name())?;
        let (shared, observed) = (self.0.clone(), self.0.clone());
        Ok(Box::new(BrokenSession { fault: Fault::None, shared, observed, questions: 0 }))
    }
}

#[test]
fn sessions_that_tell_each_other_are_caught() {
    let said = check_sampler(&Gossip(Arc::default()), &[]).unwrap_err();
    assert!(said.contains("second session"), "{said}");
}
