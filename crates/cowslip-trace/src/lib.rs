//! Page faults and mappings of a program: recorded, kept in a file, explained.
//!
//! * [`model`]: what a trace holds; every other part speaks in its terms;
//! * [`record`]: traces of running programs;
//! * [`mod@file`]: the compact file it is kept in;
//! * [`symbols`]: names of instructions;
//! * [`export`]: traces for other programs;
//! * [`import`]: what perf recorded;
//! * [`attribute`]: which mapping a fault lies in, and what it was for;
//! * [`analysis`]: a trace summed up;
//! * [`patterns`]: what many of its faults have in common, and what to do about it;
//! * [`cost`]: what faults take;
//! * [`diff`]: what differs between two traces;
//! * [`picture`]: a trace drawn, as a page and as a still picture;
//! * [`mod@format`]: numbers and mappings in words.
//!
//! A crate of its own, so that what it needs (decoders, symbols) stays out of the preload library. Each part
//! but the model and the file is a feature of the same name, or of the part that needs it; by default all are
//! there but Parquet.

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
