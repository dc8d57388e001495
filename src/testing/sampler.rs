//! The conformance suite of samplers: what the engine, drafters and hosts rely on, checked on any implementation.
//!
//! Runs a sampler on made-up logits, from vocabularies of one token to a quarter of a million. Knows nothing of models
//! or of the engine; needs no luck, for all its inputs are fixed.

use std::collections::HashSet;
use std::panic::{catch_unwind, AssertUnwindSafe};

use super::probes::{out_of_range, probes};
use super::splitmix64;
use crate::sample::{draw, Candidate, Distribution, NoiseKey, SampleContext, Sampler, SamplerSession, SamplingParams};
use crate::{Error, TokenId};

/// Sizes of vocabularies, and for how many tokens each is tried.
const VOCABULARIES: [(usize, usize); 5] = [(1, 4), (2, 6), (5, 8), (300, 12), (262_144, 2)];

/// Checks that a sampler keeps the contract of [`Sampler`], under each of `configurations` (parameters that it must
/// accept) and with nothing set.
///
/// * Distributions are valid, and forbidden tokens have no probability, in small and large vocabularies, with flat,
///   peaked, tied and huge logits and with all tokens forbidden but one.
/// * The same input gives the same distribution, whatever was asked in between, and whatever `out` held before.
/// * A second session repeats the first, also when the two alternate with a third; so does a fork, which leaves the
///   original alone; `can_fork` tells the truth.
/// * Logits that are NaN or +∞, rows with nothing allowed and empty rows are errors.
/// * Every parameter out of its range, or without the one that it belongs to, is refused; every other is refused as
///   well or changes some distribution.
/// * Nothing panics.
///
/// # Errors
/// What is wrong first, in words.
pub fn check_sampler(sampler: &dyn Sampler, configurations: &[SamplingParams]) -> Result<(), String> {
    let name = sampler.name();
    if name.is_empty() {
        return Err("the sampler has no name; errors name it".to_string());
    }
    let nothing = SamplingParams::new();
    for params in std::iter::once(&nothing).chain(configurations) {
        let subject = Subject { sampler, params };
        subject.check().map_err(|fault| format!("sampler `{name}` with {}: {fault}", told(params)))?;
    }
    check_parameters(sampler).map_err(|fault| format!("sampler `{name}`: {fault}"))
}

/// The parameters that are set.
fn told(params: &SamplingParams) -> String {
    let set: Vec<_> = params.names().collect();
    if set.is_empty() {
        "nothing set".to_string()
    } else {
        format!("{} set ({params:?})", set.join(", "))
    }
}

/// Runs a sampler's code; a panic is a fault.
fn guarded<T>(what: &str, f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
        format!("{what} panicked: {}", text.unwrap_or_default())
    })
}

/// A sampler under one configuration.
struct Subject<'a> {
    sampler: &'a dyn Sampler,
    params: &'a SamplingParams,
}

/// One answer on its way.
struct Walk {
    session: Box<dyn SamplerSession>,
    vocab: usize,
    seed: u64,
    prompt: Vec<TokenId>,
    generated: Vec<TokenId>,
}

/// What came of one token: the distribution and the token that was drawn.
type Outcome = (Vec<Candidate>, TokenId);

