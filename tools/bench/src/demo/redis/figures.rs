//! The figures of a save: their names in the report, their titles for people, and how several saves become one.

use super::running_server::{Measured, Save};

/// How the values of several saves become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stat {
    P50,
    Mean,
    Min,
    Max,
    /// Over all saves, including those with still writers.
    Sum,
}

impl Stat {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Sum => "sum",
        }
    }

    pub(crate) fn compute(self, values: impl Iterator<Item = f64>) -> Option<f64> {
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        let sum: f64 = values.iter().sum();
        match self {
            Self::P50 => values.get(values.len() / 2).copied(),
            Self::Mean => (!values.is_empty()).then(|| sum / values.len() as f64),
            Self::Min => values.first().copied(),
            Self::Max => values.last().copied(),
            Self::Sum => (!values.is_empty()).then_some(sum),
        }
    }
}

/// A number that each save has.
pub(crate) struct Figure {
    pub(crate) metric: &'static str,
    pub(crate) title: &'static str,
    /// The unit of the report's row.
    pub(crate) unit: &'static str,
    pub(crate) of: fn(&Save) -> f64,
    /// The first is the one in the sentences.
    pub(crate) stats: &'static [Stat],
}

impl Figure {
    /// Returns true for a count that must be right in every save, including those with still writers.
    pub(crate) fn is_a_count(&self) -> bool {
        self.stats.contains(&Stat::Sum)
    }

    /// The value over all of its saves.
    pub(crate) fn of_all(&self, measured: &Measured, stat: Stat) -> Option<f64> {
        stat.compute(self.saves(measured).map(self.of))
    }

    /// The saves that it covers.
    pub(crate) fn saves<'a>(&self, measured: &'a Measured) -> impl Iterator<Item = &'a Save> {
        let all = self.is_a_count().then_some(&measured.saves);
        let busy = all.is_none().then(|| measured.busy_saves());
        all.into_iter().flatten().chain(busy.into_iter().flatten())
    }
}

const fn figure(
    metric: &'static str,
    title: &'static str,
    unit: &'static str,
    of: fn(&Save) -> f64,
    stats: &'static [Stat],
) -> Figure {
    Figure { metric, title, unit, of, stats }
}

pub(crate) const HELD_UP: Figure = figure(
    "held_up_by_bgsave",
    "slowest request under way at BGSAVE",
    "ns",
    |save| save.held_up.map_or(0.0, |(from, to)| (to - from) as f64),
    &[Stat::Max, Stat::P50],
);
pub(crate) const FORK: Figure =
    figure("fork", "fork", "ns", |save| save.fork_ns as f64, &[Stat::Max, Stat::P50]);
pub(crate) const DURATION: Figure =
    figure("save_duration", "time of a save", "ns", |save| save.duration_ns as f64, &[Stat::Mean]);
pub(crate) const EXTRA: Figure = figure(
    "extra_bytes",
    "memory more while it saves",
    "bytes",
    |save| save.extra_bytes as f64,
    &[Stat::Max],
);
pub(crate) const HUGE_AFTER: Figure = figure(
    "huge_coverage_after",
    "memory on huge pages after the save",
    "ratio",
    |save| save.mapped_after.coverage(),
    &[Stat::Min],
);
pub(crate) const HUGE_BEFORE: Figure = figure(
    "huge_coverage_before",
    "memory on huge pages before the save",
    "ratio",
    |save| save.mapped_before.coverage(),
    &[Stat::Max, Stat::Min],
);
pub(crate) const RESIDENT_AFTER: Figure = figure(
    "resident_bytes_after",
    "resident memory after the save",
    "bytes",
    |save| save.mapped_after.resident_bytes as f64,
    &[Stat::Max],
);
pub(crate) const WRITES: [Figure; 3] = [
    figure("ops_before_save", "writes before it", "1/s", |s| s.quiet.ops(), &[Stat::Mean]),
    figure("ops_during_save", "writes during it", "1/s", |s| s.during.ops(), &[Stat::Mean]),
    figure("ops_after_save", "writes after it", "1/s", |s| s.after.ops(), &[Stat::Mean]),
];
pub(crate) const CPU: [Figure; 3] = [
    figure(
        "server_cpu_a_write_before_save",
        "processor time a write before it",
        "ns",
        |save| save.quiet.cpu_ns_a_request(),
        &[Stat::Mean],
    ),
    figure(
        "server_cpu_a_write_during_save",
        "processor time a write during it",
        "ns",
        |save| save.during.cpu_ns_a_request(),
        &[Stat::Mean],
    ),
    figure(
        "server_cpu_a_write_after_save",
        "processor time a write after it",
        "ns",
        |save| save.after.cpu_ns_a_request(),
        &[Stat::Mean],
    ),
];

/// All figures.
#[rustfmt::skip]
pub(crate) const FIGURES: [Figure; 24] = {
    let [writes_before, writes_during, writes_after] = WRITES;
    let [cpu_before, cpu_during, cpu_after] = CPU;
    [
        HELD_UP, FORK, writes_before, writes_during, writes_after, cpu_before, cpu_during, cpu_after, DURATION, EXTRA,
        figure("cow_bytes", "copies, as Redis counts them", "bytes", |s| s.cow_bytes as f64, &[Stat::Mean]),
        figure("huge_mapped_bytes_before", "on huge pages before the save", "bytes", |s| s.mapped_before.huge_bytes as f64, &[Stat::Min]),
        figure("huge_mapped_bytes_after", "on huge pages after the save", "bytes", |s| s.mapped_after.huge_bytes as f64, &[Stat::Min]),
        figure("resident_bytes_before", "resident memory before the save", "bytes", |s| s.mapped_before.resident_bytes as f64, &[Stat::Max]),
        RESIDENT_AFTER, HUGE_BEFORE, HUGE_AFTER,
        figure("verified_saves", "saves that are exact", "count", |s| f64::from(u8::from(s.is_exact())), &[Stat::Sum]),
        figure("wrong_keys", "wrong values in the save", "count", |s| s.saved.wrong_keys as f64, &[Stat::Sum]),
        figure("missing_keys", "keys missing in the save", "count", |s| s.saved.missing_keys as f64, &[Stat::Sum]),
        figure("extra_keys", "keys too many in the save", "count", |s| s.saved.extra_keys as f64, &[Stat::Sum]),
        figure("lost_updates", "lost updates in the server", "count", |s| (s.live.wrong_keys + s.live.missing_keys) as f64, &[Stat::Sum]),
        figure("live_extra_keys", "keys too many in the server", "count", |s| s.live.extra_keys as f64, &[Stat::Sum]),
        figure("slowest_write_during_save", "slowest write during the save", "ns", |s| s.during.latencies.max_ns() as f64, &[Stat::Max]),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_saves_become_one_number() {
        let of = |stat: Stat| stat.compute([5.0, 1.0, 3.0].into_iter());
        let all = [Stat::P50, Stat::Mean, Stat::Min, Stat::Max, Stat::Sum].map(of);
        assert_eq!(all, [3.0, 3.0, 1.0, 5.0, 9.0].map(Some));
        assert_eq!(Stat::Mean.compute([].into_iter()), None);
    }
}
