//! The settings of the policy and of the looks that feed it.

use cowslip_sys::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Settings of promotion. The names are those of the configuration file.
///
/// ```
/// use cowslip_promote::Settings;
/// let settings = Settings { threshold_percent: 70, ..Settings::default() };
/// assert!(settings.check().is_ok());
/// assert!(Settings { demote_below_percent: 70, ..settings }.check().is_err());
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Percentage of pages in use from which a region becomes huge.
    pub threshold_percent: u8,
    /// Percentage of pages in use below which a huge page is split; 0: never.
    pub demote_below_percent: u8,
    /// The threshold while less than half of free memory is fragmented, as in Ingens; absent: the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfragmented_threshold_percent: Option<u8>,
    /// The part of a control group's memory that the kernel is asked to reclaim at a time, where the group has huge
    /// pages to split; 0: they are split one by one.
    pub reclaim_percent: f64,
    /// True to promote the text of programs and libraries as well.
    pub files: bool,
    /// The time for which a region is left alone after pages of it were released.
    pub settle_ms: u64,
    /// The most pages in swap that a promotion may bring back.
    pub max_swapped_pages: u16,
    /// The most time that promotions may hold up a process, percent.
    pub stall_percent: f64,
    /// A promotion that takes longer makes the process wait for the next.
    pub slow_ms: u64,
    /// The first such wait; each further one is twice as long.
    pub backoff_min_ms: u64,
    /// The longest such wait.
    pub backoff_max_ms: u64,
    /// Memory that stays available.
    pub keep_available_percent: u8,
    /// Memory that stays free below the limit of a control group, percent of the limit.
    pub keep_below_limit_percent: u8,
    /// The same in MiB: the larger of the two applies.
    pub keep_below_limit_mib: u32,
    /// Time waiting for memory (`/proc/pressure/memory`, and `memory.pressure` of the control group) from
    /// which nothing is promoted.
    pub pressure_percent: f64,
    /// Promotions per look for which the kernel has to compact memory first.
    pub compactions: u32,
    /// The factor by which an idle huge page counts more against its process than one in use.
    pub idle_penalty: f64,
    /// The most processor time for looking, percent of one core.
    pub cpu_percent: f64,
    /// The most processor time for promotions and splits of all processes together, percent of one core.
    pub promotion_cpu_percent: f64,
    /// Shortest time between two looks.
    pub interval_ms: u64,
    /// Saved processor time for a unit of work from which a measured gain counts, percent.
    pub min_gain_percent: f64,
    /// The length of a period of a measurement.
    pub measure_period_ms: u64,
    /// The time after which a measurement ends without an answer. A tenth of it is the most for a turn.
    pub measure_within_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            threshold_percent: 90,
            demote_below_percent: 20,
            unfragmented_threshold_percent: None,
            reclaim_percent: 0.0,
            files: false,
            settle_ms: 10_000,
            max_swapped_pages: 64,
            stall_percent: 5.0,
            slow_ms: 5,
            backoff_min_ms: 500,
            backoff_max_ms: 60_000,
            keep_available_percent: 5,
            keep_below_limit_percent: 10,
            keep_below_limit_mib: 16,
            pressure_percent: 10.0,
            compactions: 8,
            idle_penalty: 4.0,
            cpu_percent: 1.0,
            promotion_cpu_percent: 10.0,
            interval_ms: 5_000,
            min_gain_percent: 2.0,
            measure_period_ms: 500,
            measure_within_s: 90,
        }
    }
}

impl Settings {
    /// Checks that they make sense; the error names the setting that does not.
    pub fn check(&self) -> Result<()> {
        let percent = |value: f64| value > 0.0 && value <= 100.0;
        let threshold = |value: u8| (1..=100).contains(&value);
        let lowest = self.unfragmented_threshold_percent.unwrap_or(100).min(self.threshold_percent);
        let rules = [
            (threshold(self.threshold_percent), "threshold_percent is to be 1 to 100"),
            (
                self.unfragmented_threshold_percent.is_none_or(threshold),
                "unfragmented_threshold_percent is to be 1 to 100",
            ),
            (
                self.demote_below_percent < lowest,
                "demote_below_percent is to be below the thresholds of promotion",
            ),
            ((0.0..=100.0).contains(&self.reclaim_percent), "reclaim_percent is to be 0 to 100"),
            (percent(self.stall_percent), "stall_percent is to be above 0, 100 at most"),
            (percent(self.cpu_percent), "cpu_percent is to be above 0, 100 at most"),
            (
                percent(self.promotion_cpu_percent),
                "promotion_cpu_percent is to be above 0, 100 at most",
            ),
            (percent(self.pressure_percent), "pressure_percent is to be above 0, 100 at most"),
            (self.keep_available_percent <= 100, "keep_available_percent is to be 100 at most"),
            (self.keep_below_limit_percent <= 100, "keep_below_limit_percent is to be 100 at most"),
            (
                self.idle_penalty >= 1.0 && self.idle_penalty.is_finite(),
                "idle_penalty is to be 1 or more",
            ),
            (self.slow_ms > 0, "slow_ms is to be above 0"),
            (
                (1..=self.backoff_max_ms).contains(&self.backoff_min_ms),
                "backoff_min_ms is to be above 0, and backoff_max_ms no less",
            ),
            (
                (10..=3_600_000).contains(&self.interval_ms),
                "interval_ms is to be 10 to 3600000 (an hour)",
            ),
            (
                self.min_gain_percent > 0.0 && self.min_gain_percent < 100.0,
                "min_gain_percent is to be above 0 and below 100",
            ),
            (
                (20..=3_600_000).contains(&self.measure_period_ms),
                "measure_period_ms is to be 20 to 3600000 (an hour)",
            ),
            (
                (1..=86_400).contains(&self.measure_within_s),
                "measure_within_s is to be 1 to 86400 (a day)",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => {
                Err(Error::new(ErrorKind::Usage, "read the settings").because(*rule))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_make_sense_and_nonsense_is_named() {
        assert!(Settings::default().check().is_ok());
        let rejected = |change: fn(&mut Settings), name: &str| {
            let mut settings = Settings::default();
            change(&mut settings);
            let error = settings.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(name), "{error}");
        };
        rejected(|settings| settings.threshold_percent = 101, "threshold_percent");
        rejected(
            |settings| settings.unfragmented_threshold_percent = Some(15),
            "demote_below_percent",
        );
        rejected(|settings| settings.stall_percent = f64::NAN, "stall_percent");
        rejected(|settings| settings.idle_penalty = f64::INFINITY, "idle_penalty");
        rejected(|settings| settings.backoff_max_ms = 1, "backoff_max_ms");
    }
}