impl Subject<'_> {
    fn check(&self) -> Result<(), String> {
        for (vocab, tokens) in VOCABULARIES {
            self.check_walks(vocab, tokens).map_err(|fault| format!("vocabulary of {vocab}: {fault}"))?;
        }
        self.check_bad_rows()
    }

    fn open(&self) -> Result<Box<dyn SamplerSession>, String> {
        guarded("`open`", || self.sampler.open(self.params))?
            .map_err(|error| format!("`open` refuses what it must accept: {error}"))
    }

    fn walk(&self, vocab: usize, seed: u64) -> Result<Walk, String> {
        let prompt = (0..9).map(|i| (splitmix64(seed, i % 6) % vocab as u64) as TokenId).collect();
        Ok(Walk { session: self.open()?, vocab, seed, prompt, generated: Vec::new() })
    }

    fn check_walks(&self, vocab: usize, tokens: usize) -> Result<(), String> {
        let mut walk = self.walk(vocab, 1)?;
        let alone = (0..tokens).map(|_| walk.step(true)).collect::<Result<Vec<_>, _>>()?;

        let (mut again, mut other) = (self.walk(vocab, 1)?, self.walk(vocab, 2)?);
        for (index, expected) in alone.iter().enumerate() {
            other.step(false)?;
            compare(&again.step(false)?, expected, || {
                format!("token {index} of a second session, which alternates with another one, differs from the first")
            })?;
        }

        let mut original = self.walk(vocab, 1)?;
        for (index, expected) in alone.iter().enumerate() {
            let Some(mut fork) = original.fork()? else { break };
            for (later, expected) in alone.iter().enumerate().skip(index) {
                compare(&fork.step(false)?, expected, || {
                    format!("token {later} of a fork made before token {index} differs from the original")
                })?;
            }
            compare(&original.step(false)?, expected, || {
                format!("token {index} is another one after a fork was made and used")
            })?;
        }
        Ok(())
    }

    fn check_bad_rows(&self) -> Result<(), String> {
        let (nan, infinity, forbidden) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let long: Vec<f32> = (0..3000).map(|i| if i == 2950 { nan } else { (i % 7) as f32 }).collect();
        for (what, row) in [
            ("a NaN logit at the start", vec![nan, 1.0, 2.0]),
            ("a NaN logit at the end", vec![1.0, 2.0, nan]),
            ("a NaN logit late in a long row", long),
            ("only NaN logits", vec![nan; 3]),
            ("an infinite logit", vec![1.0, infinity, 0.0]),
            ("all tokens forbidden", vec![forbidden; 5]),
            ("no logits at all", vec![]),
        ] {
            let mut walk = self.walk(3, 1)?;
            if walk.distribution(&row).map_err(|fault| format!("{what}: {fault}"))?.is_ok() {
                return Err(format!("{what}: gives a distribution, but must give an error (as `argmax` does)"));
            }
        }
        Ok(())
    }
}

impl Walk {
    fn noise(&self) -> NoiseKey {
        let position = (self.prompt.len() + self.generated.len()) as u64;
        NoiseKey { seed: self.seed, choice: 0, position }
    }

    /// The distribution on a row, written over leftovers.
    fn distribution(&mut self, row: &[f32]) -> Result<crate::Result<Distribution>, String> {
        let noise = self.noise();
        let position = self.prompt.len() + self.generated.len();
        let mut out = Distribution::new();
        out.push(0, 0.7);
        out.push(TokenId::MAX, 0.7);
        let mut logits = row.to_vec();
        let context = SampleContext { prompt: &self.prompt, generated: &self.generated, position, noise };
        let session = &mut self.session;
        let result = guarded("`distribution`", || session.distribution(&context, &mut logits, &mut out))?;
        Ok(result.map(|()| out))
    }

    fn valid_distribution(&mut self, row: &[f32]) -> Result<Distribution, String> {
        let at = format!("at position {}", self.noise().position);
        let out = self.distribution(row)?.map_err(|error| format!("{at}: {error}"))?;
        out.validate("it", row.len()).map_err(|error| format!("{at}: {error} (is `out` cleared first?)"))?;
        let mut seen = HashSet::new();
        for candidate in out.candidates() {
            if candidate.probability > 0.0 && row[candidate.token as usize] == f32::NEG_INFINITY {
                return Err(format!("{at}: forbidden token {} has a probability", candidate.token));
            }
            if !seen.insert(candidate.token) {
                return Err(format!("{at}: token {} stands twice in the distribution", candidate.token));
            }
        }
        Ok(out)
    }

    /// Chooses one token. A thorough step asks again, with another question in between.
    fn step(&mut self, thorough: bool) -> Result<Outcome, String> {
        let at = self.generated.len();
        let row = row(self.vocab, self.seed, at as u64);
        let out = self.valid_distribution(&row)?;
        if thorough {
            let other = self::row(self.vocab, !self.seed, at as u64);
            self.valid_distribution(&other)?;
            if self.valid_distribution(&row)? != out {
                return Err(format!("asked twice for token {at}, it gives two distributions; nothing was observed"));
            }
        }
        let token = draw(&out, &self.noise()).map_err(|error| error.to_string())?;
        let session = &mut self.session;
        guarded("`observe`", || session.observe(token))?;
        self.generated.push(token);
        Ok((out.candidates().to_vec(), token))
    }

    fn fork(&self) -> Result<Option<Walk>, String> {
        let (can, fork) = guarded("`fork`", || (self.session.can_fork(), self.session.fork()))?;
        if can != fork.is_some() {
            return Err(format!("`can_fork` is {can}, but `fork` says otherwise"));
        }
        let of = |session| Walk { session, prompt: self.prompt.clone(), generated: self.generated.clone(), ..*self };
        Ok(fork.map(of))
    }
}

