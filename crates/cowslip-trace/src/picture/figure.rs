//! The still picture: rate above, time and addresses below, legend and completeness.

use std::fmt::Write;

use cowslip_sys::units::ByteCount;

use super::facts;
use super::palette::{Palette, Theme};
use super::scene::Scene;
use super::still::{self, Cells, Placed};
use super::svg::{Svg, clip};
use crate::attribute::FaultKind;
use crate::format::{count, duration};

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 132.0;
const RIGHT: f64 = WIDTH - 16.0;
const RATE_TOP: f64 = 78.0;
const RATE_BOTTOM: f64 = 168.0;
const TOP: f64 = 184.0;
const BOTTOM: f64 = 720.0;
const CELL: f64 = 2.0;
const RATE_STEP: f64 = 3.0;
const LEVELS: usize = 4;
const LEGEND_WIDTH: f64 = 260.0;
const CHARACTER: f64 = 7.3;

pub(super) fn draw(scene: &Scene, theme: Theme) -> String {
    let palette = Palette::new(theme);
    let placed = still::place(scene);
    let mut svg = Svg { shapes: String::new(), palette };
    svg.heading(scene);
    svg.rate(scene);
    svg.time_axis(scene);
    svg.bars(scene, &placed);
    svg.faults(scene, &placed);
    svg.breaks(&placed);
    svg.names(&placed);
    let height = svg.legend(scene);
    let page = svg.palette.colour("page");
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' \
         height='{height}' font-family='ui-monospace, Hack, monospace' font-size='12'>\
         <rect width='100%' height='100%' fill='{page}'/>{}</svg>\n",
        svg.shapes
    )
}

impl Svg {
    fn heading(&mut self, scene: &Scene) {
        let title = clip(&facts::title(scene), 120);
        self.text(LEFT, 24.0, "ink", "font-size='15' font-weight='600'", &title);
        let mut said = facts::statement(scene);
        said.truncate(3);
        let is_bad = said.iter().any(|sentence| sentence.is_bad);
        let texts: Vec<_> = said.into_iter().map(|sentence| sentence.text).collect();
        let colour = if is_bad { "bad" } else { "quiet" };
        self.text(LEFT, 46.0, colour, "", &clip(&texts.join(" "), 145));
    }

    fn rate(&mut self, scene: &Scene) {
        let columns = ((RIGHT - LEFT) / RATE_STEP) as usize;
        let rates = still::rates(scene, columns);
        let most = rates.iter().map(|step| step.iter().sum::<u64>()).max().unwrap_or(0).max(1);
        let per_fault = (RATE_BOTTOM - RATE_TOP) / most as f64;
        for kind in FaultKind::ALL {
            let mut path = String::new();
            for (column, step) in rates.iter().enumerate() {
                let here = step[kind as usize];
                if here == 0 {
                    continue;
                }
                let below: u64 = step[..kind as usize].iter().sum();
                let x = LEFT + column as f64 * RATE_STEP;
                let (y, height) = ((below + here) as f64 * per_fault, here as f64 * per_fault);
                let y = RATE_BOTTOM - y;
                write!(path, "M{x} {y:.2}h{RATE_STEP}v{height:.2}h-{RATE_STEP}z")
                    .expect("a String grows");
            }
            self.path(&path, self.palette.kind(kind), 1.0);
        }
        self.line(LEFT, RATE_BOTTOM, RIGHT, RATE_BOTTOM, "rule");
        let seconds = scene.duration_ns as f64 / 1e9 / columns as f64;
        let peak = count((scene.analysis.scaled(most) as f64 / seconds) as u64);
        let end = "text-anchor='end'";
        self.text(LEFT - 8.0, RATE_TOP + 10.0, "quiet", end, &peak);
        self.text(LEFT - 8.0, RATE_TOP + 26.0, "quiet", end, "faults/s");
        for (time_ns, _) in &scene.losses {
            let x = x_of(scene, *time_ns);
            self.line(x, RATE_TOP - 6.0, x, RATE_BOTTOM, "bad");
        }
    }

    fn time_axis(&mut self, scene: &Scene) {
        let step = round_step(scene.duration_ns as f64 / 9.0);
        for tick in 0.. {
            let time_ns = tick as f64 * step;
            if time_ns > scene.duration_ns as f64 {
                break;
            }
            let x = LEFT + time_ns / scene.duration_ns as f64 * (RIGHT - LEFT);
            self.line(x, TOP, x, BOTTOM + 5.0, "grid");
            let anchor = if RIGHT - x < 40.0 { "end" } else { "middle" };
            let style = format!("text-anchor='{anchor}'");
            let label = if tick == 0 { "0".to_owned() } else { duration(time_ns) };
            self.text(x, BOTTOM + 20.0, "quiet", &style, &label);
        }
        let middle = (LEFT + RIGHT) / 2.0;
        let style = "text-anchor='middle'";
        self.text(middle, BOTTOM + 40.0, "quiet", style, "time since the trace began");
    }

