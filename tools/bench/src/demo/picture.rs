//! The picture of the result: how long requests waited around a save, one panel a setup, all on the same axes.
//!
//! It stands alone: light or dark as its reader's system, and with larger letters where it is shown small.

use std::slice;

use minijinja::value::Value;
use minijinja::{Environment, context};

use super::quantities::ms;
use super::redis::Outcome;
use super::redis::figures::{HELD_UP, Stat};
use super::redis::running_server::{AROUND_NS, Measured, Save};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 376.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = WIDTH - 10.0;
const TOP: f64 = 112.0;
const BOTTOM: f64 = 310.0;
const GAP: f64 = 14.0;
const TITLE: &str = "Slowest request under way, ms. Dark, and in numbers: at BGSAVE";
/// Panels side by side.
pub(crate) const PANELS: usize = 3;

/// The content of one picture.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x_title: &'static str,
    /// The range of the axis; 0 is the start of a save.
    pub(crate) x: (f64, f64),
    pub(crate) panels: Vec<Panel>,
}

pub(crate) struct Panel {
    name: &'static str,
    number: String,
    /// The area of each save.
    areas: Vec<Vec<Step>>,
    /// The request of each save that the number is about.
    counted: Vec<Step>,
}

/// Start and end on the axis, and milliseconds.
type Step = (f64, f64, f64);

/// Draws requests around the fork, for the first three setups; nothing if there are none.
///
/// # Errors
/// A template that does not fit, which is a mistake of this program.
pub fn picture(outcome: &Outcome) -> Result<String, minijinja::Error> {
    let measured: Vec<_> = outcome.measured.iter().take(PANELS).collect();
    draw(&around_fork(&measured))
}

/// Milliseconds around the fork.
pub(crate) fn around_fork(measured: &[&Measured]) -> Chart {
    let around_ms = AROUND_NS as f64 / 1e6;
    let area = |save: &Save| {
        let step_ms = 2.0 * around_ms / save.around_fork_ns.len() as f64;
        let from = |step: usize| step as f64 * step_ms - around_ms;
        let steps = save.around_fork_ns.iter().enumerate();
        steps.map(|(step, &ns)| (from(step), from(step + 1), ns as f64 / 1e6)).collect()
    };
    Chart {
        title: TITLE.to_owned(),
        x_title: "milliseconds from BGSAVE",
        x: (-around_ms, around_ms),
        panels: panels(measured, 1e6, area),
    }
}

/// Seconds around whole saves.
pub(crate) fn whole_saves(measured: &[&Measured]) -> Chart {
    let area = |save: &Save| {
        let starts = save.slowest.iter().map(|(at, _)| at - save.span.0);
        let ends = starts.clone().skip(1);
        let steps = starts.zip(ends).zip(&save.slowest);
        steps.map(|((from, to), (_, ns))| (from, to, ns / 1e6)).collect()
    };
    let panels = panels(measured, 1e9, area);
    let ends = panels.iter().flat_map(|panel| &panel.areas).filter_map(|area| area.last());
    let longest = ends.map(|end| end.1).fold(1.0, f64::max);
    Chart { title: TITLE.to_owned(), x_title: "seconds from BGSAVE", x: (-1.0, longest), panels }
}

/// `unit_ns` is that of the axis.
fn panels(measured: &[&Measured], unit_ns: f64, area: impl Fn(&Save) -> Vec<Step>) -> Vec<Panel> {
    let counted = |save: &Save| {
        let (from, to) = save.held_up?;
        Some((from as f64 / unit_ns, to as f64 / unit_ns, (to - from) as f64 / 1e6))
    };
    let panel = |server: &&Measured| Panel {
        name: server.setup.title,
        number: HELD_UP.of_all(server, Stat::Max).map(ms).unwrap_or_default(),
        areas: server.busy_saves().map(&area).collect(),
        counted: server.busy_saves().filter_map(counted).collect(),
    };
    measured.iter().map(panel).collect()
}

