//! The table of results.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

/// The answer of one machine.
pub(crate) struct Answer {
    pub(crate) random: String,
    /// Between its clock and the host's.
    pub(crate) off_seconds: Option<u64>,
    /// Its name and a line of its disk, from a Linux.
    pub(crate) rest: String,
}

pub(crate) struct Report {
    pub(crate) booted: Duration,
    /// The time for which the processor stood still.
    pub(crate) held: Duration,
    pub(crate) templated: Duration,
    pub(crate) made: Duration,
    pub(crate) answered: Duration,
    /// Memory of each clone before it runs, and after its answer.
    pub(crate) first_bytes: u64,
    pub(crate) own_bytes: u64,
    /// Words in memory that are wrong, if that is known.
    pub(crate) wrong: Option<usize>,
    /// First that of the machine which booted.
    pub(crate) answers: Vec<Answer>,
}

impl Report {
    /// Each machine is exact, and has random numbers of its own.
    pub(crate) fn is_right(&self) -> bool {
        self.wrong.is_none_or(|wrong| wrong == 0) && self.different() == self.answers.len()
    }

    fn different(&self) -> usize {
        self.answers.iter().map(|answer| &answer.random).collect::<BTreeSet<_>>().len()
    }
}

impl Display for Report {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let clones = self.answers.len() - 1;
        let mut row = |name: &str, value: String| writeln!(out, "{name:<36} {value}");
        row("boot, until it is ready", format!("{:.2?}", self.booted))?;
        row("processor held", format!("{:.2?}", self.held))?;
        row("template", format!("{:.2?}", self.templated))?;
        row(&format!("{clones} clones made"), format!("{:.2?}", self.made))?;
        row(&format!("{clones} clones answered"), format!("{:.2?}", self.answered))?;
        row("memory of each at first", format!("{} KiB", self.first_bytes >> 10))?;
        row("memory of each after its answer", format!("{} KiB", self.own_bytes >> 10))?;
        row("different random numbers", format!("{} of {}", self.different(), self.answers.len()))?;
        let wrong = self.wrong.map_or("not known".to_owned(), |wrong| wrong.to_string());
        row("wrong words in memory", wrong)?;
        let off = self.answers.iter().filter_map(|answer| answer.off_seconds).max();
        row("clock, from the host's", off.map_or("none".to_owned(), |off| format!("{off} s")))?;
        let last = self.answers.last().expect("the original's");
        row("last answer", format!("{} {}", last.random, last.rest))
    }
}
