//! The picture of a trace: time across, addresses up, mappings as bars and faults as dots.
//!
//! [`Picture::html`] makes one page that needs nothing but a browser: it zooms, tells about what is under the
//! pointer, and counts what is in a rectangle. [`Picture::svg`] and [`Picture::png`] make still pictures for
//! reports.
//!
//! ```text
//!  addresses      bands of what was used, one above the other; gaps become breaks
//!      ▲
//!      │ ┌──────────────┐          a bar: a mapping, from map to unmap
//!      │ │  ·.·  ··     │          a dot: a fault, in the colour of its kind
//!      │ └──────────────┘
//!      ≈                           a break
//!      │ ┌──────┐
//!      └─┴──────┴──────────▶ time
//! ```

mod bands;
mod facts;
mod figure;
mod frames;
mod groups;
mod pack;
mod page;
mod palette;
mod png;
mod programs;
mod replay;
mod scene;
mod still;
mod svg;
mod varint;

use std::fmt;
use std::io;

use crate::analysis::Analysis;
use crate::cost::FaultCost;
use crate::model::Trace;

pub use palette::Theme;

/// A trace with what was found in it, ready to be drawn.
///
/// ```
/// use cowslip_trace::model::Trace;
/// use cowslip_trace::picture::{Picture, Theme};
/// let trace = Trace::default();
/// let picture = Picture::new(&trace, None);
/// assert!(picture.html()?.contains("0 faults"));
/// assert!(picture.svg(Theme::Light).starts_with("<svg"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Picture<'a> {
    scene: scene::Scene<'a>,
}

impl<'a> Picture<'a> {
    /// Analyses a trace and arranges it; `cost` says what faults take that do not say so themselves.
    pub fn new(trace: &'a Trace, cost: Option<FaultCost>) -> Self {
        Self { scene: scene::Scene::new(trace, cost) }
    }

    /// What it was arranged by.
    pub fn analysis(&self) -> &Analysis {
        &self.scene.analysis
    }

    /// One page that needs nothing but a browser, and loads nothing.
    pub fn html(&self) -> io::Result<String> {
        page::render(&self.scene)
    }

    /// A still picture as SVG.
    pub fn svg(&self, theme: Theme) -> String {
        figure::draw(&self.scene, theme)
    }

    /// A still picture as PNG, with two pixels where [`Self::svg`] has one.
    pub fn png(&self, theme: Theme) -> io::Result<Vec<u8>> {
        png::render(&self.svg(theme))
    }
}

impl fmt::Debug for Picture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Picture").field("faults", &self.scene.dots.len()).finish_non_exhaustive()
    }
}
