//! Shows the values of a metric: a strip plot of dots and a box for each side.

use minijinja::context;
use minijinja::value::Value;

use cowslip_compare::Row;
use cowslip_compare::stats::quantile;

use super::format;

const LEFT: f64 = 8.0;
const WIDTH: f64 = 304.0;
/// More dots cannot be told apart.
const MOST_DOTS: usize = 300;

/// The data with which the page's template draws a row.
pub(super) fn strip_plot(row: &Row) -> Value {
    let all = || row.good.iter().chain(&row.bad).copied();
    let low = all().fold(f64::INFINITY, f64::min);
    let high = all().fold(f64::NEG_INFINITY, f64::max);
    let place = |value: f64| round(LEFT + WIDTH * (value - low) / (high - low));
    let side = |values: &[f64], mean: f64, name: &str, top: f64| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let step = sorted.len().div_ceil(MOST_DOTS);
        let dots = sorted.iter().step_by(step).enumerate().map(|(index, value)| {
            // Dots of equal values lie beside each other.
            let y = round(top + (index as f64 * 0.618_034).fract() * 8.0 - 4.0);
            context! { x => place(*value), y, tip => tip(row, name, *value) }
        });
        let [q1, q2, q3] = [0.25, 0.5, 0.75]
            .map(|share| quantile(&sorted, share).expect("a row has values of both sides"));
        let quarter = |value| format::value(&row.metric, value);
        context! {
            name,
            top,
            dots => dots.collect::<Vec<_>>(),
            q1 => place(q1),
            width => round((place(q3) - place(q1)).max(1.0)),
            median => place(q2),
            mean => place(mean),
            tip => format!(
                "{name}: median {}, half of the values from {} to {}, mean {}, n {}",
                quarter(q2), quarter(q1), quarter(q3), quarter(mean), values.len()
            ),
        }
    };
    context! {
        low => format::value(&row.metric, low),
        high => format::value(&row.metric, high),
        sides => [
            side(&row.good, row.means.0, "good", 13.0),
            side(&row.bad, row.means.1, "bad", 33.0),
        ],
    }
}

fn tip(row: &Row, side: &str, value: f64) -> String {
    format!("{} {side}: {}", row.metric, format::value(&row.metric, value))
}

fn round(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}
