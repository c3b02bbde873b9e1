//! The sentence that a comparison begins with: what most likely made the difference.

use cowslip_compare::{Comparison, Row, Verdict};

use super::format;

/// What a run took as a whole, which is what somebody complains of, not why.
const OUTCOME: &str = "wall_seconds";

/// What became of the time, and of what differs, and by more than `relevant` (a part of the good mean), what rose and
/// what fell most clearly.
pub(super) fn sentence(comparison: &Comparison, relevant: f64) -> String {
    let differing: Vec<&Row> = comparison
        .rows
        .iter()
        .filter(|row| row.verdict == Verdict::Differs && is_relevant(row, relevant))
        .collect();
    let outcome = differing.iter().find(|row| row.metric == OUTCOME).map(|row| change(row));
    let clearest = |is_rise: bool| {
        let rows = differing.iter().filter(|row| row.metric != OUTCOME);
        let rows = rows.filter(|row| (row.means.1 > row.means.0) == is_rise);
        rows.max_by(|a, b| clearness(a).total_cmp(&clearness(b)))
    };
    let mut clearest: Vec<&&Row> = [true, false].into_iter().filter_map(clearest).collect();
    clearest.sort_by(|a, b| clearness(b).total_cmp(&clearness(a)));
    let causes = clearest.iter().map(|row| change(row)).collect::<Vec<_>>().join("; ");
    let percent = format::percent(relevant);
    let percent = percent.trim_start_matches('+');
    match (outcome, causes.is_empty()) {
        (Some(outcome), true) => {
            format!("{outcome}, and nothing else differs by more than {percent}")
        }
        (Some(outcome), false) => format!("{outcome}; what else differs most clearly: {causes}"),
        (None, false) => format!("what differs most clearly: {causes}"),
        (None, true) if comparison.differs() => format!("nothing differs by more than {percent}"),
        (None, true) => "nothing is shown to differ".to_owned(),
    }
}

fn clearness(row: &Row) -> f64 {
    row.t_or_sign().abs()
}

/// A change from nought is one without bounds.
fn is_relevant(row: &Row, relevant: f64) -> bool {
    row.change.is_none_or(|change| change.value.abs() >= relevant)
}

fn change(row: &Row) -> String {
    let (good, bad) = row.means;
    let name = name(&row.metric);
    let value = |value| format::value(&row.metric, value);
    let verb = if bad > good { "rose" } else { "fell" };
    match row.change {
        _ if bad == 0.0 => format!("{name} {verb} to 0 (from {})", value(good)),
        Some(change) if row.metric.ends_with("_share") || change.value.abs() >= 100.0 => {
            format!("{name} {verb} from {} to {}", value(good), value(bad))
        }
        Some(change) => {
            let by = format::percent(change.value);
            format!("{name} {verb} by {}", by.trim_start_matches(['+', '-']))
        }
        None => format!("{name} {verb} from 0 to {}", value(bad)),
    }
}

/// A metric's name as people say it; a name of the kernel's stays as it is.
fn name(metric: &str) -> String {
    let (of_process, rest) = match metric.split_once('.') {
        Some(("rusage", rest)) => ("", rest),
        Some(("process", rest)) => ("the command's ", rest),
        Some(("vmstat", rest)) => return rest.to_owned(),
        Some(("cpu", rest)) => ("the processors' ", rest),
        Some(_) => return metric.to_owned(),
        None => ("", metric),
    };
    let (rest, rate) = rest.strip_suffix("/s").map_or((rest, ""), |rest| (rest, " a second"));
    let said = match rest.strip_suffix("_seconds").or(rest.strip_suffix("_share")) {
        Some(time) => format!("{time} time"),
        None => rest.strip_suffix("_bytes").unwrap_or(rest).to_owned(),
    };
    format!("{of_process}{}{rate}", said.replace(['_', '.'], " "))
}

#[cfg(test)]
mod tests {
    use cowslip_compare::inputs::Run;
    use cowslip_compare::{Options, compare};

    use super::*;

    fn said(metrics: &[(&str, [f64; 2])]) -> String {
        let runs = |side: usize| -> Vec<Run> {
            let run = |index: u32| {
                metrics.iter().fold(Run::new("run"), |run, (name, means)| {
                    let mean = means[side];
                    run.with(name, mean * (1.0 + f64::from(index * 7 % 5) / 1000.0))
                })
            };
            (0..8).map(run).collect()
        };
        let comparison = compare(&runs(0), &runs(1), &Options::default()).unwrap();
        sentence(&comparison, 0.05)
    }

    #[test]
    fn the_outcome_comes_first_and_then_what_rose_and_fell_most_clearly() {
        let all = [
            ("wall_seconds", [1.0, 1.5]),
            ("rusage.system_seconds", [0.1, 0.861]),
            ("rusage.minor_faults", [1000.0, 1100.0]),
            ("vmstat.thp_fault_alloc", [80.0, 0.0]),
            ("loadavg.one_minute", [1.0, 1.02]),
        ];
        let wanted = "wall time rose by 50.0 %; what else differs most clearly: ";
        let sentence = said(&all);
        assert!(sentence.starts_with(wanted), "{sentence}");
        assert!(sentence.contains("system time rose by 761 %"), "{sentence}");
        assert!(sentence.contains("thp_fault_alloc fell to 0 (from 80.2)"), "{sentence}");
        assert!(said(&all[..1]).ends_with("and nothing else differs by more than 5.00 %"));
        assert_eq!(said(&all[4..]), "nothing differs by more than 5.00 %");
        assert_eq!(said(&[("a", [1.0, 1.0])]), "nothing is shown to differ");
        assert_eq!(
            said(&[("a.b", [0.0, 1.0])]),
            "what differs most clearly: a.b rose from 0 to 1.00"
        );
    }

    #[test]
    fn names_are_said_as_people_do() {
        for (metric, wanted) in [
            ("rusage.system_seconds", "system time"),
            ("process.minor_faults/s", "the command's minor faults a second"),
            ("cpu.iowait_share", "the processors' iowait time"),
            ("vmstat.pswpin/s", "pswpin/s"),
            ("process.rss_bytes", "the command's rss"),
            ("disk.vda.reads", "disk.vda.reads"),
        ] {
            assert_eq!(name(metric), wanted);
        }
    }
}
