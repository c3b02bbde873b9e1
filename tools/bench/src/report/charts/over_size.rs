//! The chart of a median by the size of the memory, such as the pause of a snapshot.

use super::{Chart, LEFT, Palette, Panel, RIGHT, WIDTH, draw_powers, name};
use crate::report::groups::Group;
use crate::report::svg::{Axis, Canvas};
use cowslip_report::units::{human, size};

/// The number of kinds of dashes that the page defines for variants.
const DASHES: usize = 3;

/// One curve per system and variant, both axes logarithmic.
pub(super) fn over_size(group: &Group<'_>, sizes: &[u64], palette: &Palette<'_>) -> Chart {
    let (top, bottom) = (12.0, 300.0);
    let x = Axis::log(sizes.iter().map(|size| *size as f64), LEFT + 30.0, RIGHT - 30.0);
    let values = group.lines.iter().filter_map(|line| line.value("p50"));
    let y = Axis::decades(values, bottom, top);
    let mut canvas = Canvas::new(WIDTH, bottom + 40.0);
    draw_powers(&mut canvas, &y, "ns");
    let mut free_from = 0.0;
    for bytes in sizes {
        let at = x.place(*bytes as f64);
        canvas.line(at, top, at, bottom, "grid");
        if at >= free_from {
            canvas.text(at, bottom + 16.0, "middle", &size(*bytes));
            free_from = at + 60.0;
        }
    }
    canvas.text((LEFT + RIGHT) / 2.0, bottom + 34.0, "middle", "memory size");

    let mut variants: Vec<Option<&str>> = Vec::new();
    let mut curves: Vec<(&str, Option<&str>)> = Vec::new();
    for line in group.lines.iter().filter(|line| line.value("p50").is_some()) {
        if !variants.contains(&line.variant) {
            variants.push(line.variant);
        }
        if !curves.contains(&(line.system, line.variant)) {
            curves.push((line.system, line.variant));
        }
    }
    let mut legend = Vec::new();
    for (system, variant) in curves {
        let dash = variants.iter().position(|other| *other == variant).unwrap_or(0) % DASHES;
        let class = format!("{} d{dash}", palette.class(system));
        let name = name(system, None, variant);
        let lines = group.lines.iter();
        let lines = lines.filter(|line| line.system == system && line.variant == variant);
        let mut points: Vec<_> =
            lines.filter_map(|line| Some((line.size_bytes?, line.value("p50")?))).collect();
        points.sort_by_key(|point| point.0);
        let places: Vec<_> =
            points.iter().map(|(bytes, p50)| (x.place(*bytes as f64), y.place(*p50))).collect();
        canvas.polyline(&places, &format!("curve {class}"));
        for ((bytes, p50), at) in points.iter().zip(&places) {
            canvas.circle(at.0, at.1, &class);
            canvas.tip(at.0, at.1, format!("{name}, {}: {}", size(*bytes), human(*p50, "ns")));
        }
        legend.push((class, name));
    }
    Chart {
        title: format!("{} by memory size", group.metric),
        caption: "The median (p50); both axes are logarithmic.",
        legend,
        panels: vec![Panel::new(&canvas, "xy", "median pause by memory size")],
    }
}
