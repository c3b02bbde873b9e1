//! The chart of a value over time, such as the latency of requests while saves run.

use super::{Chart, LEFT, Palette, Panel, RIGHT, WIDTH, draw_powers};
use crate::report::results::Series;
use crate::report::svg::{Axis, Canvas};
use cowslip_report::units::human;

/// One panel per system, all on the same axes.
pub(super) fn over_time(metric: &str, all: &[&Series], palette: &Palette<'_>) -> Chart {
    let (top, bottom, axis_height) = (24.0, 164.0, 38.0);
    let ends = all.iter().flat_map(|series| {
        let points = series.points.iter().map(|point| point.0);
        points.chain(series.marks.iter().map(|mark| mark.1))
    });
    let x = Axis::linear(ends.fold(0.0, f64::max), LEFT, RIGHT);
    let values = all.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let y = Axis::decades(values, bottom, top);
    let panels = all.iter().enumerate().map(|(index, series)| {
        let last = index + 1 == all.len();
        let height = bottom + if last { axis_height } else { 12.0 };
        let mut canvas = Canvas::new(WIDTH, height);
        draw_marks(&mut canvas, series, &x, (top, bottom));
        draw_powers(&mut canvas, &y, series.unit);
        for second in x.rounds() {
            canvas.line(x.place(second), top, x.place(second), bottom, "grid");
            if last {
                canvas.text(x.place(second), bottom + 15.0, "middle", &seconds(second));
            }
        }
        if last {
            canvas.text((LEFT + RIGHT) / 2.0, bottom + 32.0, "middle", "time since the start");
        }
        let class = palette.class(&series.system);
        canvas.text(LEFT, 15.0, &format!("name {class}"), &series.system);
        draw_points(&mut canvas, series, (&x, &y), &class);
        Panel::new(&canvas, "x", &format!("{metric} of {} over time", series.system))
    });
    Chart {
        title: format!("{metric} over time"),
        caption: "Shaded: while a save ran. Logarithmic; of the values that share a pixel column, \
                  the lowest and the highest are drawn.",
        legend: Vec::new(),
        panels: panels.collect(),
    }
}

fn draw_marks(canvas: &mut Canvas, series: &Series, x: &Axis, (top, bottom): (f64, f64)) {
    let mut free_from = LEFT + 110.0;
    for (from, to, label) in &series.marks {
        let (left, right) = (x.place(*from), x.place(*to));
        canvas.rect(left, top, (right - left).max(2.0), bottom - top, "mark");
        if left >= free_from {
            canvas.text(left, 15.0, "", label);
            free_from = left + 8.0 * label.chars().count() as f64;
        }
    }
}

fn draw_points(canvas: &mut Canvas, series: &Series, (x, y): (&Axis, &Axis), class: &str) {
    let finite: Vec<_> =
        series.points.iter().filter(|point| point.0.is_finite() && point.1.is_finite()).collect();
    let mut line = Vec::new();
    for column in finite.chunk_by(|a, b| x.place(a.0) as u32 == x.place(b.0) as u32) {
        let lowest = column.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let highest = column.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        for (time, value) in [lowest, highest].into_iter().flatten().take(column.len()) {
            let at = (x.place(*time), y.place(*value));
            let mark = series.marks.iter().find(|(from, to, _)| (*from..=*to).contains(time));
            let during = mark.map(|mark| format!(", {}", mark.2)).unwrap_or_default();
            line.push(at);
            canvas.tip(at.0, at.1, format!("{time:.3} s: {}{during}", human(*value, series.unit)));
        }
    }
    canvas.polyline(&line, &format!("curve thin {class}"));
}

fn seconds(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { human(value * 1e9, "ns") }
}
