//! A session's tally in Prometheus' text format.

use std::fmt::Write as _;

use cowslip_sys::process;

use crate::model::{ORDERS, System};
use crate::session::{ProcessTally, Tally};

/// What a session has seen and done, in Prometheus' text format.
pub fn text(tally: &Tally) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&ProcessTally) -> f64| {
        let _ = writeln!(out, "# HELP cowslip_promote_{name} {help}");
        let _ = writeln!(out, "# TYPE cowslip_promote_{name} {kind}");
        for (process, tally) in tally.processes.iter().filter(|(_, it)| !it.has_ended) {
            let (pid, label) = (process.pid, escaped(&tally.name));
            let value = value(tally);
            let _ =
                writeln!(out, "cowslip_promote_{name}{{pid=\"{pid}\",name=\"{label}\"}} {value}");
        }
    };
    family("promotions_total", "counter", "Regions made huge.", &|it| it.promotions as f64);
    family("splits_total", "counter", "Huge pages split.", &|it| it.splits as f64);
    family("freed_bytes_total", "counter", "Memory that splits gave back.", &|it| {
        it.freed_bytes as f64
    });
    family(
        "overtaken_total",
        "counter",
        "Actions that a fork or a release made obsolete.",
        &|it| it.overtaken as f64,
    );
    family("stall_seconds_total", "counter", "Time in which the kernel acted on it.", &|it| {
        it.stall_ns as f64 / 1e9
    });
    family("longest_stall_seconds", "gauge", "The longest of these times.", &|it| {
        it.longest_stall_ns as f64 / 1e9
    });
    family("resident_bytes", "gauge", "Its memory in RAM, of all kinds.", &|it| {
        it.resident_bytes as f64
    });
    family("huge_bytes", "gauge", "Its huge pages, those of arenas as well.", &|it| {
        (it.seen.huge_bytes + it.seen.arena_huge_bytes) as f64
    });
    family("anonymous_bytes", "gauge", "Its memory that could be huge.", &|it| {
        it.seen.anonymous_bytes as f64
    });
    family("arena_bytes", "gauge", "Memory of its arenas, as far as it is mapped.", &|it| {
        it.seen.arena_bytes as f64
    });
    family("bloat_bytes", "gauge", "Zero pages inside huge pages, where looked into.", &|it| {
        it.bloat_bytes as f64
    });
    optional(&mut out, tally);
    labelled(&mut out, tally);
    system(&mut out, &tally.system);
    let looks = tally.looks;
    let seconds = tally.look_cpu_ns as f64 / 1e9;
    let all_seconds = process::cpu_ns() as f64 / 1e9;
    let _ = write!(
        out,
        "# HELP cowslip_promote_looks_total Looks at all targets.\n\
         # TYPE cowslip_promote_looks_total counter\ncowslip_promote_looks_total {looks}\n\
         # HELP cowslip_promote_look_cpu_seconds_total Processor time of looking.\n\
         # TYPE cowslip_promote_look_cpu_seconds_total counter\n\
         cowslip_promote_look_cpu_seconds_total {seconds}\n\
         # HELP cowslip_promote_cpu_seconds_total Processor time of the promoter, all in all.\n\
         # TYPE cowslip_promote_cpu_seconds_total counter\n\
         cowslip_promote_cpu_seconds_total {all_seconds}\n"
    );
    out
}

/// What is not known of every process.
fn optional(out: &mut String, tally: &Tally) {
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&ProcessTally) -> Option<f64>| {
        let _ = writeln!(out, "# HELP cowslip_promote_{name} {help}");
        let _ = writeln!(out, "# TYPE cowslip_promote_{name} gauge");
        for (process, tally) in tally.processes.iter().filter(|(_, it)| !it.has_ended) {
            let (pid, label) = (process.pid, escaped(&tally.name));
            if let Some(value) = value(tally) {
                let labels = format!("pid=\"{pid}\",name=\"{label}\"");
                let _ = writeln!(out, "cowslip_promote_{name}{{{labels}}} {value}");
            }
        }
    };
    gauge(
        "coverage_ratio",
        "The huge part of its memory that could be huge, if there is any.",
        &|it| it.seen.ratio(),
    );
    gauge("heat_ratio", "Accesses of its memory lately, where known.", &|it| {
        it.heat_percent.map(|percent| f64::from(percent) / 100.0)
    });
    gauge("limit_room_bytes", "What its control group may have more, if it is limited.", &|it| {
        it.limits.iter().map(|limit| limit.room_bytes as f64).min_by(f64::total_cmp)
    });
}

