//! A session's tally in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use cowslip_sys::process;

use crate::model::{ORDERS, System};
use crate::session::{ProcessTally, Tally};

/// A metric of each process: its name, kind and help, and its value if known.
type OfProcess = (&'static str, &'static str, &'static str, fn(&ProcessTally) -> Option<f64>);

const OF_PROCESSES: [OfProcess; 22] = [
    ("promotions_total", COUNTER, "Regions made huge.", |tally| Some(tally.promotions as f64)),
    ("splits_total", COUNTER, "Huge pages split.", |tally| Some(tally.splits as f64)),
    ("freed_bytes_total", COUNTER, "Memory that splits gave back.", |tally| {
        Some(tally.freed_bytes as f64)
    }),
    ("overtaken_total", COUNTER, "Actions that a fork or a release made obsolete.", |tally| {
        Some(tally.overtaken as f64)
    }),
    ("stall_seconds_total", COUNTER, "Time in which the kernel acted on it.", |tally| {
        Some(tally.stall_ns as f64 / 1e9)
    }),
    ("longest_stall_seconds", GAUGE, "The longest of these times.", |tally| {
        Some(tally.longest_stall_ns as f64 / 1e9)
    }),
    ("resident_bytes", GAUGE, "Its memory in RAM, of all kinds.", |tally| {
        Some(tally.resident_bytes as f64)
    }),
    ("huge_bytes", GAUGE, "Its huge pages, those of arenas as well.", |tally| {
        Some((tally.seen.huge_bytes + tally.seen.arena_huge_bytes) as f64)
    }),
    ("anonymous_bytes", GAUGE, "Its private anonymous memory.", |tally| {
        Some(tally.seen.anonymous_bytes as f64)
    }),
    ("fitting_bytes", GAUGE, "The part of it in mappings with room for a huge page.", |tally| {
        Some(tally.seen.fitting_bytes as f64)
    }),
    ("arena_bytes", GAUGE, "Memory of its arenas, as far as it is mapped.", |tally| {
        Some(tally.seen.arena_bytes as f64)
    }),
    ("shmem_bytes", GAUGE, "Other shared memory, as far as it is mapped.", |tally| {
        Some(tally.seen.shmem_bytes as f64)
    }),
    ("shmem_huge_bytes", GAUGE, "Huge pages of other shared memory.", |tally| {
        Some(tally.seen.shmem_huge_bytes as f64)
    }),
    ("text_bytes", GAUGE, "Text of programs and libraries, with `files`.", |tally| {
        Some(tally.seen.text_bytes as f64)
    }),
    ("text_huge_bytes", GAUGE, "Huge pages of text.", |tally| {
        Some(tally.seen.text_huge_bytes as f64)
    }),
    ("lazily_freed_bytes", GAUGE, "Memory given back by MADV_FREE, where asked for.", |tally| {
        Some(tally.lazily_freed_bytes as f64)
    }),
    ("bloat_bytes", GAUGE, "Zero pages inside huge pages, where looked into.", |tally| {
        Some(tally.bloat_bytes as f64)
    }),
    (
        "coverage_ratio",
        GAUGE,
        "The huge part of its private anonymous memory and of its arenas.",
        |tally| tally.seen.ratio(),
    ),
    (
        "fitting_coverage_ratio",
        GAUGE,
        "The huge part of what fits a huge page, if anything does.",
        |tally| tally.seen.fitting_ratio(),
    ),
    ("heat_ratio", GAUGE, "Accesses of its memory lately, where known.", |tally| {
        tally.heat_percent.map(|percent| f64::from(percent) / 100.0)
    }),
    (
        "measured_gain_ratio",
        GAUGE,
        "Processor time for a unit of work that huge pages save.",
        |tally| tally.measured?.change_percent.map(|change| -change.value / 100.0),
    ),
    (
        "limit_room_bytes",
        GAUGE,
        "What its control group may have more, if it is limited.",
        |tally| tally.limits.iter().map(|limit| limit.room_bytes as f64).min_by(f64::total_cmp),
    ),
];

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// A session's results in Prometheus' text format.
pub fn text(tally: &Tally) -> String {
    let mut out = Exposition(String::new());
    for (name, kind, help, value) in OF_PROCESSES {
        out.family(name, kind, help);
        for (labels, tally) in running(tally) {
            if let Some(value) = value(tally) {
                out.sample(name, &labels, value);
            }
        }
    }
    out.family("regions", GAUGE, "Regions by what is done with them and why.");
    for (labels, tally) in running(tally) {
        for (reason, count) in &tally.regions {
            out.sample("regions", &format!("{labels},reason=\"{reason}\""), count);
        }
    }
    out.family("refusals_total", COUNTER, "Refusals of the kernel by error number.");
    for (labels, tally) in running(tally) {
        for (errno, count) in &tally.refusals {
            out.sample("refusals_total", &format!("{labels},errno=\"{errno}\""), count);
        }
    }
    sums(&mut out, tally, "group", "By control group", |process| process.group.as_deref());
    sums(&mut out, tally, "name", "By name of the program", |process| Some(&process.name));
    system(&mut out, &tally.system);
    let help = "Steps of reclaim in control groups of targets.";
    out.single("reclaims_total", COUNTER, help, tally.reclaims);
    let help = "Memory that the groups held less after them.";
    out.single("reclaimed_bytes_total", COUNTER, help, tally.reclaimed_bytes);
    out.single("looks_total", COUNTER, "Looks at all targets.", tally.looks);
    let seconds = tally.look_cpu_ns as f64 / 1e9;
    out.single("look_cpu_seconds_total", COUNTER, "Processor time of looking.", seconds);
    let seconds = process::cpu_ns() as f64 / 1e9;
    let help = "Processor time of the promoter, all in all.";
    out.single("cpu_seconds_total", COUNTER, help, seconds);
    out.family("build_info", GAUGE, "The version of the promoter; always 1.");
    out.sample("build_info", concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""), 1);
    out.0
}

