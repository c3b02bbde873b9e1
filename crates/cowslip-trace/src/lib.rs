//! Page faults and mappings of a program: recorded, kept in a file, explained.
//!
//! * [`model`]: what a trace holds; every other part speaks in its terms;
//! * [`record`]: traces of running programs;
//! * [`mod@file`]: the compact file it is kept in;
//! * [`symbols`]: names of instructions;
//! * [`export`]: traces for other programs;
//! * [`import`]: what perf recorded;
//! * [`attribute`]: which mapping a fault lies in, and what it was for;
//! * [`analysis`]: a trace summed up, with its [`patterns`];
//! * [`cost`]: what faults take;
//! * [`diff`]: what differs between two traces;
//! * [`picture`]: a trace drawn, as a page and as a still picture;
//! * [`mod@format`]: numbers and mappings in words.
//!
//! A crate of its own, so that what it needs (decoders, symbols) stays out of the preload library.

#![forbid(unsafe_code)]

pub mod analysis;
pub mod attribute;
pub mod cost;
pub mod diff;
pub mod export;
pub mod file;
pub mod format;
pub mod import;
pub mod model;
pub mod patterns;
pub mod picture;
pub mod record;
pub mod symbols;

pub use analysis::Analysis;
pub use model::{Event, EventKind, Fault, Header, Sink, StackId, Totals};
