//! Counters of a service's work.

mod instructions;
mod lines;
mod source;

use std::io;

use crate::model::UnitOfWork;

pub use source::WorkSource;

pub(crate) use instructions::Instructions;
use lines::Lines;

/// A counter that is read again and again.
#[derive(Debug)]
pub(crate) enum Meter {
    /// A number that is somewhere.
    Source(WorkSource),
    /// Lines of a growing file.
    Lines(Lines),
    /// Instructions in user mode.
    Instructions(Instructions),
    /// The time, at a steady load.
    Time,
}

impl Meter {
    /// Begins to count. Lines that are there already do not count.
    pub(crate) fn new(source: &WorkSource) -> io::Result<Self> {
        match source {
            WorkSource::Lines(path) => Lines::follow(path).map(Self::Lines),
            other => other.read().map(|_| Self::Source(other.clone())),
        }
    }

    /// The unit that it counts.
    pub(crate) fn unit(&self) -> UnitOfWork {
        match self {
            Self::Source(_) | Self::Lines(_) => UnitOfWork::Counter,
            Self::Instructions(_) => UnitOfWork::Instructions,
            Self::Time => UnitOfWork::Time,
        }
    }

    /// The count now. The difference of two counts is the work between them; it is no number if the counter began anew.
    pub(crate) fn read(&mut self) -> io::Result<f64> {
        match self {
            Self::Source(source) => source.read(),
            Self::Lines(lines) => lines.count(),
            Self::Instructions(instructions) => instructions.count(),
            Self::Time => Ok(cowslip_sys::process::now_ns() as f64),
        }
    }
}
