//! The picture of a trace: time across, addresses up, mappings as bars and faults as dots.
//!
//! [`Picture::html`] makes one page that needs only a browser: it zooms, describes the items under the
//! pointer, and counts those in a rectangle.
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
mod dots;
mod facts;
mod frames;
mod groups;
mod pack;
mod page;
mod programs;
mod replay;
mod scene;
mod varint;

use std::fmt;
use std::io::{self, Read};

use crate::analysis::Analysis;
use crate::cost::FaultCost;
use crate::file::Reader;
use crate::model::Trace;

/// The script that draws a flame graph in an element with a `div`, for pages of other crates too.
pub const FLAME_SCRIPT: &str = include_str!("../../assets/picture/flame.js");
/// The style of the element `flame`, by the colours `--page`, `--chosen`, `--ink` and `--quiet`.
pub const FLAME_STYLE: &str = include_str!("../../assets/picture/flame.css");

/// A trace and its analysis, ready to be drawn.
///
/// ```
/// use cowslip_trace::model::Trace;
/// use cowslip_trace::picture::Picture;
/// let trace = Trace::default();
/// let picture = Picture::new(&trace, None);
/// assert!(picture.html()?.contains("0 faults"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Picture {
    scene: scene::Scene,
}

impl Picture {
    /// Analyses a trace and arranges it; `cost` is the cost of faults that were not timed.
    pub fn new(trace: &Trace, cost: Option<FaultCost>) -> Self {
        let mut replay = replay::Replay::new(&trace.header);
        for event in &trace.events {
            replay.observe(event, |stack| trace.frames(stack));
        }
        let latencies = trace.latencies.clone();
        Self {
            scene: scene::Scene::new(
                replay,
                cost,
                trace.totals.lost,
                latencies,
                trace.is_cut_short,
            ),
        }
    }

    /// The same for the rest of a file, a block at a time: memory holds the faults in the form that the page
    /// contains, a few bytes each, and the state of the analysis.
    ///
    /// # Errors
    /// Those of [`Reader::read_block`].
    pub fn read(reader: &mut Reader<impl Read>, cost: Option<FaultCost>) -> io::Result<Self> {
        let mut replay = replay::Replay::new(reader.header());
        let mut events = Vec::new();
        while reader.read_block(&mut events)? {
            for event in events.drain(..) {
                replay.observe(&event, |stack| reader.frames(stack));
            }
        }
        let (lost, is_cut_short) = (reader.totals().lost, reader.is_cut_short());
        let latencies = reader.latencies().cloned();
        Ok(Self { scene: scene::Scene::new(replay, cost, lost, latencies, is_cut_short) })
    }

    /// The analysis behind the picture.
    pub fn analysis(&self) -> &Analysis {
        &self.scene.analysis
    }

    /// One page that needs only a browser, and loads nothing.
    pub fn html(&self) -> io::Result<String> {
        page::render(&self.scene)
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Picture").field("faults", &self.scene.dots.count).finish_non_exhaustive()
    }
}
