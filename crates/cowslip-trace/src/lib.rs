//! Page faults and mappings of a program: records, stores and explains them.
//!
//! * [`model`]: the content of a trace; every other part uses its terms;
//! * [`record`]: traces of running programs;
//! * [`mod@file`]: the compact file format;
//! * [`symbols`]: names of instructions;
//! * [`export`]: traces for other programs;
//! * [`import`]: perf's recordings;
//! * [`attribute`]: the mapping of a fault, and the reason for it;
//! * [`analysis`]: a trace summed up;
//! * [`patterns`]: common patterns of faults, and advice;
//! * [`cost`]: the cost of faults;
//! * [`diff`]: the differences between two traces;
//! * [`picture`]: a trace drawn, as a page;
//! * [`mod@format`]: numbers and mappings in words.
//!
//! This is a separate crate, so that its dependencies (decoders, symbols) stay out of the preload library.
//! Each part except the model and the file is a feature of the same name, or of the part that needs it; all are on by
//! default.
//!
//! `cowslip trace` is its command; `docs/trace.md` describes it, and `docs/trace-format.md` its files. The pages that it
//! draws contain uPlot (`assets/vendor/uplot`, MIT).

#![forbid(unsafe_code)]

#[cfg(feature = "analysis")]
pub mod analysis;
#[cfg(feature = "analysis")]
pub mod attribute;
#[cfg(feature = "analysis")]
pub mod cost;
#[cfg(feature = "symbols")]
pub mod diff;
#[cfg(feature = "export")]
pub mod export;
pub mod file;
#[cfg(feature = "analysis")]
pub mod format;
#[cfg(feature = "import")]
pub mod import;
pub mod model;
#[cfg(any(feature = "analysis", feature = "record"))]
mod parts;
#[cfg(feature = "analysis")]
pub mod patterns;
#[cfg(feature = "analysis")]
mod perf_maps;
#[cfg(feature = "picture")]
pub mod picture;
#[cfg(feature = "record")]
pub mod record;
#[cfg(feature = "analysis")]
mod sums;
#[cfg(feature = "symbols")]
pub mod symbols;
#[cfg(feature = "analysis")]
mod thp;

#[cfg(feature = "analysis")]
pub use analysis::Analysis;
pub use model::{Event, EventKind, Fault, Header, Sink, StackId, Totals};
#[cfg(feature = "analysis")]
pub use perf_maps::PerfMaps;
