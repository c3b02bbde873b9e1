//! Just enough SVG for the still picture.

use std::fmt::{self, Write};

use super::palette::Palette;

/// A drawing; colours are names in the palette.
pub(super) struct Svg {
    pub(super) shapes: String,
    pub(super) palette: Palette,
}

impl Svg {
    pub(super) fn push(&mut self, shape: fmt::Arguments<'_>) {
        self.shapes.write_fmt(shape).expect("a String grows");
    }

    /// `style` has attributes other than the colour.
    pub(super) fn text(&mut self, x: f64, y: f64, colour: &str, style: &str, text: &str) {
        let fill = self.palette.colour(colour);
        let text = escape(text);
        self.push(format_args!("<text x='{x:.1}' y='{y:.1}' fill='{fill}' {style}>{text}</text>"));
    }

    pub(super) fn line(&mut self, x1: f64, y1: f64, x2: f64, y2: f64, colour: &str) {
        let stroke = self.palette.colour(colour);
        self.push(format_args!("<path d='M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}' stroke='{stroke}'/>"));
    }

    pub(super) fn path(&mut self, path: &str, fill: &str, opacity: f64) {
        if !path.is_empty() {
            self.push(format_args!("<path d='{path}' fill='{fill}' fill-opacity='{opacity:.2}'/>"));
        }
    }
}

/// The text, cut to `most` characters.
pub(super) fn clip(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// Escapes text for SVG, and replaces characters that XML forbids.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for it in text.chars() {
        match it {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&quot;"),
            it if it.is_control() || matches!(it, '\u{fffe}' | '\u{ffff}') => {
                escaped.push('\u{fffd}');
            }
            it => escaped.push(it),
        }
    }
    escaped
}
