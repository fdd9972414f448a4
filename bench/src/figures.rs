// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sums of many measurements. Floats are welcome here: nothing is decided by them.

use serde::{Deserialize, Serialize};

/// Mean, extremes and spread of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    pub(crate) mean: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// Standard deviation of the sample (n − 1).
    pub(crate) deviation: f64,
    pub(crate) median: f64,
}

/// An estimate with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Estimate {
    /// `1.03 [1.01 1.05]` with so many decimals.
    pub(crate) fn to_text(self, decimals: usize) -> String {
        let Self { value, low, high } = self;
        format!("{value:.decimals$} [{low:.decimals$} {high:.decimals$}]")
    }
}

pub(crate) fn median(sample: &[f64]) -> f64 {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

impl Spread {
    pub(crate) fn of(sample: &[f64]) -> Option<Self> {
        if sample.is_empty() {
            return None;
        }
        let count = sample.len();
        let mean = sample.iter().sum::<f64>() / count as f64;
        let squares: f64 = sample.iter().map(|it| (it - mean).powi(2)).sum();
        Some(Self {
            count,
            mean,
            min: sample.iter().copied().fold(f64::INFINITY, f64::min),
            max: sample.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            deviation: if count > 1 {
                (squares / (count - 1) as f64).sqrt()
            } else {
                0.0
            },
            median: median(sample),
        })
    }
}

/// A generator of its own, so that the same measurements always give the same interval
/// (xorshift64*, Vigna 2016).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        (high % bound as u64) as usize
    }
}

/// The same dice each time: a report of the same results says the same.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const DRAWS: usize = 2000;

/// `summary` of all rounds, and the 95 % interval that resampling the rounds gives (percentile
/// bootstrap, Efron 1979). Rounds are what is drawn: figures of one round belong together.
pub(crate) fn bootstrap(rounds: usize, summary: impl Fn(&[usize]) -> f64) -> Option<Estimate> {
    if rounds == 0 {
        return None;
    }
    let all: Vec<usize> = (0..rounds).collect();
    let value = summary(&all);
    let mut dice = Dice(SEED);
    let mut draws: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let drawn: Vec<usize> = (0..rounds).map(|_| dice.below(rounds)).collect();
            summary(&drawn)
        })
        .filter(|it| it.is_finite())
        .collect();
    draws.sort_by(f64::total_cmp);
    let at = |permille: usize| {
        draws.get((draws.len() * permille / 1000).min(draws.len().saturating_sub(1)))
    };
    Some(Estimate {
        value,
        low: at(25).copied().unwrap_or(value),
        high: at(975).copied().unwrap_or(value),
    })
}

/// The median of some rounds of a sample; one that is drawn twice counts twice.
pub(crate) fn median_of(sample: &[f64], rounds: &[usize]) -> f64 {
    median(
        &rounds
            .iter()
            .map(|&round| sample[round])
            .collect::<Vec<_>>(),
    )
}

/// Splits that are averaged over.
const SPLITS: usize = 500;

/// The largest of several medians is larger than what it is the median of: it was chosen for its noise too.
/// So the case is chosen in one half of the rounds, drawn at random, and measured in the other, and the
/// other way round (cross-fitting); the mean over many such splits. `None` where a case lacks rounds.
pub(crate) fn largest_unchosen(cases: &[&[f64]]) -> Option<f64> {
    let rounds = cases.first()?.len();
    if rounds < 2 || cases.iter().any(|it| it.len() != rounds) {
        return None;
    }
    let mut dice = Dice(SEED);
    let mut order: Vec<usize> = (0..rounds).collect();
    let mut sum = 0.0;
    for _ in 0..SPLITS {
        for index in (1..rounds).rev() {
            order.swap(index, dice.below(index + 1));
        }
        let (one, other) = order.split_at(rounds / 2);
        for (choosing, measuring) in [(one, other), (other, one)] {
            let worst = cases
                .iter()
                .max_by(|a, b| median_of(a, choosing).total_cmp(&median_of(b, choosing)))?;
            sum += median_of(worst, measuring);
        }
    }
    Some(sum / (2 * SPLITS) as f64)
}

/// The median of a sample with its interval.
pub(crate) fn median_estimate(sample: &[f64]) -> Option<Estimate> {
    bootstrap(sample.len(), |drawn| median_of(sample, drawn))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_does_not_make_a_case_the_worst_and_a_real_difference_does() {
        let mut dice = Dice(7);
        let mut noisy = |level: f64| -> Vec<f64> {
            let rounds = (0..22).map(|_| level + dice.below(2001) as f64 / 1e4 - 0.1);
            rounds.collect()
        };
        let equal: Vec<Vec<f64>> = (0..11).map(|_| noisy(1.03)).collect();
        let equal: Vec<&[f64]> = equal.iter().map(Vec::as_slice).collect();
        let chosen = equal.iter().map(|it| median(it)).fold(0.0, f64::max);
        let unchosen = largest_unchosen(&equal).unwrap();
        assert!(chosen > 1.045, "{chosen}");
        assert!((unchosen - 1.03).abs() < 0.02, "{unchosen}");
        let worse = noisy(1.3);
        let mut unequal = equal.clone();
        unequal.push(&worse);
        let found = largest_unchosen(&unequal).unwrap();
        assert!((found - 1.3).abs() < 0.02, "{found}");
        assert_eq!(largest_unchosen(&[]), None);
        assert_eq!(largest_unchosen(&[&[1.0]]), None);
    }

    #[test]
    fn a_spread_says_mean_extremes_and_deviation() {
        let spread = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!(
            (spread.mean, spread.min, spread.max, spread.median),
            (5.0, 2.0, 9.0, 4.5)
        );
        assert!((spread.deviation - 2.138).abs() < 0.001);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn an_interval_holds_the_value_and_shrinks_with_agreement() {
        let wide = median_estimate(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
        assert!(
            wide.low < 4.0 && wide.high > 4.0 && wide.value == 4.0,
            "{wide:?}"
        );
        let narrow = median_estimate(&[4.0; 7]).unwrap();
        assert_eq!((narrow.low, narrow.high), (4.0, 4.0));
    }
}
