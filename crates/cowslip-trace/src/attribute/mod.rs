//! Finds the mapping of a fault, and the reason for the fault.
//!
//! An [`Attributor`] replays the events in the order of time into an address space for each process: maps,
//! unmaps, moves, the program break, forks (the child gets the space) and execs (it is gone). Besides the
//! mappings it keeps track of pages that were touched, given back, or shared by a fork.
//! `docs/trace.md` has the rule of each [`FaultKind`].
//!
//! ```
//! use cowslip_sys::units::VirtRange;
//! use cowslip_trace::attribute::{Attributor, FaultKind};
//! use cowslip_trace::model::{Event, Fault, Header, Map, EventKind};
//!
//! let mut attributor = Attributor::new(&Header::default());
//! let mut happened = |what| attributor.observe(&Event { time_ns: 0, pid: 7, tid: 7, what });
//! let map = Map { range: VirtRange::new(0x20_0000, 0x1000), flags: 0x22, ..Map::default() };
//! happened(EventKind::Map(map));
//! let fault = happened(EventKind::Fault(Fault::at(0x20_0010, 0x40_1000))).unwrap();
//! assert_eq!(fault.kind, FaultKind::FirstTouch);
//! ```

pub(crate) mod advice;
mod area;
mod history;
mod kind;
mod mapping;
mod object;
mod pages;
mod place;
mod replay;
mod rule;
mod space;

use serde::{Deserialize, Serialize};

pub use kind::FaultKind;
pub use mapping::{Mapping, MappingId, Span};
pub use place::Place;
pub use replay::Attributor;

/// The facts about a fault that follow from earlier events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attribution {
    /// The mapping it lies in; `None` if the events show no mapping there.
    pub mapping: Option<MappingId>,
    /// The reason for it.
    pub kind: FaultKind,
    /// For an absent page of anonymous or shared memory: whether a huge page would fit around it.
    pub fit: Option<HugeFit>,
}

/// Tells if a huge page would fit around a touched base page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugeFit {
    /// It would, and none of its pages had been touched: it would have come now.
    First,
    /// It would, and another of its pages had been touched: it would have been there already.
    Further,
    /// It would not: the memory is too short, or not aligned.
    No,
    /// The program refused huge pages there (`MADV_NOHUGEPAGE`).
    Refused,
}