fn compare(found: &Outcome, expected: &Outcome, what: impl Fn() -> String) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{}: {}", what(), first_difference(found, expected)))
    }
}

fn first_difference(found: &Outcome, expected: &Outcome) -> String {
    let pairs = found.0.iter().zip(&expected.0);
    match pairs.into_iter().find(|(a, b)| a != b) {
        Some((a, b)) => format!("{a:?} instead of {b:?}"),
        None => format!("{} candidates instead of {}", found.0.len(), expected.0.len()),
    }
}

/// Logits of one position: flat, tied, peaked, spread or huge, with and without forbidden tokens.
fn row(vocab: usize, seed: u64, position: u64) -> Vec<f32> {
    let key = splitmix64(seed, position);
    let bits = |token: usize| splitmix64(key, token as u64);
    // In [-1, 1).
    let spread = |token: usize| (bits(token) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    let chosen = (key % vocab as u64) as usize;
    let value = |token: usize| match position % 6 {
        0 => 4.0 * spread(token),
        1 => 1.5,
        2 => (bits(token) % 3) as f32,
        3 if token == chosen => 45.0,
        4 => 1e30 * spread(token),
        _ => 9.0 * spread(token),
    };
    let is_forbidden = |token: usize| match position.wrapping_add(seed) % 4 {
        1 => bits(token) % 3 == 0 && token != chosen,
        3 => position.is_multiple_of(2) && token != chosen,
        _ => false,
    };
    (0..vocab).map(|token| if is_forbidden(token) { f32::NEG_INFINITY } else { value(token) }).collect()
}

/// Every parameter, out of range and within, one at a time.
fn check_parameters(sampler: &dyn Sampler) -> Result<(), String> {
    let open = |params: &SamplingParams| guarded("`open`", || sampler.open(params).map(|_| ()));
    for params in out_of_range() {
        match open(&params)? {
            Err(Error::Request(_)) => {}
            Err(error) => return Err(format!("refuses {}, but not with a `RequestError`: {error}", told(&params))),
            Ok(()) => {
                return Err(format!(
                    "accepts {}, which is out of range (call `SamplingParams::validate`)",
                    told(&params)
                ))
            }
        }
    }
    let warm = SamplingParams::new().with_temperature(1.0);
    let base = if open(&warm)?.is_ok() { warm } else { SamplingParams::new() };
    for probe in probes() {
        let without = (probe.base)(base.clone());
        let with = (probe.with)(without.clone());
        // A parameter that belongs to a refused one was seen to be refused alone.
        if open(&without)?.is_err() || open(&with)?.is_err() {
            continue;
        }
        if scene(sampler, &without)? == scene(sampler, &with)? {
            return Err(format!(
                "accepts `{}`, but it changes nothing; refuse it with `SamplingParams::allow_only`",
                probe.name
            ));
        }
    }
    Ok(())
}

/// Prompts and what follows them whatever is drawn: one text repeats long stretches, the other only pairs of tokens.
const TEXTS: [(&[TokenId], &[TokenId]); 2] = [
    (&[1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 8, 9, 1, 2, 3, 4, 5, 6], &[7, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6]),
    (&[1, 2, 3, 10, 1, 2, 5, 11, 12, 13, 1, 2], &[6, 14, 1, 2, 7, 15, 1, 2, 8, 16, 1, 2, 9, 17]),
];

/// Distributions along these texts, with logits that are neither flat nor peaked.
fn scene(sampler: &dyn Sampler, params: &SamplingParams) -> Result<Vec<Distribution>, String> {
    const VOCAB: usize = 48;
    let logits = |at: u64| (0..VOCAB as u64).map(move |token| ((token * 29 + at * 11) % 48) as f32 / 12.0 - 2.0);
    let mut found = Vec::new();
    for (prompt, follows) in TEXTS {
        let session = Subject { sampler, params }.open()?;
        let mut walk = Walk { session, vocab: VOCAB, seed: 5, prompt: prompt.to_vec(), generated: Vec::new() };
        for (at, next) in follows.iter().enumerate() {
            let out = walk.valid_distribution(&logits(at as u64).collect::<Vec<_>>())?;
            let token = draw(&out, &walk.noise()).map_err(|error| error.to_string())?;
            let session = &mut walk.session;
            guarded("`observe`", || session.observe(token))?;
            walk.generated.push(*next);
            found.push(out);
        }
    }
    Ok(found)
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
