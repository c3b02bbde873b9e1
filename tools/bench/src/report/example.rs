//! A small report with one of everything, for the tests of the writers.

use serde_json::{Map, Value, json};

use super::latency::Latencies;
use super::results::{HostState, Report, Row, Series};

const MIB: u64 = 1 << 20;

pub(super) fn report() -> Report {
    let mut report = Report::new("cow", object(json!({ "memory_bytes": 1024 * MIB, "saves": 3 })));
    report.machine = object(json!({
        "date": "2026-01-31T12:00:00Z", "kernel_release": "6.12.0", "cpu_model": "Example CPU",
        "cpus": 8, "memory_bytes": 64_u64 << 30, "thp_enabled": "madvise", "cpu_governor": null,
    }));
    for (system, scale) in [("cowslip", 1), ("fork-4k", 9), ("fork-hugetlb", 78)] {
        let mut latencies = Latencies::new();
        (1..=1_000).for_each(|step| latencies.record_ns(step * step * scale));
        latencies.push(&mut report, system, "first_write", Some(64 * MIB), Some("sparse"));
    }
    report.skip("uffd-wp", "first_write", "vm.unprivileged_userfaultfd is 0 and this user lacks CAP_SYS_PTRACE: sudo sysctl vm.unprivileged_userfaultfd=1");
    for (system, scale) in
        [("cowslip", 0.002), ("fork-4k", 1.0), ("fork-thp", 0.08), ("Lin 2022", 1.3)]
    {
        for size in [64, 256, 1024, 4096] {
            let pause = 20_000.0 + size as f64 * 9_000.0 * scale;
            let row = Row::new(system, "pause", "p50", pause, "ns").size_bytes(size * MIB);
            report.row(row.n(64));
        }
    }
    report.row(Row::new("cowslip", "private_memory", "value", 12.5 * MIB as f64, "bytes"));
    let host = HostState { touch_ns_per_page: 2_400.0, stolen_share: 0.07, host_fit: false };
    let row = Row::new("fork-4k", "private_memory", "value", 25.0 * MIB as f64, "bytes");
    report.row(Row { host: Some(host), ..row });
    let system = "fork-hugetlb";
    let ratio = report.find(system, "first_write", "p50", Some(64 * MIB), Some("sparse"));
    report.ratio_at_least(
        "first_write_p50_hugetlb_over_cowslip",
        ratio.map(|ns| ns / 250_000.0),
        50.0,
    );
    report.ratio_at_most("image_bytes_over_memory_bytes", Some(1.0523), 1.05);
    report.ratio("promoted_over_expected", None, Some(0.95), Some(1.05));
    report.series.extend([series("cowslip", 1.5, 0.002), series("fork-thp", 60.0, 0.4)]);
    report.notes.push("interrupted after 3 of 5 saves".to_owned());
    report
}

/// Requests of about 20 µs, slower by `factor` during three saves of `save` seconds.
fn series(system: &str, factor: f64, save: f64) -> Series {
    let marks: Vec<_> = (1..=3)
        .map(|at| (f64::from(at) * 2.0, f64::from(at) * 2.0 + save, format!("save {at}")))
        .collect();
    let point = |step: u32| {
        let time = f64::from(step) / 1_000.0;
        let noise = 1.0 + f64::from(step.wrapping_mul(2_654_435_761) >> 24) / 128.0;
        let during = marks.iter().any(|(from, to, _)| (*from..*to).contains(&time));
        (time, 20_000.0 * noise * if during { factor * noise } else { 1.0 })
    };
    let points = (0..8_000).map(point).collect();
    Series { system: system.to_owned(), metric: "request".to_owned(), unit: "ns", points, marks }
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("the caller wrote braces").clone()
}
