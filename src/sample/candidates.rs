//! The tokens still in play at one position, and the filters that narrow them down.
//!
//! Begins as the whole row of logits, untouched; the first filter that can takes what it keeps straight out of the row,
//! so that those behind it work on few tokens. Knows no request: every filter is called with its parameter.

use std::cmp::Ordering;

use crate::sample::Distribution;
use crate::TokenId;

/// The tokens in play. At least one of them has a positive weight once weighed.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    entries: Vec<Entry>,
    /// Nothing was dropped yet and nothing was taken out of the row: `entries` says nothing.
    is_whole: bool,
    /// Weights fit maximum and divisor.
    is_weighed: bool,
    /// Entries stand best first.
    is_ranked: bool,
    /// The most probable token of all; its logit is finite.
    best: TokenId,
    /// Weights are relative to this logit: that of the best token when they were computed.
    maximum: f32,
    /// The temperature.
    divisor: f32,
}

/// One token: its logit, and its probability in units of that of the best one (at most 1).
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    logit: f32,
    weight: f32,
    token: TokenId,
}

impl Candidates {
    /// All tokens of a row with this best token and its logit (finite; no logit is NaN).
    pub(super) fn begin(&mut self, (best, maximum): (TokenId, f32)) {
        self.entries.clear();
        *self = Candidates {
            entries: std::mem::take(&mut self.entries),
            is_whole: true,
            is_weighed: false,
            is_ranked: false,
            best,
            maximum,
            divisor: 1.0,
        };
    }

    /// Keeps the best token only: the limit of a temperature of 0.
    pub(super) fn keep_best(&mut self) {
        let best = match self.is_whole {
            true => Some(Entry { logit: self.maximum, weight: 1.0, token: self.best }),
            false => self.entries.iter().copied().min_by(rank),
        };
        self.entries.clear();
        self.entries.extend(best);
        (self.is_whole, self.is_weighed, self.is_ranked) = (false, false, true);
    }

    /// Divides all logits; above 0.
    pub(super) fn temperature(&mut self, temperature: f32) {
        self.divisor = temperature;
        self.is_weighed = false;
    }

    /// The temperature that follows the entropy H of n tokens: from temperature − range at H = 0 to temperature +
    /// range at H = ln n, by (H / ln n)^exponent between (EDT, arXiv 2403.14541, in the form that llama.cpp has).
    pub(super) fn dynamic_temperature(&mut self, logits: &[f32], temperature: f32, range: f32, exponent: f32) {
        self.weigh(logits);
        // One token has no entropy to follow, and no use for a temperature.
        let count = self.entries.len();
        if count > 1 {
            let normalized = (self.entropy() / (count as f64).ln()).clamp(0.0, 1.0);
            let low = f64::from(temperature) - f64::from(range);
            let dynamic = low + 2.0 * f64::from(range) * normalized.powf(f64::from(exponent));
            match dynamic as f32 {
                0.0 => self.keep_best(),
                dynamic => self.temperature(dynamic),
            }
        }
    }

    /// Keeps logits within `n` standard deviations of the highest (top-nσ, arXiv 2411.07641). Mean and deviation are
    /// those of the tokens in play, the deviation that of a population. A temperature before it changes nothing.
    pub(super) fn top_n_sigma(&mut self, logits: &[f32], n: f32) {
        let border = match self.is_whole {
            true => sigma_border(|| logits.iter().copied().filter(|&logit| logit > f32::NEG_INFINITY), n),
            false => sigma_border(|| self.entries.iter().map(|entry| entry.logit), n),
        };
        if self.is_whole {
            self.take(logits, |logit| f64::from(logit) >= border);
        } else {
            self.entries.retain(|entry| f64::from(entry.logit) >= border);
        }
    }

    /// Keeps the k highest logits, ties to the lower id; k > 0.
    pub(super) fn top_k(&mut self, logits: &[f32], k: usize) {
        if self.is_whole {
            if k < logits.len() {
                keep_highest(logits, k, &mut self.entries);
                (self.is_whole, self.is_weighed, self.is_ranked) = (false, false, false);
            }
        } else if k < self.entries.len() {
            if !self.is_ranked {
                self.entries.select_nth_unstable_by(k - 1, rank);
            }
            self.entries.truncate(k);
        }
    }

