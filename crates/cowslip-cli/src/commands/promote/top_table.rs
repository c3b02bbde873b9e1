//! The table of `cowslip promote top`: rows in an order, columns as wide as they need.

use cowslip_promote::metrics::{Process, Snapshot};
use cowslip_promote::percent;

use super::args::Sort;
use cowslip_report::{text, units};

const HEADS: [&str; 15] = [
    "PID",
    "NAME",
    "RSS",
    "HUGE",
    "COVERAGE",
    "FITTING",
    "BLOAT",
    "HEAT",
    "PROMOTED",
    "SPLIT",
    "REFUSED",
    "STALLED",
    "LONGEST",
    "REGIONS",
    "LEFT BECAUSE",
];

const ORDERS: [Sort; 9] = [
    Sort::Rss,
    Sort::Huge,
    Sort::Coverage,
    Sort::Bloat,
    Sort::Heat,
    Sort::Promoted,
    Sort::Refused,
    Sort::Stall,
    Sort::Name,
];

/// The number of reasons that are shown for a process, the most frequent first.
const MOST_REASONS: usize = 3;

/// The state of the view.
#[derive(Debug)]
pub(super) struct View {
    sort: Sort,
    is_reversed: bool,
    pub(super) is_paused: bool,
}

impl View {
    pub(super) fn new(sort: Sort) -> Self {
        Self { sort, is_reversed: false, is_paused: false }
    }

    pub(super) fn take(&mut self, key: u8) {
        match key {
            b'p' => self.is_paused = !self.is_paused,
            b'r' => self.is_reversed = !self.is_reversed,
            b's' => {
                let next = ORDERS
                    .iter()
                    .position(|order| *order == self.sort)
                    .map_or(0, |index| index + 1);
                self.sort = ORDERS[next % ORDERS.len()];
            }
            _ => {}
        }
    }

    /// The whole table; `before` is the snapshot before it, for rates.
    pub(super) fn lines(
        &self,
        now: &Snapshot,
        before: Option<&Snapshot>,
        source: &str,
    ) -> Vec<String> {
        let mut processes: Vec<&Process> = now.processes.iter().collect();
        processes.sort_by(|a, b| {
            let order = match self.sort {
                Sort::Name => a.name.cmp(&b.name),
                by => key(b, by).total_cmp(&key(a, by)),
            };
            let order = order.then(a.pid.cmp(&b.pid));
            if self.is_reversed { order.reverse() } else { order }
        });
        let mut rows = vec![HEADS.map(str::to_owned).to_vec()];
        rows.extend(processes.iter().map(|process| row(process).to_vec()));
        let mut lines = vec![self.title(now, before, source), machine(now), String::new()];
        lines.extend(text::align(&rows));
        lines
    }

    fn title(&self, now: &Snapshot, before: Option<&Snapshot>, source: &str) -> String {
        let of =
            |snapshot: &Snapshot| snapshot.whole.get("cpu_seconds_total").copied().unwrap_or(0.0);
        let cpu = match before {
            Some(before) if now.at_ns > before.at_ns => {
                let seconds = (now.at_ns - before.at_ns) as f64 / 1e9;
                format!("{:.1} % of a core", ((of(now) - of(before)) / seconds * 100.0).max(0.0))
            }
            _ => format!("{} of processor time so far", units::human(of(now) * 1e9, "ns")),
        };
        let count = text::count(now.processes.len(), "process");
        let by = format!("{:?}", self.sort).to_lowercase();
        let paused = if self.is_paused { "paused · " } else { "" };
        format!("  {paused}{count} by {by} · own cost {cpu} · {source}")
    }
}

fn machine(now: &Snapshot) -> String {
    let of = |name: &str| now.whole.get(&format!("system_{name}")).copied().unwrap_or(0.0);
    format!(
        "  {} available · {} free huge pages · memory pressure {:.1} %",
        units::size(of("available_bytes") as u64),
        of("free_huge_pages"),
        of("pressure_ratio") * 100.0
    )
}

