//! The charts of a report, and how each is drawn.

mod bars;
mod over_size;
mod over_time;

use super::groups::{Group, groups, published};
use super::results::Report;
use super::svg::{Axis, Canvas};
use cowslip_report::units::{human, size};

use bars::bars;
use over_size::over_size;
use over_time::over_time;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = WIDTH - 16.0;
/// The number of colours that the page defines for systems.
const COLOURS: usize = 7;

pub(super) struct Chart {
    pub(super) title: String,
    pub(super) caption: &'static str,
    /// The classes and the names of the drawn items.
    pub(super) legend: Vec<(String, String)>,
    pub(super) panels: Vec<Panel>,
}

pub(super) struct Panel {
    pub(super) svg: String,
    /// A JSON array of `[x, y, text]` for the pointer.
    pub(super) tips: String,
}

impl Panel {
    fn new(canvas: &Canvas, near: &str, label: &str) -> Self {
        let tips: Vec<_> = canvas.tips.iter().map(|tip| (tip.x, tip.y, &tip.text)).collect();
        let tips = serde_json::to_string(&tips).expect("numbers and strings");
        Self { svg: canvas.svg(near, label), tips }
    }
}

pub(super) fn charts(report: &Report) -> Vec<Chart> {
    let palette = Palette::from_report(report);
    let mut metrics: Vec<&str> = Vec::new();
    for series in &report.series {
        if !metrics.contains(&series.metric.as_str()) {
            metrics.push(&series.metric);
        }
    }
    let over_time = metrics.into_iter().map(|metric| {
        let all: Vec<_> = report.series.iter().filter(|series| series.metric == metric).collect();
        over_time(metric, &all, &palette)
    });
    let groups = groups(report);
    let of_rows = groups.iter().filter(|group| group.stats.contains(&"p50")).map(|group| {
        let sizes = sizes(group);
        if group.metric == "pause" && sizes.len() > 1 {
            over_size(group, &sizes, &palette)
        } else {
            bars(group, &palette)
        }
    });
    over_time.chain(of_rows).collect()
}

/// One colour per system on the whole page; published figures are all grey.
struct Palette<'a>(Vec<&'a str>);

impl<'a> Palette<'a> {
    fn from_report(report: &'a Report) -> Self {
        let mut systems: Vec<&str> = Vec::new();
        let rows = report.rows.iter().map(|row| row.system.as_str());
        for system in rows.chain(report.series.iter().map(|series| series.system.as_str())) {
            if !published(system) && !systems.contains(&system) {
                systems.push(system);
            }
        }
        Self(systems)
    }

    fn class(&self, system: &str) -> String {
        match self.0.iter().position(|known| *known == system) {
            Some(index) => format!("c{}", index % COLOURS),
            None => "seed".to_owned(),
        }
    }
}

fn draw_powers(canvas: &mut Canvas, y: &Axis, unit: &str) {
    for power in y.powers() {
        canvas.line(LEFT, y.place(power), RIGHT, y.place(power), "grid");
        canvas.text(LEFT - 8.0, y.place(power) + 4.0, "end", &human(power, unit));
    }
}

fn sizes(group: &Group<'_>) -> Vec<u64> {
    let mut sizes: Vec<u64> = group.lines.iter().filter_map(|line| line.size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn name(system: &str, size_bytes: Option<u64>, variant: Option<&str>) -> String {
    let system =
        if published(system) { format!("{system} (published)") } else { system.to_owned() };
    let parts = [Some(system), size_bytes.map(size), variant.map(str::to_owned)];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
