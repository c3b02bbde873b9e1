//! The pages of a process that are resident, for each of its private anonymous mappings.

use cowslip_sys::error::{During, Result};
use cowslip_sys::pagemap::{Method, PageKinds, Scanner};
use cowslip_sys::units::page_size_bytes;
use cowslip_sys::{self as sys, procfs};

use super::Target;
use crate::model::Advice;

impl Target {
    /// The cost and the effect of each size of pages for its memory as it is used now. It changes nothing.
    pub fn advice(&self, threshold_percent: u8) -> Result<Advice> {
        self.survey_pages(threshold_percent).during("look at the pages of the process")
    }

    fn survey_pages(&self, threshold_percent: u8) -> sys::Result<Advice> {
        let page = page_size_bytes();
        let scanner = Scanner::new(self.handle.open_file("pagemap")?);
        let maps = self.handle.read_file("maps")?;
        let mut advice = Advice::new(threshold_percent);
        for mapping in procfs::mappings(&maps).filter(procfs::Mapping::is_anonymous) {
            let range = mapping.range;
            let mut is_resident = vec![false; range.len / page];
            let place = |at: usize| (at - range.start) / page;
            match scanner.method() {
                Method::Scan => scanner.kinds(range, |run, kinds| {
                    if kinds.contains(PageKinds::PRESENT) && !kinds.contains(PageKinds::ZERO) {
                        is_resident[place(run.start)..place(run.end())].fill(true);
                        let is_huge = kinds.contains(PageKinds::HUGE);
                        advice.huge_bytes += if is_huge { run.len as u64 } else { 0 };
                    }
                })?,
                Method::Entries => scanner.entries(range, |at, entry| {
                    is_resident[place(at.start)] = entry.is_present();
                })?,
            }
            advice.add((range.start / page) as u64, &is_resident);
        }
        Ok(advice)
    }
}
