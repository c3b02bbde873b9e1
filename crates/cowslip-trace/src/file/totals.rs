//! Totals of a trace, counted by the writer and again by the reader.

use super::Checked;
use super::layout::{EventCode, KINDS};
use crate::model::{Event, EventKind, Totals};

const BYTES: usize = (1 + KINDS + 1) * 8;

/// Counts of the events so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    kinds: [u64; KINDS],
    lost: u64,
    times_ns: Option<(u64, u64)>,
}

impl Counts {
    pub(super) fn add(&mut self, event: &Event) {
        self.kinds[kind(&event.what) as usize] += 1;
        if let EventKind::Lost { count } = event.what {
            self.lost = self.lost.saturating_add(count);
        }
        let first_ns = self.times_ns.map_or(event.time_ns, |(first_ns, _)| first_ns);
        self.times_ns = Some((first_ns, event.time_ns));
    }

    /// The last event's time.
    pub(super) fn last_ns(&self) -> Option<u64> {
        self.times_ns.map(|(_, last_ns)| last_ns)
    }

    /// Sets the number of lost events, some of which no event reports.
    pub(super) fn set_lost(&mut self, lost: u64) {
        self.lost = self.lost.max(lost);
    }

    pub(super) fn totals(&self) -> Totals {
        let (first_ns, last_ns) = self.times_ns.unwrap_or_default();
        Totals {
            events: self.kinds.iter().sum(),
            faults: self.kinds[EventCode::Fault as usize],
            lost: self.lost,
            first_ns,
            last_ns,
        }
    }

    pub(super) fn encode(&self, stacks: usize) -> Vec<u8> {
        let numbers = [self.lost].into_iter().chain(self.kinds).chain([stacks as u64]);
        numbers.flat_map(u64::to_le_bytes).collect()
    }

    /// Takes the number of lost events from a block of totals, if all other counts agree.
    pub(super) fn complete(&mut self, content: &[u8], stacks: usize) -> Checked<()> {
        const WRONG: &str = "the totals are not those of the events";
        let content: &[u8; BYTES] = content.try_into().map_err(|_| "totals of another length")?;
        let lost = u64::from_le_bytes(content[..8].try_into().expect("8 bytes"));
        if lost < self.lost {
            return Err(WRONG);
        }
        self.lost = lost;
        if self.encode(stacks) == content { Ok(()) } else { Err(WRONG) }
    }
}

fn kind(what: &EventKind) -> EventCode {
    match what {
        EventKind::Fault(_) => EventCode::Fault,
        EventKind::Map(_) => EventCode::Map,
        EventKind::Unmap { .. } => EventCode::Unmap,
        EventKind::Remap { .. } => EventCode::Remap,
        EventKind::Advise { .. } => EventCode::Advise,
        EventKind::Break { .. } => EventCode::Break,
        EventKind::Fork { .. } => EventCode::Fork,
        EventKind::Exec { .. } => EventCode::Exec,
        EventKind::Name { .. } => EventCode::Name,
        EventKind::Exit => EventCode::Exit,
        EventKind::Lost { .. } => EventCode::Lost,
        EventKind::Detach => EventCode::Detach,
    }
}
