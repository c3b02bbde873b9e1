//! Just enough SVG to draw a chart: axes, shapes and texts for points under the pointer.

use std::fmt::{Display, Write};

/// A text that is shown when the pointer is nearest to this point.
pub(super) struct Tip {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) text: String,
}

/// A drawing; colours come from the classes, which the page defines.
pub(super) struct Canvas {
    pub(super) width: f64,
    pub(super) height: f64,
    shapes: String,
    pub(super) tips: Vec<Tip>,
}

impl Canvas {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, shapes: String::new(), tips: Vec::new() }
    }

    fn push(&mut self, shape: std::fmt::Arguments<'_>) {
        self.shapes.write_fmt(shape).expect("a String grows");
    }

    /// `class` holds the colour and, unless it is the start, the `middle` or `end` to anchor at.
    pub(super) fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        self.push(format_args!("<text x='{x:.1}' y='{y:.1}' class='{class}'>{text}</text>"));
    }

    pub(super) fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, class: &str) {
        self.push(format_args!("<path d='M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}' class='{class}'/>"));
    }

    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, class: &str) {
        self.push(format_args!(
            "<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}' class='{class}'/>"
        ));
    }

    pub(super) fn circle(&mut self, x: f64, y: f64, class: &str) {
        self.push(format_args!("<circle cx='{x:.1}' cy='{y:.1}' r='3.5' class='{class}'/>"));
    }

    pub(super) fn polyline(&mut self, points: &[(f64, f64)], class: &str) {
        let mut path = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            write!(path, "{command}{x:.1} {y:.1}").expect("a String grows");
        }
        self.push(format_args!("<path d='{path}' class='{class}'/>"));
    }

    pub(super) fn tip(&mut self, x: f64, y: f64, text: String) {
        self.tips.push(Tip { x, y, text });
    }

    /// The whole element; `label` describes it to readers without sight.
    pub(super) fn svg(&self, near: &str, label: &str) -> String {
        let Self { width, height, shapes, .. } = self;
        let label = escape(label);
        format!(
            "<svg viewBox='0 0 {width} {height}' data-near='{near}' role='img' \
             aria-label='{label}'>{shapes}</svg>"
        )
    }
}

/// An axis: the places of a range's values on the canvas.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    log: bool,
}

impl Axis {
    pub(super) fn linear(high: f64, start: f64, end: f64) -> Self {
        Self { low: 0.0, high: if high > 0.0 { high } else { 1.0 }, start, end, log: false }
    }

    /// Logarithmic from the power of ten below the least positive value to the one above the greatest.
    pub(super) fn decades(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let (low, high) = range(values);
        let low = low.log10().floor();
        let high = high.log10().ceil().max(low + 1.0);
        Self { low: 10_f64.powf(low), high: 10_f64.powf(high), start, end, log: true }
    }

    /// Logarithmic over just the values.
    pub(super) fn log(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let (low, high) = range(values);
        Self { low, high: high.max(low * 2.0), start, end, log: true }
    }

    pub(super) fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Every power of ten of a logarithmic axis, or every second or third one if they are many.
    pub(super) fn powers(&self) -> Vec<f64> {
        let (low, high) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
        let step = (high - low) / 7 + 1;
        (low..=high).step_by(step as usize).map(|power| 10_f64.powi(power)).collect()
    }

    /// About eight round values of a linear axis.
    pub(super) fn rounds(&self) -> Vec<f64> {
        let raw = (self.high - self.low) / 8.0;
        let decade = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0].map(|step| step * decade).into_iter().find(|step| *step >= raw);
        let step = step.unwrap_or(10.0 * decade);
        (0..).map(|index| f64::from(index) * step).take_while(|tick| *tick <= self.high).collect()
    }
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values = values.filter(|value| value.is_finite() && *value > 0.0);
    let found = values.fold(None, |range: Option<(f64, f64)>, value| {
        Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
    });
    found.unwrap_or((1.0, 10.0))
}

fn escape(text: impl Display) -> String {
    let mut escaped = String::new();
    for character in text.to_string().chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&quot;"),
            character => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_place_and_tick() {
        let axis = Axis::decades([0.0, 250.0, 40_000.0].into_iter(), 0.0, 300.0);
        assert!((axis.place(1_000.0) - 100.0).abs() < 1e-9);
        assert_eq!(axis.place(0.0), 0.0);
        assert_eq!(axis.powers(), [1e2, 1e3, 1e4, 1e5]);
        let axis = Axis::linear(8.0, 10.0, 90.0);
        assert_eq!(axis.place(4.0), 50.0);
        assert_eq!(axis.rounds().len(), 9);
    }
}