    /// Keeps the smallest set whose mass reaches the share `p`, beginning with tokens whose information −ln p(token) is
    /// nearest to the entropy (locally typical sampling, arXiv 2202.00666). Ties go to the more probable, then to the
    /// lower id. The most probable token may go.
    pub(super) fn typical(&mut self, logits: &[f32], p: f32) {
        self.weigh(logits);
        self.entries.retain(|entry| entry.weight > 0.0);
        let mass = self.mass();
        let (entropy, log_mass) = (self.entropy(), mass.ln());
        let (maximum, divisor) = (self.maximum, self.divisor);
        let distance = |entry: &Entry| (log_mass - f64::from(score(entry.logit, maximum, divisor)) - entropy).abs();
        keep_mass(&mut self.entries, f64::from(p) * mass, false, |a, b| {
            distance(a).partial_cmp(&distance(b)).unwrap_or(Ordering::Equal).then_with(|| rank(a, b))
        });
        self.is_ranked = false;
    }

    /// Keeps the smallest set of most probable tokens whose mass reaches the share `p` < 1 (nucleus, arXiv 1904.09751).
    pub(super) fn top_p(&mut self, logits: &[f32], p: f32) {
        let mass = if self.is_whole {
            // Tokens below this weight weigh less than 1 − p of the best one together, so the set ends above them.
            let floor = (1.0 - f64::from(p)) / (2.0 * logits.len() as f64);
            let mut mass = 0.0f64;
            for (token, &logit) in logits.iter().enumerate() {
                let weight = self.weight_of(logit);
                mass += f64::from(weight);
                if f64::from(weight) >= floor {
                    self.entries.push(Entry { logit, weight, token: token as TokenId });
                }
            }
            (self.is_whole, self.is_weighed) = (false, true);
            mass
        } else {
            self.weigh(logits);
            self.mass()
        };
        keep_mass(&mut self.entries, f64::from(p) * mass, self.is_ranked, rank);
        self.is_ranked = true;
    }

    /// Keeps tokens with at least the share `p` > 0 of the largest probability (arXiv 2407.01082).
    pub(super) fn min_p(&mut self, logits: &[f32], p: f32) {
        if self.is_whole {
            // Spares the others their exponential; the slack covers rounding.
            let (lowest, maximum, divisor) = (p.ln() - 0.01, self.maximum, self.divisor);
            self.take(logits, |logit| score(logit, maximum, divisor) >= lowest);
        }
        self.weigh(logits);
        let floor = p * self.entries.iter().map(|entry| entry.weight).fold(0.0, f32::max);
        self.entries.retain(|entry| entry.weight >= floor);
    }

    /// Of the tokens with at least `threshold`, drops all but the least probable (XTC by p-e-w,
    /// text-generation-webui 2024).
    pub(super) fn exclude_top(&mut self, logits: &[f32], threshold: f32) {
        self.weigh(logits);
        let floor = f64::from(threshold) * self.mass();
        let is_top = |entry: &Entry| entry.weight > 0.0 && f64::from(entry.weight) >= floor;
        if let Some(kept) = self.entries.iter().copied().filter(is_top).max_by(rank) {
            self.entries.retain(|entry| !is_top(entry) || entry.token == kept.token);
        }
    }

    /// Keeps tokens whose surprise −log₂ p is at most `bits`, and the best one (mirostat 2, arXiv 2007.14966).
    pub(super) fn keep_surprise(&mut self, logits: &[f32], bits: f64) {
        self.weigh(logits);
        let log_mass = self.mass().ln();
        let best = self.entries.iter().copied().min_by(rank).map(|entry| entry.token);
        let (maximum, divisor) = (self.maximum, self.divisor);
        let surprise =
            |entry: &Entry| (log_mass - f64::from(score(entry.logit, maximum, divisor))) / std::f64::consts::LN_2;
        self.entries.retain(|entry| Some(entry.token) == best || (entry.weight > 0.0 && surprise(entry) <= bits));
    }

    /// Writes what is left, renormalized.
    pub(super) fn finish(&mut self, logits: &[f32], out: &mut Distribution) {
        self.weigh(logits);
        let sum = self.mass();
        out.clear();
        for entry in self.entries.iter().filter(|entry| entry.weight > 0.0) {
            out.push(entry.token, (f64::from(entry.weight) / sum) as f32);
        }
    }

    /// Where the entries lie and how many there is room for.
    #[cfg(test)]
    pub(super) fn memory(&self) -> (usize, *const Entry) {
        (self.entries.capacity(), self.entries.as_ptr())
    }