/// The processes that have not ended, each with its labels.
fn running(tally: &Tally) -> impl Iterator<Item = (String, &ProcessTally)> {
    tally.processes.iter().filter(|(_, tally)| !tally.has_ended).map(|(process, tally)| {
        (format!("pid=\"{}\",name=\"{}\"", process.pid, escaped(&tally.name)), tally)
    })
}

/// The sums for the processes that have the same value of a label, which outlives them.
fn sums(
    out: &mut Exposition,
    tally: &Tally,
    label: &str,
    title: &str,
    of_process: impl Fn(&ProcessTally) -> Option<&str>,
) {
    let is_sum = |name: &str| name.ends_with("_total") || name.ends_with("_bytes");
    let summed =
        OF_PROCESSES.iter().filter(|(name, ..)| is_sum(name) && *name != "limit_room_bytes");
    for (name, kind, help, value) in summed {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        // A counter keeps the part of processes that have ended.
        let counted = |tally: &&ProcessTally| *kind == COUNTER || !tally.has_ended;
        for process in tally.all().filter(counted) {
            if let (Some(label), Some(value)) = (of_process(process), value(process)) {
                *sums.entry(label).or_default() += value;
            }
        }
        let name = format!("{label}_{name}");
        out.family(&name, kind, &format!("{title}: {help}"));
        for (value, sum) in sums {
            out.sample(&name, &format!("{label}=\"{}\"", escaped(value)), sum);
        }
    }
}

/// The state of the machine.
fn system(out: &mut Exposition, system: &System) {
    out.single(
        "system_available_bytes",
        GAUGE,
        "Memory that programs can have without swapping.",
        system.available_bytes,
    );
    out.single(
        "system_free_huge_pages",
        GAUGE,
        "Free memory in pieces of a huge page.",
        system.free_huge_pages,
    );
    out.single(
        "system_pressure_ratio",
        GAUGE,
        "Time in which some task waited for memory, of the last ten seconds.",
        system.pressure_percent / 100.0,
    );
    let name = "system_unusable_ratio";
    out.family(name, GAUGE, "Free memory in pieces smaller than the order's.");
    for order in 0..ORDERS {
        let ratio = f64::from(system.unusable_percent(order)) / 100.0;
        out.sample(name, &format!("order=\"{order}\""), ratio);
    }
}

/// Lines of the format.
struct Exposition(String);

impl Exposition {
    /// The lines before the samples of a metric.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP cowslip_promote_{name} {help}");
        let _ = writeln!(self.0, "# TYPE cowslip_promote_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "cowslip_promote_{name}{{{labels}}} {value}");
    }

    /// A metric with one sample and no label.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        let _ = writeln!(self.0, "cowslip_promote_{name} {value}");
    }
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
    fn the_processes_of_a_control_group_and_those_of_a_name_are_summed() {
        let mut tally = Tally::default();
        let process = |group: Option<&str>, promotions, has_ended| ProcessTally {
            name: "web".into(),
            promotions,
            resident_bytes: 4096,
            group: group.map(str::to_owned),
            has_ended,
            ..ProcessTally::default()
        };
        let all = [("a", 1, false), ("a", 2, true), ("b.slice", 4, false)];
        for (pid, (group, promotions, has_ended)) in (1..).zip(all) {
            let id = ProcessId { pid, start_ticks: 1 };
            tally.processes.insert(id, process(Some(group), promotions, has_ended));
        }
        let single = ProcessId { pid: 9, start_ticks: 1 };
        tally.processes.insert(single, process(None, 8, false));
        let text = text(&tally);
        let has = |line: &str| text.contains(&format!("cowslip_promote_group_{line}\n"));
        assert!(
            has("promotions_total{group=\"a\"} 3") && has("resident_bytes{group=\"a\"} 4096"),
            "{text}"
        );
        assert!(has("promotions_total{group=\"b.slice\"} 4"), "{text}");
        assert_eq!(text.matches("group_promotions_total{").count(), 2, "{text}");
        let has = |line: &str| text.contains(&format!("cowslip_promote_name_{line}\n"));
        assert!(has("promotions_total{name=\"web\"} 15"), "{text}");
        assert!(has("resident_bytes{name=\"web\"} 12288"), "{text}");
    }

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
        let gone: Vec<&str> = text.lines().filter(|line| line.contains("gone")).collect();
        let by_name = |line: &&str| line.starts_with("cowslip_promote_name_");
        assert!(gone.iter().all(by_name), "{text}");
    }
}
