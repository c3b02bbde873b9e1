//! The chart of latencies side by side.

use super::{Chart, Palette, Panel, WIDTH, name};
use crate::report::groups::Group;
use crate::report::svg::{Axis, Canvas};
use cowslip_report::units::human;

/// One bar per system, size and variant: to the median, on to p99, on to the maximum.
pub(super) fn bars(group: &Group<'_>, palette: &Palette<'_>) -> Chart {
    let (left, right, step) = (250.0, WIDTH - 250.0, 24.0);
    let stats = ["p50", "p99", "max"];
    let values = group.lines.iter().flat_map(|line| stats.map(|stat| line.value(stat)));
    let x = Axis::decades(values.flatten(), left, right);
    let unit = group.lines.iter().find_map(|line| line.row("p50")).map_or("ns", |row| row.unit);
    let bottom = step * group.lines.len() as f64 + 6.0;
    let mut canvas = Canvas::new(WIDTH, bottom + 24.0);
    for power in x.powers() {
        canvas.line(x.place(power), 0.0, x.place(power), bottom, "grid");
        canvas.text(x.place(power), bottom + 16.0, "middle", &human(power, unit));
    }
    for (index, line) in group.lines.iter().enumerate() {
        let top = step * index as f64 + 6.0;
        let name = name(line.system, line.size_bytes, line.variant);
        canvas.text(left - 8.0, top + 13.0, "end", &name);
        if !line.measured() {
            canvas.text(left + 8.0, top + 13.0, "", "skipped; the reason is in the table");
            continue;
        }
        let class = palette.class(line.system);
        let mut from = left;
        for stat in stats {
            let to = line.value(stat).map_or(from, |value| x.place(value));
            canvas.rect(from, top, (to - from).max(0.0), step - 6.0, &format!("{stat} {class}"));
            from = from.max(to);
        }
        let told = stats.map(|stat| line.human(stat).unwrap_or_else(|| "–".to_owned()));
        canvas.text(right + 12.0, top + 13.0, "", &told.join(" · "));
        let [p50, p99, max] = told;
        let tip = format!("{name}: p50 {p50}, p99 {p99}, max {max}");
        canvas.tip(from, top + step / 2.0 - 3.0, tip);
    }
    Chart {
        title: group.metric.to_owned(),
        caption: "Full colour to the median, paler to p99, palest to the maximum; the figures are \
                  p50 · p99 · max. Logarithmic: compare ends, not lengths.",
        legend: Vec::new(),
        panels: vec![Panel::new(&canvas, "y", &format!("{} of each system", group.metric))],
    }
}