    /// Takes the allowed tokens with fitting logits out of the row.
    fn take(&mut self, logits: &[f32], fits: impl Fn(f32) -> bool) {
        for (token, &logit) in logits.iter().enumerate() {
            if logit > f32::NEG_INFINITY && fits(logit) {
                self.entries.push(Entry { logit, weight: 0.0, token: token as TokenId });
            }
        }
        (self.is_whole, self.is_weighed, self.is_ranked) = (false, false, false);
    }

    /// Makes entries and their weights true.
    fn weigh(&mut self, logits: &[f32]) {
        if self.is_whole {
            self.take(logits, |_| true);
        }
        if !self.is_weighed {
            self.maximum = self.entries.iter().map(|entry| entry.logit).fold(f32::NEG_INFINITY, f32::max);
            let (maximum, divisor) = (self.maximum, self.divisor);
            self.entries.iter_mut().for_each(|entry| entry.weight = score(entry.logit, maximum, divisor).exp());
            self.is_weighed = true;
        }
    }

    fn weight_of(&self, logit: f32) -> f32 {
        score(logit, self.maximum, self.divisor).exp()
    }

    fn mass(&self) -> f64 {
        self.entries.iter().map(|entry| f64::from(entry.weight)).sum()
    }

    /// In nats.
    fn entropy(&self) -> f64 {
        let mass = self.mass();
        let of = |entry: &Entry| f64::from(entry.weight) * f64::from(score(entry.logit, self.maximum, self.divisor));
        // Weights of 0 have scores down to −∞ and no part in the entropy.
        mass.ln() - self.entries.iter().filter(|entry| entry.weight > 0.0).map(of).sum::<f64>() / mass
    }
}

/// Logarithm of a weight; at most 0. The difference comes first: the quotient alone could overflow.
fn score(logit: f32, maximum: f32, divisor: f32) -> f32 {
    (logit - maximum) / divisor
}

/// Best first, ties to the lower id. Logits are no NaN.
fn rank(a: &Entry, b: &Entry) -> Ordering {
    // Not `total_cmp`: the two zeros are equal logits.
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// The highest logit less `n` standard deviations.
fn sigma_border<I: Iterator<Item = f32>>(logits: impl Fn() -> I, n: f32) -> f64 {
    let (mut count, mut sum, mut maximum) = (0usize, 0.0f64, f32::NEG_INFINITY);
    for logit in logits() {
        (count, sum, maximum) = (count + 1, sum + f64::from(logit), maximum.max(logit));
    }
    let mean = sum / count as f64;
    let variance = logits().map(|logit| (f64::from(logit) - mean).powi(2)).sum::<f64>() / count as f64;
    f64::from(maximum) - f64::from(n) * variance.sqrt()
}

/// The k highest logits (0 < k < len), in any order; ties at the border to the lower id. Linear.
fn keep_highest(logits: &[f32], k: usize, kept: &mut Vec<Entry>) {
    // Collects whatever beats the border, and raises the border whenever there are twice as many as needed.
    let capacity = k.saturating_mul(2).max(1024);
    let mut border = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        // Ids ascend, so an equal logit ranks after all k that are at or above the border.
        if logit > border {
            kept.push(Entry { logit, weight: 0.0, token: token as TokenId });
            if kept.len() >= capacity {
                kept.select_nth_unstable_by(k - 1, rank);
                kept.truncate(k);
                border = kept[k - 1].logit;
            }
        }
    }
    if kept.len() > k {
        kept.select_nth_unstable_by(k - 1, rank);
        kept.truncate(k);
    }
}

/// Keeps the shortest head in the order `by` whose mass reaches `target`, at least one token, and leaves it in order.
///
/// The order is made piece by piece, each four times as long as the one before: a head that ends early never pays
/// for sorting the rest.
fn keep_mass(kept: &mut Vec<Entry>, target: f64, is_ordered: bool, by: impl Fn(&Entry, &Entry) -> Ordering + Copy) {
    let mut ordered = 0;
    let mut piece = 256;
    let mut reached = 0.0f64;
    while ordered < kept.len() {
        let rest = &mut kept[ordered..];
        let length = piece.min(rest.len());
        if !is_ordered {
            if length < rest.len() {
                rest.select_nth_unstable_by(length - 1, by);
            }
            rest[..length].sort_unstable_by(by);
        }
        for (index, entry) in rest[..length].iter().enumerate() {
            reached += f64::from(entry.weight);
            if reached >= target {
                kept.truncate(ordered + index + 1);
                return;
            }
        }
        ordered += length;
        piece = piece.saturating_mul(4);
    }
}

#[cfg(test)]
#[path = "candidates_tests.rs"]
mod tests;
