//! The results of a process that restores: what it sends to the bench.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::state::State;

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Every page in order
    Read,
    WorkingSet,
}

/// Results of the process.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Observed {
    /// Time of opening and restoring, until there are addresses.
    pub(super) setup_ns: f64,
    pub(super) reading: Option<Reading>,
    pub(super) working_set: Option<Touching>,
    /// Time from the start until the restore is complete and has no work left.
    pub(super) complete_ns: f64,
    pub(super) wrong_bytes: u64,
    pub(super) state: State,
    /// A freeze and a save onto the same path, for methods that can.
    pub(super) again: Option<Again>,
    /// The cost of a first touch, just before; see [`crate::report::HostState`].
    pub(super) touch_ns: f64,
}

#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Again {
    pub(super) freeze_ns: f64,
    pub(super) save_ns: f64,
}

/// Reading every page once.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) first_ns: f64,
    pub(super) total_ns: f64,
    pub(super) min_ns: f64,
    pub(super) max_ns: f64,
    pub(super) pages: f64,
}

/// Times of a program that touches its working set.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(super) struct Touching {
    pub(super) first_ns: f64,
    pub(super) tenth_ns: f64,
    pub(super) whole_ns: f64,
    pub(super) longest_ns: f64,
    pub(super) wrong_bytes: u64,
}
