//! A store's saves as rows and series of the report; metrics are named as for Redis.

use cowslip_report::{Latencies, Report, Row, Series};

use super::consistency::Violations;
use super::running_store::{RunningStore, Save, Writer};

type Figure = (&'static str, &'static str, fn(&Save) -> f64, &'static str);

/// Figures of the saves under load: metric, unit, value, statistic of all saves.
#[rustfmt::skip]
const COSTS: [Figure; 6] = [
    ("ops_before_save", "1/s", |s| s.log.quiet.n() as f64 / (s.span.0 - s.began), "mean"),
    ("ops_during_save", "1/s", |s| s.log.during.n() as f64 / s.duration.as_secs_f64(), "mean"),
    ("save_duration", "ns", |s| s.duration.as_nanos() as f64, "mean"),
    ("cow_bytes", "bytes", |s| s.cow_bytes as f64, "mean"),
    ("huge_mapped_bytes_before", "bytes", |s| s.mapped_before.huge_bytes as f64, "min"),
    ("huge_mapped_bytes_after", "bytes", |s| s.mapped_after.huge_bytes as f64, "min"),
];

/// Counts of all saves, which must be right even with a still writer.
#[rustfmt::skip]
const COUNTS: [Figure; 6] = [
    ("verified_saves", "count", |s| f64::from(u8::from(s.saved == Violations::default())), "sum"),
    ("wrong_keys", "count", |s| s.saved.wrong_keys as f64, "sum"),
    ("missing_keys", "count", |s| s.saved.missing_keys as f64, "sum"),
    ("extra_keys", "count", |s| s.saved.extra_keys as f64, "sum"),
    ("lost_updates", "count", |s| (s.live.wrong_keys + s.live.missing_keys) as f64, "sum"),
    ("live_extra_keys", "count", |s| s.live.extra_keys as f64, "sum"),
];

/// Adds one store: a summary without variant, each save under its label, and the latencies over
/// time.
pub(crate) fn push(report: &mut Report, store: &RunningStore, size_bytes: u64) {
    let name = store.name;
    let all: Vec<_> = store.saves.iter().collect();
    let busy: Vec<_> = all.iter().copied().filter(|save| save.writer == Writer::Busy).collect();

    let (mut pauses, mut quiet, mut during) =
        (Latencies::new(), Latencies::new(), Latencies::new());
    for save in &busy {
        pauses.record(save.paused);
        quiet.merge(&save.log.quiet);
        during.merge(&save.log.during);
        let value = save.paused.as_nanos() as f64;
        let row = Row::new(name, "fork", "value", value, "ns").size_bytes(size_bytes);
        report.row(row.variant(save.label.as_str()));
    }
    let latencies = [
        ("fork", &pauses),
        ("set_latency_before_save", &quiet),
        ("set_latency_during_save", &during),
    ];
    for (metric, latencies) in latencies {
        latencies.push(report, name, metric, Some(size_bytes), None);
    }
    COSTS.iter().for_each(|figure| push_figure(report, name, size_bytes, figure, &busy));
    COUNTS.iter().for_each(|figure| push_figure(report, name, size_bytes, figure, &all));
    let failed = store.failed_saves as f64;
    report.row(Row::new(name, "failed_saves", "sum", failed, "count").size_bytes(size_bytes));

    let peaks = |save: &&Save| {
        let began = save.began;
        save.log.peaks().map(move |(s, ns)| (began + s, ns)).collect::<Vec<_>>()
    };
    report.series.push(Series {
        system: name.to_owned(),
        metric: "set_latency_max".to_owned(),
        unit: "ns",
        points: busy.iter().flat_map(peaks).filter(|point| point.1 > 0.0).collect(),
        marks: busy.iter().map(|save| (save.span.0, save.span.1, save.label.clone())).collect(),
    });
}

fn push_figure(
    report: &mut Report,
    name: &str,
    size_bytes: u64,
    &(metric, unit, of, stat): &Figure,
    saves: &[&Save],
) {
    let row = |stat, value| Row::new(name, metric, stat, value, unit).size_bytes(size_bytes);
    let values: Vec<_> = saves.iter().map(|save| of(save)).collect();
    let sum: f64 = values.iter().sum();
    let one = match stat {
        _ if values.is_empty() => None,
        "sum" => Some(sum),
        "min" => values.iter().copied().reduce(f64::min),
        _ => Some(sum / values.len() as f64),
    };
    if let Some(one) = one {
        report.row(row(stat, one).n(values.len() as u64));
    }
    for (save, value) in saves.iter().zip(values) {
        report.row(row("value", value).variant(save.label.as_str()));
    }
}