pub(crate) fn draw(chart: &Chart) -> Result<String, minijinja::Error> {
    let steps = chart.panels.iter().flat_map(|panel| panel.areas.iter().flatten());
    let values = steps.map(|step| step.2);
    let highest = values.fold(1.0, f64::max);
    let y = move |value: f64| BOTTOM - value / highest * (BOTTOM - TOP);
    let y_ticks = ticks(0.0, highest, 4.0);
    let width = width();
    let panel = |(index, panel): (usize, &Panel)| {
        let left = LEFT + (width + GAP) * index as f64;
        let (low, high) = chart.x;
        let x = |value: f64| left + (value.clamp(low, high) - low) / (high - low) * width;
        let areas = panel.areas.iter().map(|area| step_path(area, x, y));
        let counted = panel.counted.iter().map(|step| step_path(slice::from_ref(step), x, y));
        let lines =
            y_ticks.iter().map(|&tick| format!("M{left:.1} {:.1}H{:.1}", y(tick), left + width));
        let x_ticks = x_ticks(chart.x).into_iter().map(|tick| {
            // The outermost labels stay inside.
            let class = match (tick == low, tick == high) {
                (true, _) => "",
                (_, true) => "end",
                _ => "middle",
            };
            let text = number(tick);
            context! { class, x => round(x(tick)), y => BOTTOM + 24.0, text }
        });
        context! {
            class => format!("c{index}"),
            name => panel.name,
            number => &panel.number,
            left => round(left),
            grid => lines.collect::<String>(),
            event => format!("M{:.1} {TOP}V{BOTTOM}", x(0.0)),
            areas => areas.collect::<Vec<_>>(),
            counted => counted.collect::<Vec<_>>(),
            x_ticks => x_ticks.collect::<Vec<Value>>(),
        }
    };
    let y_tick =
        |&tick: &f64| context! { x => LEFT - 8.0, y => round(y(tick) + 6.0), text => number(tick) };
    let mut environment = Environment::new();
    environment.add_template("picture.xml", include_str!("picture.svg"))?;
    environment.get_template("picture.xml")?.render(context! {
        width => WIDTH,
        height => HEIGHT,
        margin => 10.0,
        middle => round((LEFT + RIGHT) / 2.0),
        title => &chart.title,
        x_title => chart.x_title,
        y_ticks => y_ticks.iter().map(y_tick).collect::<Vec<_>>(),
        panels => chart.panels.iter().enumerate().map(panel).collect::<Vec<_>>(),
    })
}

/// The width of a panel.
fn width() -> f64 {
    (RIGHT - LEFT - GAP * (PANELS - 1) as f64) / PANELS as f64
}

/// A step for each value, down to the axis at both ends.
fn step_path(steps: &[Step], x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return String::new() };
    let steps_of = steps.chunk_by(|a, b| a.2 == b.2).map(|run| {
        let (value, end) = (run[0].2, run[run.len() - 1].1);
        format!("V{:.1}H{:.1}", y(value), x(end))
    });
    let path: String = steps_of.collect();
    format!("M{:.1} {BOTTOM}{path}V{BOTTOM}H{:.1}Z", x(first.0), x(first.0.min(last.1)))
}

/// The ends of a symmetric axis and its middle, or round values.
fn x_ticks((low, high): (f64, f64)) -> Vec<f64> {
    if low == -high { vec![low, 0.0, high] } else { ticks(low, high, 4.0) }
}

/// About this many round values.
fn ticks(low: f64, high: f64, about: f64) -> Vec<f64> {
    let raw = (high - low) / about;
    let decade = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0].map(|step| step * decade).into_iter().find(|step| *step >= raw);
    let step = step.unwrap_or(10.0 * decade);
    let first = (low / step).ceil() as i64;
    (first..).map(|index| index as f64 * step).take_while(|tick| *tick <= high).collect()
}

fn number(value: f64) -> String {
    format!("{value}").replace('-', "\u{2212}")
}

/// Rounds to a tenth; smaller differences are invisible.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(ticks(0.0, 31.0, 4.0), [0.0, 10.0, 20.0, 30.0]);
        assert_eq!(ticks(-1.0, 4.2, 4.0), [0.0, 2.0, 4.0]);
        assert_eq!(x_ticks((-150.0, 150.0)), [-150.0, 0.0, 150.0]);
        assert_eq!(number(-150.0), "\u{2212}150");
    }

    #[test]
    fn a_stall_is_drawn_as_high_as_it_was() {
        let areas =
            vec![vec![(-2.0, -1.0, 1.0), (-1.0, 0.0, 1.0), (0.0, 1.0, 30.0), (1.0, 2.0, 1.0)]];
        let counted = vec![(0.0, 2.0, 30.0)];
        let panel = Panel { name: "stock", number: "30 ms".to_owned(), areas, counted };
        let chart = Chart {
            title: "a < b".to_owned(),
            x_title: "milliseconds",
            x: (-2.0, 2.0),
            panels: vec![panel],
        };
        let svg = draw(&chart).unwrap();
        let path = format!("M{LEFT:.1} {BOTTOM}V303.4H");
        assert!(svg.contains(&path) && svg.contains(&format!("V{TOP:.1}H")), "{svg}");
        // The request that the number is about reaches from BGSAVE to its own end.
        let (middle, end) = (LEFT + width() / 2.0, LEFT + width());
        let path = format!("\"counted\" d=\"M{middle:.1} {BOTTOM}V{TOP:.1}H{end:.1}V");
        assert!(svg.contains(&path), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("30 ms") && !svg.contains("NaN"));
    }
}
