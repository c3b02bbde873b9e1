//! The kinds of records in perf's recording; the others are missing from the trace.

use super::record::{At, Call, Family, Record};
use crate::model::Header;

/// The results of the first pass.
#[derive(Default, Debug)]
pub(super) struct Facts {
    /// The family of faults that is used.
    pub(super) family: Option<Family>,
    /// True if the returns of system calls are recorded.
    pub(super) has_results: bool,
    has_calls: bool,
    has_maps: bool,
    has_address: bool,
    faults: u64,
    periods: u64,
    times_ns: Option<(u64, u64)>,
}

impl Facts {
    pub(super) fn observe(&mut self, at: At, record: &Record<'_>) {
        if let Some(time_ns) = at.time_ns.filter(|&time_ns| time_ns > 0) {
            let first_ns = self.times_ns.map_or(time_ns, |(first_ns, _)| first_ns);
            self.times_ns = Some((first_ns, time_ns));
        }
        match record {
            Record::Fault(fault) => {
                let family = fault.source.family();
                self.family = self.family.max(Some(family));
                self.has_address |= fault.address.is_some();
                self.faults += 1;
                self.periods = self.periods.saturating_add(fault.period.unwrap_or(1));
            }
            Record::Enter(Call::Brk) => {}
            Record::Enter(_) => self.has_calls = true,
            Record::Leave { .. } => self.has_results = true,
            Record::Map(_) => self.has_maps = true,
            _ => {}
        }
    }

    /// Checks that a trace can be made of the recording; the error tells what to do.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.family.is_none() {
            return Err("no page fault of perf's is in it; record them with \
                 `perf record -d -c 1 -e page-faults`");
        }
        if !self.has_address {
            return Err("its page faults have no addresses; record with `perf record -d`");
        }
        Ok(())
    }

    /// Completes the header with the recorded and the missing sources.
    pub(super) fn complete(&self, header: &mut Header, ended_unix_seconds: u64) {
        let (first_ns, last_ns) = self.times_ns.unwrap_or_default();
        let seconds = last_ns.saturating_sub(first_ns) / 1_000_000_000;
        header.began_unix_seconds = ended_unix_seconds.saturating_sub(seconds);
        header.sampling_period = (self.periods as f64 / self.faults as f64).round() as u64;
        let mut sources = vec![match self.family {
            Some(Family::Exceptions) => "exceptions:page_fault_*",
            Some(Family::Severity) => "minor-faults, major-faults",
            _ => "page-faults",
        }];
        let mut unseen = Vec::new();
        if self.has_calls {
            sources.push("syscalls:sys_enter_*");
        } else {
            unseen.push(
                "munmap(2), mremap(2) and madvise(2), and where anonymous mappings end: record with \
                 `-e 'syscalls:sys_*_m*map' -e 'syscalls:sys_*_madvise'` as well",
            );
        }
        if self.has_results {
            sources.push("syscalls:sys_exit_*");
        } else if self.has_calls {
            unseen.push(
                "where the kernel put mappings that were asked for without an address: record with \
                 `-e 'syscalls:sys_exit_m*map'` as well",
            );
        }
        if self.has_maps {
            sources.push("PERF_RECORD_MMAP");
        } else {
            unseen.push("the files that are mapped");
        }
        if header.sampling_period != 1 {
            unseen.push("all faults but one in some: record with `-c 1`");
        }
        header.sources.extend(sources.into_iter().map(Into::into));
        header.unseen.extend(unseen.into_iter().map(Into::into));
    }
}
