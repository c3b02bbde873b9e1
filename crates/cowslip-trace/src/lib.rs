//! Page faults and mappings of a program: recorded, kept in a file, explained.
//!
//! * [`model`]: what a trace holds; every other part speaks in its terms;
//! * [`mod@file`]: the compact file it is kept in;
//! * [`symbols`]: names of instructions;
//! * [`record`]: traces of running programs;
//! * [`export`]: traces for other programs.
//!
//! A crate of its own, so that what it needs (decoders, symbols) stays out of the preload library.

#![forbid(unsafe_code)]

pub mod export;
pub mod file;
pub mod model;
pub mod record;
pub mod symbols;

pub use model::{Event, Fault, Header, Sink, StackId, Totals, What};
