//! One metric and its test results.

use serde::Serialize;

use super::{Measure, Options};
use crate::stats::{
    Autocorrelation, Estimate, Moments, RankTest, Welch, detectable_difference, hedges_g,
    relative_change, runs_needed, shift,
};

/// The verdict on a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Significant, even among all tests.
    Differs,
    /// Significant on its own; among many tests some are by chance.
    Perhaps,
    /// Not significant, which does not mean that it is the same.
    Unproven,
}

/// One metric.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name; a rate ends with `/s`.
    pub metric: String,
    /// The meaning of its values.
    pub measure: Measure,
    /// The good values.
    pub good: Vec<f64>,
    /// The bad values.
    pub bad: Vec<f64>,
    /// The means of both.
    pub means: (f64, f64),
    /// Welch's test of (good, bad), unless both sides are constant.
    pub welch: Option<Welch>,
    /// The rank test of (good, bad).
    pub rank: RankTest,
    /// The p that decides the verdict: that of Welch's test, or of the rank test if both sides are constant.
    pub p: f64,
    /// `p`, adjusted for the number of metrics: of 6 to 20 runs a side by [`max_t`](crate::stats::max_t), else by
    /// [`adjusted`](crate::stats::adjusted).
    pub adjusted_p: f64,
    /// Hedges' g* of bad over good.
    pub effect: Option<Estimate>,
    /// The bad mean over the good one, less one.
    pub change: Option<Estimate>,
    /// Hodges and Lehmann's shift of bad over good, of the primary metric.
    pub shift: Option<Estimate>,
    /// The smallest difference of the means that this many values find with a probability of 80 %.
    pub detectable: Option<f64>,
    /// Values a side to find the difference seen here with a probability of 80 %.
    pub runs_for_this: Option<u32>,
    /// Values a side to find the wanted change with a probability of 80 %.
    pub runs_for_wanted: Option<u32>,
    /// The independent share of the values, if they are samples of one run a side: the lesser of both sides.
    pub independent_share: Option<f64>,
    /// The metric that this one is a copy of: they are one test among all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<String>,
    /// The verdict from all of that.
    pub verdict: Verdict,
}

impl Row {
    /// Makes a row. `good` and `bad` have two finite values or more each, and not all are the same.
    pub(super) fn new(
        metric: String,
        measure: Measure,
        good: Vec<f64>,
        bad: Vec<f64>,
        options: &Options,
    ) -> Self {
        let rank = RankTest::new(&good, &bad).expect("there are finite values on both sides");
        let moments = Moments::from_values(&good)
            .and_then(|first| Ok((first, Moments::from_values(&bad)?)))
            .ok();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let means = moments.map_or((mean(&good), mean(&bad)), |(a, b)| (a.mean(), b.mean()));
        let alpha = options.alpha;
        let tested = moments.and_then(|(a, b)| Some((a, b, Welch::new(&a, &b, alpha).ok()?)));
        let welch = tested.map(|(_, _, welch)| welch);
        let wanted = options.wanted_change * means.0;
        let needed =
            |difference: f64| tested.and_then(|(a, b, _)| runs_needed(&a, &b, difference, alpha));
        let change = (means.0 != 0.0).then(|| (means.1 - means.0) / means.0.abs());
        let change = change.map(|value| Estimate { value, interval: None });
        Self {
            p: welch.map_or(rank.p, |welch| welch.p),
            adjusted_p: f64::NAN,
            effect: tested.map(|(a, b, welch)| hedges_g(&a, &b, &welch, alpha)),
            change: tested
                .and_then(|(a, b, welch)| relative_change(&a, &b, &welch, alpha))
                .or(change),
            detectable: welch.map(|welch| detectable_difference(&welch, alpha)),
            runs_for_this: needed(means.1 - means.0),
            runs_for_wanted: needed(wanted),
            independent_share: None,
            shift: None,
            copy_of: None,
            verdict: Verdict::Unproven,
            metric,
            measure,
            good,
            bad,
            means,
            welch,
            rank,
        }
    }

    pub(super) fn judge(&mut self, adjusted_p: f64, options: &Options) {
        self.adjusted_p = adjusted_p;
        self.verdict = match self.p < options.alpha {
            true if adjusted_p <= options.fdr => Verdict::Differs,
            true => Verdict::Perhaps,
            false => Verdict::Unproven,
        };
    }

    /// Measures the dependence of the samples of one run a side on the ones before.
    pub(super) fn measure_dependence(&mut self) {
        let share = |values: &[f64]| {
            let correlation = Autocorrelation::from_values(values)
                .filter(|correlation| correlation.is_dependent(values.len()))?;
            Some(correlation.effective_size / values.len() as f64)
        };
        let shares = [share(&self.good), share(&self.bad)];
        self.independent_share = shares.into_iter().flatten().min_by(f64::total_cmp);
    }

    pub(super) fn measure_shift(&mut self, alpha: f64) {
        self.shift = shift(&self.good, &self.bad, alpha);
    }

    /// The metric's name without the mark of a rate.
    pub fn name(&self) -> &str {
        self.metric.strip_suffix("/s").unwrap_or(&self.metric)
    }

    /// Returns true if the change is `effect` or more, a part of the good mean; one from zero always is.
    pub fn matters(&self, effect: f64) -> bool {
        self.change.is_none_or(|change| change.value.abs() >= effect)
    }

    /// t of (good, bad); without one, infinity with the sign of the difference.
    pub fn t_or_sign(&self) -> f64 {
        self.welch.map_or((self.means.0 - self.means.1) * f64::INFINITY, |welch| welch.t)
    }

    /// Hedges' g* without its sign; infinite if both sides are constant.
    pub fn effect_size(&self) -> f64 {
        self.effect.map_or(f64::INFINITY, |effect| effect.value.abs())
    }
}
