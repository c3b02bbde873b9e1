//! Sums of faults: their number by kind, and the time that they took.

use std::ops::AddAssign;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::attribute::FaultKind;
use crate::model::Fault;

/// Faults by kind, and their common facts. Counts are of recorded faults: with 1-in-N sampling each stands
/// for N.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    by_kind: [u64; FaultKind::ALL.len()],
    /// Faults with a known latency.
    pub timed: u64,
    /// Their latencies in nanoseconds.
    pub latency_ns: u64,
    /// Faults that the kernel took in a copy for the program.
    pub in_kernel_mode: u64,
    /// Faults that brought a huge page.
    pub huge: u64,
}

impl Sums {
    /// Counts one fault.
    pub fn add(&mut self, fault: &Fault, kind: FaultKind) {
        self.by_kind[kind as usize] += 1;
        if let Some(latency_ns) = fault.latency_ns {
            self.timed += 1;
            self.latency_ns += u64::from(latency_ns);
        }
        self.in_kernel_mode += u64::from(fault.in_user_mode == Some(false));
        self.huge += u64::from(fault.huge == Some(true));
    }

    /// All faults.
    pub fn faults(&self) -> u64 {
        self.by_kind.iter().sum()
    }

    /// The faults of one kind.
    pub fn faults_of_kind(&self, kind: FaultKind) -> u64 {
        self.by_kind[kind as usize]
    }

    /// The kinds that occur, the most frequent first.
    pub fn kinds(&self) -> Vec<(FaultKind, u64)> {
        let mut kinds: Vec<_> = FaultKind::ALL.map(|kind| (kind, self.faults_of_kind(kind))).into();
        kinds.retain(|(_, faults)| *faults > 0);
        kinds.sort_by_key(|(_, faults)| std::cmp::Reverse(*faults));
        kinds
    }
}

impl AddAssign<&Self> for Sums {
    fn add_assign(&mut self, other: &Self) {
        for (sum, more) in self.by_kind.iter_mut().zip(other.by_kind) {
            *sum += more;
        }
        self.timed += other.timed;
        self.latency_ns += other.latency_ns;
        self.in_kernel_mode += other.in_kernel_mode;
        self.huge += other.huge;
    }
}

impl Serialize for Sums {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Kinds<'a>(&'a Sums);
        impl Serialize for Kinds<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.kinds())
            }
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("faults", &self.faults())?;
        map.serialize_entry("by_kind", &Kinds(self))?;
        map.serialize_entry("timed", &self.timed)?;
        map.serialize_entry("latency_ns", &self.latency_ns)?;
        map.serialize_entry("in_kernel_mode", &self.in_kernel_mode)?;
        map.serialize_entry("huge", &self.huge)?;
        map.end()
    }
}
