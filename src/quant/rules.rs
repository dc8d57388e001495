//! Rules from names to storage types: which one applies to a weight, and what it means there.

use std::fmt;

use super::WeightInfo;
use crate::source::Dtype;
use crate::BuildError;

/// What a rule turns a weight into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(non_camel_case_types)]
pub enum Target {
    /// What the source has.
    Stored,
    /// 8 bits, a scale per 32 values: 8.5 bits per value.
    Q8_0,
    /// 5 bits, a scale per 32 values: 5.5 bits per value.
    Q5_0,
    /// 4 bits, a scale per 32 values: 4.5 bits per value.
    Q4_0,
    /// 4 bits, scales and minimums of 6 bits in blocks of 256: 4.5 bits per value.
    Q4_K,
    /// 6 bits, scales of 8 bits in blocks of 256: 6.5625 bits per value.
    Q6_K,
}

impl Target {
    /// Every target.
    pub const ALL: &'static [Target] =
        &[Target::Stored, Target::Q8_0, Target::Q6_K, Target::Q5_0, Target::Q4_K, Target::Q4_0];

    /// The name in rules: `stored`, `q8_0`, `q6_k`, `q5_0`, `q4_k`, `q4_0`.
    pub fn as_str(self) -> &'static str {
        match self {
            Target::Stored => "stored",
            Target::Q8_0 => "q8_0",
            Target::Q5_0 => "q5_0",
            Target::Q4_0 => "q4_0",
            Target::Q4_K => "q4_k",
            Target::Q6_K => "q6_k",
        }
    }

    /// The target of a name, in small or capital letters; `None` for any other text.
    pub fn parse(name: &str) -> Option<Target> {
        Self::ALL.iter().copied().find(|target| target.as_str().eq_ignore_ascii_case(name))
    }

    /// The storage type for rows of `cols` values from a source of type `stored`, and whether it is the fallback for a
    /// width that does not divide into blocks of 256: [`Q4_K`](Target::Q4_K) becomes Q5_0, [`Q6_K`](Target::Q6_K)
    /// becomes Q8_0, which keep more bits, not fewer. `None` for widths that do not divide into blocks of 32 either.
    fn dtype(self, stored: Dtype, cols: usize) -> Option<(Dtype, bool)> {
        let (asked, fallback) = match self {
            Target::Stored => return Some((stored, false)),
            Target::Q8_0 => (Dtype::Q8_0, None),
            Target::Q5_0 => (Dtype::Q5_0, None),
            Target::Q4_0 => (Dtype::Q4_0, None),
            Target::Q4_K => (Dtype::Q4_K, Some(Dtype::Q5_0)),
            Target::Q6_K => (Dtype::Q6_K, Some(Dtype::Q8_0)),
        };
        let fits = |dtype: Dtype| cols.is_multiple_of(dtype.block_len());
        if fits(asked) {
            return Some((asked, false));
        }
        fallback.filter(|&dtype| fits(dtype)).map(|dtype| (dtype, true))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One rule: weights whose place fits the pattern ([`Site::matches`](super::Site::matches)) get the target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// The pattern.
    pub pattern: String,
    /// The target.
    pub target: Target,
}

impl Rule {
    /// A rule.
    pub fn new(pattern: impl Into<String>, target: Target) -> Rule {
        Rule { pattern: pattern.into(), target }
    }

    /// Reads `pattern=type`.
    pub(super) fn parse(text: &str) -> Result<Rule, BuildError> {
        let invalid = |problem: String| BuildError::InvalidRule { rule: text.to_string(), problem };
        let Some((pattern, name)) = text.rsplit_once('=') else {
            return Err(invalid(
                "expected a name pattern, `=` and a type, such as `blk.*.ffn_down.weight=q6_k`".into(),
            ));
        };
        let (pattern, name) = (pattern.trim(), name.trim());
        if pattern.is_empty() {
            return Err(invalid("the name pattern is empty; `*` fits every name".into()));
        }
        match Target::parse(name) {
            Some(target) => Ok(Rule::new(pattern, target)),
            None => {
                let known: Vec<&str> = Target::ALL.iter().map(|target| target.as_str()).collect();
                Err(invalid(format!("`{name}` is not a type to quantize to; known are {}", known.join(", "))))
            }
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.pattern, self.target)
    }
}

/// What the rules mean for one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The type that it will have.
    pub dtype: Dtype,
    /// Index of the rule that applies; `None` if none does and the weight stays as stored.
    pub rule: Option<usize>,
    /// Whether the width does not divide into the blocks of the type that the rule names, so that another one, with
    /// more bits, takes its place.
    pub is_fallback: bool,
}

/// The first rule that fits decides. `Err` is what is wrong with the weight's width.
pub(super) fn choose(rules: &[Rule], weight: &WeightInfo) -> Result<Choice, String> {
    let Some((index, rule)) = rules.iter().enumerate().find(|(_, rule)| weight.site.matches(&rule.pattern)) else {
        return Ok(Choice { dtype: weight.dtype, rule: None, is_fallback: false });
    };
    match rule.target.dtype(weight.dtype, weight.cols) {
        Some((dtype, is_fallback)) => Ok(Choice { dtype, rule: Some(index), is_fallback }),
        None => Err(format!(
            "its rows of {} values do not divide into blocks of 32, which {} needs; put `{}=stored` before the rule \
             `{rule}`",
            weight.cols, rule.target, weight.site,
        )),
    }
}
