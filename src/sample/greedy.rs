//! The sampler that always takes the most probable token.

use crate::sample::{logits::argmax, Distribution, SampleContext, Sampler, SamplerSession, SamplingParams};
use crate::{Result, TokenId};

/// Takes the token with the highest logit, ties to the lower id. One pass over the logits, no state.
///
/// Uses no parameters; a temperature of 0, which means the same, is accepted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Greedy;

impl Sampler for Greedy {
    fn name(&self) -> &str {
        "greedy"
    }

    fn open(&self, params: &SamplingParams) -> Result<Box<dyn SamplerSession>> {
        params.validate()?;
        let used: &[&str] = if params.temperature == Some(0.0) { &["temperature"] } else { &[] };
        params.allow_only(used, self.name())?;
        Ok(Box::new(Greedy))
    }
}

impl SamplerSession for Greedy {
    fn distribution(&mut self, _: &SampleContext<'_>, logits: &mut [f32], out: &mut Distribution) -> Result<()> {
        let (token, _) = argmax(logits)?;
        out.clear();
        out.push(token, 1.0);
        Ok(())
    }

    fn observe(&mut self, _: TokenId) {}

    fn can_fork(&self) -> bool {
        true
    }

    fn fork(&self) -> Option<Box<dyn SamplerSession>> {
        Some(Box::new(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RequestError;
    use crate::Error;

    #[test]
    fn refuses_parameters_it_does_not_use() {
        let refused = |params: SamplingParams| match Greedy.open(&params).map(|_| ()) {
            Err(Error::Request(RequestError::UnusedParameter { name, sampler })) => {
                assert_eq!(sampler, "greedy");
                name
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(SamplingParams::new().with_temperature(0.5)), "temperature");
        assert_eq!(refused(SamplingParams::new().with_temperature(0.0).with_top_k(5)), "top_k");
        assert!(Greedy.open(&SamplingParams::new().with_temperature(0.0)).is_ok());
        assert!(Greedy.open(&SamplingParams::new()).is_ok());
    }

    #[test]
    fn takes_the_highest_and_on_ties_the_lower_id() {
        let mut session = Greedy.open(&SamplingParams::new()).unwrap();
        let mut out = Distribution::new();
        let noise = crate::sample::NoiseKey { seed: 0, choice: 0, position: 0 };
        let context = SampleContext { prompt: &[], generated: &[], position: 0, noise };
        session.distribution(&context, &mut [0.5, 2.0, -1.0, 2.0], &mut out).unwrap();
        assert_eq!(out.candidates().len(), 1);
        assert_eq!(out.probability(1), 1.0);
        assert!(session.fork().is_some() && session.can_fork());
    }
}