    fn bars(&mut self, scene: &Scene, placed: &[Placed<'_>]) {
        let mut paths = std::collections::BTreeMap::<_, String>::new();
        for bar in &scene.bars {
            let below =
                placed.partition_point(|it| (it.space, it.band.end) <= (bar.space, bar.start));
            let touched = placed[below..]
                .iter()
                .take_while(|it| it.space == bar.space && it.band.start < bar.end);
            for it in touched {
                let (left, right) = (x_of(scene, bar.from_ns), x_of(scene, bar.to_ns));
                let (low, high) = (y_of(it.place(bar.start)), y_of(it.place(bar.end)));
                let (width, height) = ((right - left).max(0.5), (low - high).max(0.5));
                let tint = scene.groups.rows[bar.group as usize].tint;
                let path = paths.entry(tint).or_default();
                write!(path, "M{left:.1} {high:.1}h{width:.1}v{height:.1}h-{width:.1}z")
                    .expect("a String grows");
            }
        }
        let stroke = self.palette.colour("rule");
        for (tint, path) in paths {
            let fill = self.palette.colour(tint.colour());
            self.push(format_args!(
                "<path d='{path}' fill='{fill}' stroke='{stroke}' stroke-width='0.5'/>"
            ));
        }
    }

    /// One path per kind and level: cells with few faults are fainter.
    fn faults(&mut self, scene: &Scene, placed: &[Placed<'_>]) {
        let columns = ((RIGHT - LEFT) / CELL) as usize;
        let rows = ((BOTTOM - TOP) / CELL) as usize;
        let cells = Cells::of(scene, placed, columns, rows);
        let mut paths = vec![String::new(); FaultKind::ALL.len() * LEVELS];
        for row in 0..rows {
            let index = |column| {
                let (kind, level) = cells.at(row, column)?;
                let level = ((level * LEVELS as f64) as usize).min(LEVELS - 1);
                Some(kind as usize * LEVELS + level)
            };
            let mut column = 0;
            while column < columns {
                let here = index(column);
                let end = (column + 1..columns).find(|it| index(*it) != here).unwrap_or(columns);
                if let Some(here) = here {
                    let (x, y) = (LEFT + column as f64 * CELL, TOP + row as f64 * CELL);
                    let width = (end - column) as f64 * CELL;
                    write!(paths[here], "M{x} {y}h{width}v{CELL}h-{width}z")
                        .expect("a String grows");
                }
                column = end;
            }
        }
        for (index, path) in paths.iter().enumerate() {
            let kind = FaultKind::ALL[index / LEVELS];
            let opacity = 0.55 + 0.45 * (index % LEVELS) as f64 / (LEVELS - 1) as f64;
            self.path(path, self.palette.kind(kind), opacity);
        }
    }

    fn breaks(&mut self, placed: &[Placed<'_>]) {
        for (below, above) in placed.iter().zip(placed.iter().skip(1)) {
            let y = y_of(f64::midpoint(below.high, above.low));
            let mut path = format!("M{LEFT} {y:.1}");
            for step in 1..=((RIGHT - LEFT) / 5.0) as usize {
                let swing = if above.gap_bytes.is_none() { 0.0 } else { [2.0, -2.0][step % 2] };
                write!(path, "L{:.1} {:.1}", LEFT + step as f64 * 5.0, y + swing)
                    .expect("a String grows");
            }
            let stroke = self.palette.colour("rule");
            self.push(format_args!("<path d='{path}' fill='none' stroke='{stroke}'/>"));
        }
    }

    /// Names of bands at their right, lowest addresses at their left, where there is room.
    fn names(&mut self, placed: &[Placed<'_>]) {
        let mut free = f64::INFINITY;
        for it in placed {
            let y = y_of(it.low) - 1.0;
            if y > free {
                continue;
            }
            free = y - 13.0;
            let address = format!("{:#x}", it.band.start);
            self.text(LEFT - 8.0, y, "quiet", "text-anchor='end' font-size='11'", &address);
            let name = match (it.gap_bytes, it.program) {
                (Some(gap), _) => format!("{} (gap of {})", it.name, ByteCount(gap)),
                (None, Some(program)) => format!("{program}: {}", it.name),
                (None, None) => it.name.to_owned(),
            };
            let halo = self.palette.colour("page");
            let style = format!(
                "text-anchor='end' font-size='11' stroke='{halo}' stroke-width='3' \
                 stroke-opacity='0.8' paint-order='stroke'"
            );
            self.text(RIGHT - 6.0, y, "ink", &style, &clip(&name, 60));
        }
        let middle = f64::midpoint(TOP, BOTTOM);
        let style = format!("text-anchor='middle' transform='rotate(-90 12 {middle})'");
        self.text(12.0, middle, "quiet", &style, "address");
        self.line(LEFT, TOP, LEFT, BOTTOM, "rule");
        self.line(LEFT, BOTTOM, RIGHT, BOTTOM, "rule");
    }

    /// The kinds that occur; returns the lower end of the legend.
    fn legend(&mut self, scene: &Scene) -> f64 {
        let (mut x, mut y) = (LEFT, BOTTOM + 68.0);
        for (kind, faults) in scene.analysis.sums.kinds() {
            let text = format!("{kind} {}", count(faults));
            let width = (text.chars().count() as f64 * CHARACTER + 30.0).max(LEGEND_WIDTH / 2.0);
            if x + width > RIGHT {
                (x, y) = (LEFT, y + 20.0);
            }
            let fill = self.palette.kind(kind);
            self.push(format_args!(
                "<circle cx='{:.1}' cy='{:.1}' r='5' fill='{fill}'/>",
                x + 5.0,
                y - 4.0
            ));
            self.text(x + 16.0, y, "ink", "", &text);
            x += width;
        }
        y + 18.0
    }
}

fn x_of(scene: &Scene, time_ns: u64) -> f64 {
    let share = time_ns as f64 / scene.duration_ns as f64;
    LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
}

fn y_of(place: f64) -> f64 {
    BOTTOM - place * (BOTTOM - TOP)
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let decade = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|it| it * decade);
    steps.into_iter().find(|step| *step >= least).unwrap_or(10.0 * decade)
}
