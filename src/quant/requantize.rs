//! Changing the format of weights while they load, by rules on names.
//!
//! A few megabytes of rows at a time are read, widened to f32, encoded and packed; the first and the last step by the
//! kernels, all of it on the engine's threads. Knows no block layouts.

use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use super::encode::encode;
use super::group;
use super::rules::{self, Choice, Rule, Target};
use super::stored::pack;
use super::{Calibration, LinearGroup, QuantizedGroup, Quantizer, WeightInfo, WeightView};
use crate::kernel::{Cpu, PackedMatrix};
use crate::source::Dtype;
use crate::{BuildError, Result};

const NAME: &str = "requantize";

/// Stores weights as Q8_0, Q6_K, Q5_0, Q4_K or Q4_0, whatever the source has them in, by rules from names to types.
///
/// The first rule whose pattern fits a weight's place decides ([`Site::matches`](super::Site::matches)); a weight that
/// no rule fits stays as stored, and so does one that has the type already. Every rule must apply to a weight of the
/// model, so that a misspelled name is an error and not a surprise.
///
/// Rows of Q4_K and Q6_K divide into blocks of 256 values. Where the model's do not, Q5_0 and Q8_0 take their place,
/// and [`choose`](Requantize::choose) and [`Engine::matrices`](crate::Engine::matrices) say so.
///
/// ```
/// use candlewick::quant::{Requantize, Rule, Target};
///
/// # fn main() -> candlewick::Result<()> {
/// let rules: Requantize = "blk.*.attn_*=q8_0, *=q4_k".parse()?;
/// assert_eq!(rules.rules()[1], Rule::new("*", Target::Q4_K));
/// # Ok(())
/// # }
/// ```
///
/// Going from one low-precision format to another adds both errors: start from a file of high precision where there is
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requantize {
    rules: Vec<Rule>,
}

impl Requantize {
    /// By these rules; without any, everything stays as stored.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Requantize {
        Requantize { rules: rules.into_iter().collect() }
    }

    /// Everything to one type.
    pub fn all(target: Target) -> Requantize {
        Requantize::new([Rule::new("*", target)])
    }

    /// The rules in order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The type that a weight will have, and why.
    ///
    /// # Errors
    /// [`BuildError::Quantize`] where the width does not fit the type and has no fallback.
    pub fn choose(&self, weight: &WeightInfo) -> Result<Choice> {
        rules::choose(&self.rules, weight).map_err(|problem| weight.refused(NAME, problem))
    }
}

/// Rules as `pattern=type`, separated by commas; spaces around them do not count.
///
/// # Errors
/// [`BuildError::InvalidRule`]: no `=`, an empty pattern, an unknown type, or no rule at all.
impl FromStr for Requantize {
    type Err = BuildError;

    fn from_str(text: &str) -> Result<Requantize, BuildError> {
        Ok(Requantize { rules: text.split(',').map(|rule| Rule::parse(rule.trim())).collect::<Result<_, _>>()? })
    }
}

impl Quantizer for Requantize {
    fn name(&self) -> &str {
        NAME
    }

    fn check(&self, weights: &[WeightInfo]) -> Result<()> {
        let mut applies = vec![false; self.rules.len()];
        for weight in weights {
            if let Some(rule) = self.choose(weight)?.rule {
                applies[rule] = true;
            }
        }
        let Some(rule) = applies.iter().position(|applies| !applies) else { return Ok(()) };
        let rule = &self.rules[rule];
        let problem = match weights.iter().find(|w| w.site.matches(&rule.pattern)) {
            Some(weight) => format!("rules before it take every weight that it fits, such as `{}`", weight.site),
            None => match weights {
                [first, .., last] => format!("no weight fits; names are such as `{}` and `{}`", first.site, last.site),
                _ => "no weight fits".to_string(),
            },
        };
        Err(BuildError::InvalidRule { rule: rule.to_string(), problem }.into())
    }

    fn quantize(&self, group: &LinearGroup<'_>, _: &Calibration<'_>) -> Result<QuantizedGroup> {
        group.each(|weight| {
            let Choice { dtype, rule, .. } = self.choose(weight.info())?;
            // A rule's own type is written anew where the file has a factor apart from its blocks.
            match dtype == weight.dtype() && (rule.is_none() || weight.scale() == 1.0) {
                true => pack(group.cpu(), weight),
                false => Ok(Box::new(convert(group.cpu(), weight, dtype)?)),
            }
        })
    }
}

/// The weight in another type.
pub(super) fn convert(cpu: &Cpu, weight: &WeightView<'_>, dtype: Dtype) -> Result<PackedMatrix> {
    let (stored, scale) = (weight.dtype(), weight.scale());
    let (cols, from_bytes) = (weight.cols(), weight.row_bytes());
    let mut matrix = PackedMatrix::allocate(dtype, weight.rows(), cols)?;
    // `allocate` has refused partial blocks.
    let to_bytes = cols / dtype.block_len() * dtype.block_bytes();
    // A task of some hundred thousand values takes milliseconds.
    let task_rows = ((1 << 18) / cols).max(1);
    let mut encoded = Vec::new();
    weight.for_each_part(from_bytes.max(to_bytes), &mut |first, bytes| {
        encoded.resize(bytes.len() / from_bytes * to_bytes, 0);
        // Without a text: values that are no numbers.
        let problem: Mutex<Option<(usize, Option<String>)>> = Mutex::new(None);
        cpu.for_each_chunk(&mut encoded, task_rows * to_bytes, &|at, out| {
            let mut values = vec![0.0; cols];
            for (i, out) in out.chunks_exact_mut(to_bytes).enumerate() {
                let row = at / to_bytes + i;
                let bytes = &bytes[row * from_bytes..(row + 1) * from_bytes];
                let outcome = match group::values(stored, scale, bytes, &mut values) {
                    // Dense types would take them.
                    Ok(()) if !values.iter().all(|x| x.is_finite()) => Err(None),
                    Ok(()) => encode(dtype, &values, out).map_err(|problem| Some(problem.to_string())),
                    Err(error) => Err(Some(error.to_string())),
                };
                if let Err(found) = outcome {
                    // The first row is told, whichever thread finds it.
                    let mut problem = problem.lock().unwrap_or_else(PoisonError::into_inner);
                    if problem.as_ref().is_none_or(|(known, _)| row < *known) {
                        *problem = Some((row, found));
                    }
                    return;
                }
            }
        });
        if let Some((row, problem)) = problem.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let Some(problem) = problem else { return Err(weight.info().not_finite(first + row)) };
            let place = format!("row {}: {problem}; keep it by the rule `{}=stored`", first + row, weight.site());
            return Err(weight.info().refused(NAME, place));
        }
        matrix.pack_rows(cpu, first, &encoded).map_err(|error| weight.info().named(error))
    })?;
    Ok(matrix)
}

#[cfg(test)]
#[path = "requantize_tests.rs"]
mod tests;
