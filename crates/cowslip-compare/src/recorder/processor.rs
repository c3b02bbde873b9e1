//! `/proc/stat`: the processors' time, and the scheduler's counters.

use super::reading::{Reading, TICKS, reading};
use crate::recording::MetricKind::{Counter, Gauge, Share};

/// The columns of its first line. Time of guests is part of `user` and `nice`.
const TIMES: [&str; 8] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];

pub(super) fn stat(text: &str, into: &mut Vec<Reading>) {
    let is_processor = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|character: char| character.is_ascii_digit()))
    };
    let processors = text.lines().filter(is_processor).count();
    for (name, rest) in text.lines().filter_map(|line| line.split_once(' ')) {
        let value = || rest.trim().parse().ok();
        match name {
            "cpu" => {
                into.extend(TIMES.iter().zip(rest.split_ascii_whitespace()).map(|(time, ticks)| {
                    let seconds = ticks.parse::<f64>().ok().map(|ticks| ticks / TICKS);
                    let of_one = seconds.map(|seconds| seconds / processors as f64);
                    reading(format!("cpu.{time}_share"), Share, of_one)
                }))
            }
            "ctxt" => into.push(reading("scheduler.context_switches", Counter, value())),
            "processes" => into.push(reading("scheduler.forks", Counter, value())),
            "procs_running" => into.push(reading("scheduler.runnable", Gauge, value())),
            "procs_blocked" => into.push(reading("scheduler.blocked", Gauge, value())),
            _ => {}
        }
    }
}

/// Ticks of all processes: user, nice and system.
pub(super) fn used(text: &str) -> Option<f64> {
    let all = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    all.split_ascii_whitespace().take(3).map(|ticks| ticks.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_one_processor() {
        let text = "cpu  100 0 200 300 400 0 1 2 50 0\ncpu0 50 0 0 0\ncpu1 50 0 0 0\nintr 5 1\nctxt 7\n\
            btime 1\nprocesses 9\nprocs_running 2\nprocs_blocked 1\n";
        assert_eq!(used(text), Some(300.0));
        let mut all = Vec::new();
        stat(text, &mut all);
        let all: Vec<_> = all
            .into_iter()
            .map(|(definition, value)| (definition.name, definition.kind, value.unwrap()))
            .collect();
        let wanted = [
            ("cpu.user_share", Share, 0.5),
            ("cpu.nice_share", Share, 0.0),
            ("cpu.system_share", Share, 1.0),
            ("cpu.idle_share", Share, 1.5),
            ("cpu.iowait_share", Share, 2.0),
            ("cpu.irq_share", Share, 0.0),
            ("cpu.softirq_share", Share, 0.005),
            ("cpu.steal_share", Share, 0.01),
            ("scheduler.context_switches", Counter, 7.0),
            ("scheduler.forks", Counter, 9.0),
            ("scheduler.runnable", Gauge, 2.0),
            ("scheduler.blocked", Gauge, 1.0),
        ];
        assert_eq!(all, wanted.map(|(name, kind, value)| (name.to_owned(), kind, value)));
    }
}