fn key(process: &Process, by: Sort) -> f64 {
    match by {
        Sort::Rss => process.value("resident_bytes"),
        Sort::Huge => process.value("huge_bytes"),
        Sort::Coverage => process.value("coverage_ratio"),
        Sort::Bloat => process.value("bloat_bytes"),
        Sort::Heat => process.value("heat_ratio"),
        Sort::Promoted => process.value("promotions_total"),
        Sort::Refused => process.refused(),
        Sort::Stall => process.value("stall_seconds_total"),
        Sort::Name => 0.0,
    }
}

fn row(process: &Process) -> [String; HEADS.len()] {
    let size = |name| units::size(process.value(name) as u64);
    let time = |name| units::human(process.value(name) * 1e9, "ns");
    let heat = |ratio: f64| format!("{:.0} %", ratio * 100.0);
    let mut reasons: Vec<(&String, f64)> = process
        .regions
        .iter()
        .filter(|(reason, _)| *reason != "huge")
        .map(|(reason, count)| (reason, *count))
        .collect();
    reasons.sort_by(|a, b| b.1.total_cmp(&a.1));
    let told: Vec<String> = reasons
        .iter()
        .take(MOST_REASONS)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    [
        process.pid.to_string(),
        text::clip(&process.name),
        size("resident_bytes"),
        size("huge_bytes"),
        percent(process.get("coverage_ratio")),
        percent(process.get("fitting_coverage_ratio")),
        size("bloat_bytes"),
        process.get("heat_ratio").map_or("?".to_owned(), heat),
        process.value("promotions_total").to_string(),
        process.value("splits_total").to_string(),
        process.refused().to_string(),
        time("stall_seconds_total"),
        time("longest_stall_seconds"),
        process.regions.values().fold(0.0, |sum, count| sum + count).to_string(),
        told.join(", "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        Snapshot::parse(
            "cowslip_promote_looks_total 3\ncowslip_promote_cpu_seconds_total 0.5\n\
             cowslip_promote_resident_bytes{pid=\"7\",name=\"b\"} 1048576\n\
             cowslip_promote_resident_bytes{pid=\"8\",name=\"a\"} 2097152\n\
             cowslip_promote_promotions_total{pid=\"7\",name=\"b\"} 4\n\
             cowslip_promote_regions{pid=\"7\",name=\"b\",reason=\"shared\"} 6\n",
        )
        .unwrap()
    }

    fn order(view: &View) -> Vec<String> {
        let lines = view.lines(&snapshot(), None, "here");
        let pids =
            lines[4..].iter().map(|line| line.trim_start().split(' ').next().unwrap().to_owned());
        pids.collect()
    }

    #[test]
    fn keys_change_the_order() {
        let mut view = View::new(Sort::Rss);
        assert_eq!(order(&view), ["8", "7"]);
        view.take(b'r');
        assert_eq!(order(&view), ["7", "8"]);
        view.take(b'r');
        for _ in 0..5 {
            view.take(b's');
        }
        assert_eq!((view.sort, order(&view)), (Sort::Promoted, vec!["7".into(), "8".into()]));
        for _ in 0..3 {
            view.take(b's');
        }
        assert_eq!((view.sort, order(&view)), (Sort::Name, vec!["8".into(), "7".into()]));
        view.take(b's');
        assert_eq!(view.sort, Sort::Rss, "all round");
        view.take(b'p');
        assert!(view.is_paused && view.lines(&snapshot(), None, "here")[0].contains("paused"));
    }

    #[test]
    fn a_row_says_why_regions_are_left_and_the_title_what_it_costs() {
        let (now, mut before) = (snapshot(), snapshot());
        before.at_ns = now.at_ns - 1_000_000_000;
        before.whole.insert("cpu_seconds_total".into(), 0.25);
        let lines = View::new(Sort::Rss).lines(&now, Some(&before), "here");
        assert!(lines[0].contains("25.0 % of a core"), "{}", lines[0]);
        assert!(lines[5].contains("1 MiB") && lines[5].contains("shared 6"), "{}", lines[5]);
    }
}
