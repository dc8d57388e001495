//! The default sampler: penalties and filters in one documented order, as far as the request sets them.

use crate::sample::logits::argmax;
use crate::sample::penalty::RepetitionPenalty;
use crate::sample::{Distribution, SampleContext, Sampler, SamplerSession, SamplingParams};
use crate::{Result, TokenId};

/// Reads every parameter of the request, in this order: repetition penalty → temperature → top-k → top-p → min-p.
///
/// * A temperature of 0, the default, takes the token with the highest logit after penalties, ties to the lower id; the
///   filters keep that token whatever they are and so change nothing.
/// * Each filter sees the renormalized result of the one before it. The most probable token survives all of them.
/// * Equal logits rank by the lower id. Probabilities are f32, their sums f64.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chain;

impl Sampler for Chain {
    fn name(&self) -> &str {
        "chain"
    }

    fn open(&self, params: &SamplingParams) -> Result<Box<dyn SamplerSession>> {
        params.validate()?;
        let penalty = params.repetition_penalty.filter(|&penalty| penalty != 1.0);
        Ok(Box::new(ChainSession {
            penalty: penalty.map(|penalty| RepetitionPenalty::new(penalty, params.repetition_window)),
            temperature: params.temperature.unwrap_or(0.0),
            top_k: params.top_k.filter(|&k| k > 0).map(|k| usize::try_from(k).unwrap_or(usize::MAX)),
            top_p: params.top_p.filter(|&p| p < 1.0),
            min_p: params.min_p.filter(|&p| p > 0.0),
            kept: Vec::new(),
        }))
    }
}

#[derive(Clone)]
struct ChainSession {
    penalty: Option<RepetitionPenalty>,
    temperature: f32,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    /// Memory of the filters, reused from step to step.
    kept: Vec<Weighted>,
}

/// A token with its logit at first, with its probability relative to the best token (at most 1) later.
#[derive(Clone, Copy)]
struct Weighted {
    weight: f32,
    token: TokenId,
}

impl SamplerSession for ChainSession {
    fn distribution(&mut self, context: &SampleContext<'_>, logits: &mut [f32], out: &mut Distribution) -> Result<()> {
        if let Some(penalty) = &mut self.penalty {
            penalty.apply(context, logits);
        }
        let (best, maximum) = argmax(logits)?;
        out.clear();
        if self.temperature == 0.0 {
            out.push(best, 1.0);
            return Ok(());
        }
        let temperature = self.temperature;
        let weight_of = |logit: f32| ((logit - maximum) / temperature).exp();
        let kept = &mut self.kept;
        kept.clear();
        // Probability mass, in units of the best token's, that top-p takes its share of.
        let mass = match self.top_k.filter(|&k| k < logits.len()) {
            Some(k) => {
                keep_highest(logits, k, kept);
                kept.iter_mut().for_each(|entry| entry.weight = weight_of(entry.weight));
                kept.sort_unstable_by(rank);
                mass(kept)
            }
            None => {
                // Top-p and min-p both keep the head of the ranking: what min-p drops need not be ranked for top-p.
                let floor = self.min_p.unwrap_or(0.0);
                let mut mass = 0.0f64;
                for (token, &logit) in logits.iter().enumerate() {
                    let weight = weight_of(logit);
                    mass += f64::from(weight);
                    if weight >= floor && weight > 0.0 {
                        kept.push(Weighted { weight, token: token as TokenId });
                    }
                }
                mass
            }
        };
        if let Some(p) = self.top_p {
            keep_mass(kept, f64::from(p) * mass);
        }
        if let Some(floor) = self.min_p {
            // NaN is excluded and the best token has weight 1 ≥ floor.
            kept.retain(|entry| entry.weight >= floor);
        }
        kept.retain(|entry| entry.weight > 0.0);
        let sum = self::mass(kept);
        kept.iter().for_each(|entry| out.push(entry.token, (f64::from(entry.weight) / sum) as f32));
        Ok(())
    }

    fn observe(&mut self, _: TokenId) {}

    fn can_fork(&self) -> bool {
        true
    }

    fn fork(&self) -> Option<Box<dyn SamplerSession>> {
        Some(Box::new(self.clone()))
    }
}

fn mass(kept: &[Weighted]) -> f64 {
    kept.iter().map(|entry| f64::from(entry.weight)).sum()
}

/// Best first, ties to the lower id. Weights are no NaN.
fn rank(a: &Weighted, b: &Weighted) -> std::cmp::Ordering {
    // Not `total_cmp`: the two zeros are equal logits.
    b.weight.partial_cmp(&a.weight).unwrap_or(std::cmp::Ordering::Equal).then(a.token.cmp(&b.token))
}

/// The k highest logits (0 < k < len), in any order; ties at the border to the lower id. Linear.
fn keep_highest(logits: &[f32], k: usize, kept: &mut Vec<Weighted>) {
    // Collects whatever beats the border, and raises the border whenever there are twice as many as needed.
    let capacity = k.saturating_mul(2).max(1024);
    let mut border = f32::NEG_INFINITY;
    for (token, &weight) in logits.iter().enumerate() {
        // Ids ascend, so an equal logit ranks after all k that are at or above the border.
        if weight > border {
            kept.push(Weighted { weight, token: token as TokenId });
            if kept.len() >= capacity {
                kept.select_nth_unstable_by(k - 1, rank);
                kept.truncate(k);
                border = kept[k - 1].weight;
            }
        }
    }
    if kept.len() > k {
        kept.select_nth_unstable_by(k - 1, rank);
        kept.truncate(k);
    }
}

/// Keeps the shortest head of the ranking whose mass reaches `target`, at least one token, and leaves it ranked.
///
/// The ranking is made piece by piece, each four times as long as the one before: a head that ends early never pays
/// for sorting the rest.
fn keep_mass(kept: &mut Vec<Weighted>, target: f64) {
    let mut ranked = 0;
    let mut piece = 256;
    let mut reached = 0.0f64;
    while ranked < kept.len() {
        let rest = &mut kept[ranked..];
        let length = piece.min(rest.len());
        if length < rest.len() {
            rest.select_nth_unstable_by(length - 1, rank);
        }
        rest[..length].sort_unstable_by(rank);
        for (index, entry) in rest[..length].iter().enumerate() {
            reached += f64::from(entry.weight);
            if reached >= target {
                kept.truncate(ranked + index + 1);
                return;
            }
        }
        ranked += length;
        piece = piece.saturating_mul(4);
    }
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
