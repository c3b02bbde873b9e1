//! The output of the command: progress on standard error, text and numbers for people, files for programs.
//!
//! * [`Progress`] of work that takes a while;
//! * [`text`] and [`units`] for lines of text, [`Paint`] for their colours;
//! * [`json`], [`sink`] and [`Stream`] for files that are whole or absent.
//!
//! ```
//! use std::path::Path;
//!
//! use cowslip_report::{json, units};
//!
//! assert_eq!(units::human(1_500.0, "ns"), "1.50 µs");
//! json::write(&[1, 2], Path::new("-"))?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Its interface may change in any release.

mod paint;
mod progress;
mod stream;

pub mod json;
pub mod sink;
pub mod text;
pub mod units;

pub use paint::{BAD, BOLD, DIM, GOOD, Paint, WARN};
pub use progress::Progress;
pub use stream::Stream;