/// What has a label besides the process.
fn labelled(out: &mut String, tally: &Tally) {
    let running = || tally.processes.iter().filter(|(_, it)| !it.has_ended);
    out.push_str("# HELP cowslip_promote_regions Regions by what is done with them and why.\n");
    out.push_str("# TYPE cowslip_promote_regions gauge\n");
    for (process, tally) in running() {
        let (pid, name) = (process.pid, escaped(&tally.name));
        for (reason, count) in &tally.regions {
            let labels = format!("pid=\"{pid}\",name=\"{name}\",reason=\"{reason}\"");
            let _ = writeln!(out, "cowslip_promote_regions{{{labels}}} {count}");
        }
    }
    out.push_str("# HELP cowslip_promote_refusals_total Refusals of the kernel by error number.\n");
    out.push_str("# TYPE cowslip_promote_refusals_total counter\n");
    for (process, tally) in running() {
        let (pid, name) = (process.pid, escaped(&tally.name));
        for (errno, count) in &tally.refusals {
            let labels = format!("pid=\"{pid}\",name=\"{name}\",errno=\"{errno}\"");
            let _ = writeln!(out, "cowslip_promote_refusals_total{{{labels}}} {count}");
        }
    }
}

/// The state of the machine.
fn system(out: &mut String, system: &System) {
    let mut gauge = |name: &str, help: &str, values: &[(String, f64)]| {
        let _ = writeln!(out, "# HELP cowslip_promote_system_{name} {help}");
        let _ = writeln!(out, "# TYPE cowslip_promote_system_{name} gauge");
        for (labels, value) in values {
            let _ = writeln!(out, "cowslip_promote_system_{name}{labels} {value}");
        }
    };
    let one = |value: f64| [(String::new(), value)];
    gauge(
        "available_bytes",
        "Memory that programs can have without swapping.",
        &one(system.available_bytes as f64),
    );
    gauge(
        "free_huge_pages",
        "Free memory in pieces of a huge page.",
        &one(system.free_huge_pages as f64),
    );
    gauge(
        "pressure_ratio",
        "Time in which some task waited for memory, of the last ten seconds.",
        &one(system.pressure_percent / 100.0),
    );
    let orders: Vec<_> = (0..ORDERS)
        .map(|order| {
            let ratio = f64::from(system.unusable_percent(order)) / 100.0;
            (format!("{{order=\"{order}\"}}"), ratio)
        })
        .collect();
    gauge("unusable_ratio", "Free memory in pieces smaller than the order's.", &orders);
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ProcessId;
    use crate::policy::Reason;

    #[test]
    fn labels_are_escaped_and_those_that_ended_are_gone() {
        let mut tally = Tally::default();
        let process = |name: &str, has_ended| ProcessTally {
            name: name.into(),
            promotions: 3,
            regions: [(Reason::Shared, 2)].into(),
            has_ended,
            ..ProcessTally::default()
        };
        let id = |pid| ProcessId { pid, start_ticks: 1 };
        tally.processes.insert(id(7), process("a\"b\\", false));
        tally.processes.insert(id(8), process("gone", true));
        let text = text(&tally);
        let labels = r#"{pid="7",name="a\"b\\""#;
        assert!(text.contains(&format!("promotions_total{labels}}} 3\n")), "{text}");
        assert!(text.contains(&format!("regions{labels},reason=\"shared\"}} 2\n")), "{text}");
        assert!(!text.contains("gone"), "{text}");
    }
}
