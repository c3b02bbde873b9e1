//! Everyday words for metrics, their changes and parts of the time.

use cowslip_compare::{Cause, Certainty, Row, TimePart};

use super::format;

pub(super) fn called(part: TimePart) -> &'static str {
    match part {
        TimePart::User => "user time",
        TimePart::System => "system time",
        TimePart::Running => "processor time",
        TimePart::ProcessorWait => "waiting for a processor",
        TimePart::DiskWait => "waiting for a disk",
        TimePart::LockWait => "waiting for locks",
        TimePart::Asleep => "being asleep",
        TimePart::Overlap => "threads at once, counted twice",
        TimePart::Unexplained => "not explained",
        TimePart::Wall => "wall time",
        TimePart::NotRunning => "waiting",
    }
}

pub(super) fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [word] => word.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Counters that one sentence names.
pub(super) const MOST: usize = 2;

/// The changes of the first causes.
pub(in crate::commands::compare) fn counters(causes: &[Cause]) -> String {
    let all = causes.iter().take(MOST).map(|cause| {
        let perhaps = if cause.certainty == Certainty::Perhaps { "perhaps " } else { "" };
        perhaps.to_owned() + &change_of(&cause.counter, cause.means)
    });
    listed(&all.collect::<Vec<_>>())
}

pub(super) fn change(row: &Row) -> String {
    change_of(&row.metric, row.means)
}

fn change_of(metric: &str, (good, bad): (f64, f64)) -> String {
    let name = name(metric);
    let value = |value| format::value(metric, value);
    let verb = if bad > good { "rose" } else { "fell" };
    let change = (bad - good) / good.abs();
    match good {
        _ if bad == 0.0 => format!("{name} {verb} to 0 (from {})", value(good)),
        0.0 => format!("{name} {verb} from 0 to {}", value(bad)),
        _ if metric.ends_with("_share") || change.abs() >= 100.0 => {
            format!("{name} {verb} from {} to {}", value(good), value(bad))
        }
        _ => {
            let by = format::percent(change);
            format!("{name} {verb} by {}", by.trim_start_matches(['+', '-']))
        }
    }
}

/// A metric's name in everyday words; a name of the kernel's stays unchanged.
pub(in crate::commands::compare) fn name(metric: &str) -> String {
    let (of_process, rest) = match metric.split_once('.') {
        Some(("rusage", rest)) => ("", rest),
        Some(("process", rest)) => ("the command's ", rest),
        Some(("vmstat", rest)) => return rest.to_owned(),
        Some(("cpu", rest)) => ("the processors' ", rest),
        Some(("calls", call)) => {
            return match call.strip_suffix("_seconds") {
                Some(call) => format!("the time of {call} calls"),
                None => format!("{call} calls"),
            };
        }
        Some(("others", rest)) => ("other processes' ", rest),
        _ if metric == "interrupts.TLB" => return "TLB shootdowns".to_owned(),
        Some(_) => return metric.to_owned(),
        None => ("", metric),
    };
    let (rest, rate) = rest.strip_suffix("/s").map_or((rest, ""), |rest| (rest, " a second"));
    let phrase = match rest.strip_suffix("_seconds").or(rest.strip_suffix("_share")) {
        Some("overlap") => "time of threads beside each other".to_owned(),
        Some(time) => format!("{time} time"),
        None => rest.strip_suffix("_bytes").unwrap_or(rest).to_owned(),
    };
    format!("{of_process}{}{rate}", phrase.replace(['_', '.'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_said_as_people_do() {
        for (metric, wanted) in [
            ("rusage.system_seconds", "system time"),
            ("process.minor_faults/s", "the command's minor faults a second"),
            ("cpu.iowait_share", "the processors' iowait time"),
            ("others.cpu_share", "other processes' cpu time"),
            ("vmstat.pswpin/s", "pswpin/s"),
            ("process.rss_bytes", "the command's rss"),
            ("process.overlap_seconds", "the command's time of threads beside each other"),
            ("disk.vda.reads", "disk.vda.reads"),
            ("calls.newfstatat", "newfstatat calls"),
            ("calls.fsync_seconds", "the time of fsync calls"),
        ] {
            assert_eq!(name(metric), wanted);
        }
    }
}
