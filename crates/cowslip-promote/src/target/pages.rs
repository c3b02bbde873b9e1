//! The pages of a process that are resident, for each of its private anonymous mappings.

use cowslip_sys::error::{During, Result};
use cowslip_sys::pagemap::{Method, PageKinds, Scanner};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{self as sys, procfs};

use super::Target;
use crate::model::Advice;

impl Target {
    /// The cost and the effect of each size of pages for its memory as it is used now. It changes nothing.
    pub fn advice(&self, threshold_percent: u8) -> Result<Advice> {
        self.survey_pages(threshold_percent).during("look at the pages of the process")
    }

    /// The part of its private anonymous memory in mappings that it asked huge pages for (`MADV_HUGEPAGE`).
    pub(crate) fn asking_bytes(&self) -> Result<u64> {
        let smaps = self.handle.read_file("smaps").during("read smaps of the process")?;
        let all = procfs::smaps(&smaps);
        let asking = all
            .iter()
            .filter(|(mapping, usage)| mapping.is_anonymous() && usage.asks_for_huge_pages);
        Ok(asking.map(|(_, usage)| usage.anonymous_bytes).sum())
    }

    fn survey_pages(&self, threshold_percent: u8) -> sys::Result<Advice> {
        let scanner = Scanner::new(self.handle.open_file("pagemap")?);
        let maps = self.handle.read_file("maps")?;
        let mut advice = Advice::new(threshold_percent);
        for mapping in procfs::mappings(&maps).filter(procfs::Mapping::is_anonymous) {
            let mut parts = Parts::new(mapping.range, &mut advice);
            match scanner.method() {
                Method::Scan => scanner.kinds(mapping.range, |run, kinds| {
                    if kinds.contains(PageKinds::PRESENT) && !kinds.contains(PageKinds::ZERO) {
                        parts.see(run, kinds.contains(PageKinds::HUGE));
                    }
                })?,
                Method::Entries => scanner.entries(mapping.range, |at, entry| {
                    if entry.is_present() {
                        parts.see(at, false);
                    }
                })?,
            }
            parts.finish();
        }
        Ok(advice)
    }
}

/// A mapping in parts of 2 MiB, which no page of any size crosses: a mapping may be far larger than the memory in it.
struct Parts<'a> {
    mapping: VirtRange,
    advice: &'a mut Advice,
    part: VirtRange,
    is_resident: Vec<bool>,
}

impl<'a> Parts<'a> {
    fn new(mapping: VirtRange, advice: &'a mut Advice) -> Self {
        Self { mapping, advice, part: VirtRange::default(), is_resident: Vec::new() }
    }

    /// Takes in resident pages, those at lower addresses first.
    fn see(&mut self, run: VirtRange, is_huge: bool) {
        self.advice.huge_bytes += if is_huge { run.len as u64 } else { 0 };
        let mut rest = run;
        while !rest.is_empty() {
            if !self.part.contains(rest.start) {
                self.finish();
                let start = rest.start & !(CHUNK_BYTES - 1);
                self.part = self.mapping.intersect(VirtRange::new(start, CHUNK_BYTES));
                self.is_resident.resize(self.part.len / page_size_bytes(), false);
            }
            let seen = rest.intersect(self.part);
            let place = |at: usize| (at - self.part.start) / page_size_bytes();
            self.is_resident[place(seen.start)..place(seen.end())].fill(true);
            rest = VirtRange::between(seen.end(), rest.end());
        }
    }

    /// Hands the part over.
    fn finish(&mut self) {
        let first_page = (self.part.start / page_size_bytes()) as u64;
        self.advice.add(first_page, &self.is_resident);
        (self.part, self.is_resident) = (VirtRange::default(), Vec::new());
    }
}
