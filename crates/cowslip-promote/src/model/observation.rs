//! The policy's input: one look at the system and at processes, as plain values.

use cowslip_sys::units::{CHUNK_BYTES, page_size_bytes};
use serde::{Deserialize, Serialize};

use super::{
    Action, ActionOutcome, Coverage, Effect, GainState, HeatSource, Limit, ProcessId, REGION_PAGES,
    Region, RegionKind, System,
};

/// The source that tells which regions are huge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugeSource {
    /// From the page tables (`PAGEMAP_SCAN`, Linux 6.7).
    #[default]
    PageTables,
    /// From the sums in `smaps`: none or all of each mapping.
    Sums,
    /// From the page frames (`/proc/kpageflags`), which add up to the sums.
    Frames,
    /// In some mapping it is not known, except for regions whose promotion was requested.
    Guess,
}

/// The source that tells which pages are lazily freed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LazyFreeSource {
    /// None are, where it matters.
    #[default]
    None,
    /// From the page frames (`/proc/kpageflags`): those with the mark, and no more than the sum of the
    /// mapping.
    Frames,
    /// From the sums in `smaps`: in some mapping every page may be one of them.
    Mappings,
}

fn is_assumed(gain: &GainState) -> bool {
    *gain == GainState::Assumed
}

/// One look at a process.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessLook {
    /// The process.
    pub process: ProcessId,
    /// Its name, for people.
    pub name: String,
    /// Its weight in sharing huge pages with others.
    pub weight: u32,
    /// The group with which it has one share together, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Its memory that is in RAM, of all kinds.
    #[serde(default)]
    pub resident_bytes: u64,
    /// True if it disabled huge pages for itself (`PR_SET_THP_DISABLE`).
    pub is_disabled: bool,
    /// The knowledge of its gain from huge pages.
    #[serde(default, skip_serializing_if = "is_assumed")]
    pub gain: GainState,
    /// Processor time that each huge page saves it, ns a second, as measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_ns: Option<f64>,
    /// The source of its regions' heat.
    pub heat_source: HeatSource,
    /// The source that tells which of its regions are huge.
    #[serde(default)]
    pub huge_source: HugeSource,
    /// The source that tells which of its pages are lazily freed.
    #[serde(default)]
    pub lazy_free_source: LazyFreeSource,
    /// Memory that it has given back lazily, as far as that was measured.
    #[serde(default)]
    pub lazily_freed_bytes: u64,
    /// The limits that apply to it: of its control group and of that group's ancestors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Time in which some task of its control group waited for memory, percent of the last ten seconds, where
    /// known.
    #[serde(default)]
    pub pressure_percent: f64,
    /// Its private anonymous memory, of all mappings.
    #[serde(default)]
    pub anonymous_bytes: u64,
    /// Private anonymous memory outside its regions, at the ends of mappings that have some: too little for a
    /// huge page.
    #[serde(default)]
    pub edge_bytes: u64,
    /// Its regions, by address.
    pub regions: Vec<Region>,
}

impl ProcessLook {
    /// The huge part of its memory.
    pub fn coverage(&self) -> Coverage {
        let edges = Coverage { fitting_bytes: self.edge_bytes, ..Coverage::default() };
        let mut sum = self.regions.iter().fold(edges, |sum, region| {
            let mapped_pages = region.pages.saturating_sub(region.lazily_freed_pages);
            let bytes = u64::from(mapped_pages) * page_size_bytes() as u64;
            let huge_bytes = if region.is_huge { CHUNK_BYTES as u64 } else { 0 };
            sum.plus(match region.kind {
                RegionKind::Private => {
                    Coverage { fitting_bytes: bytes, huge_bytes, ..Coverage::default() }
                }
                RegionKind::Arena | RegionKind::FrozenArena => Coverage {
                    arena_bytes: bytes,
                    arena_huge_bytes: huge_bytes,
                    ..Coverage::default()
                },
                RegionKind::Shmem => Coverage {
                    shmem_bytes: bytes,
                    shmem_huge_bytes: huge_bytes,
                    ..Coverage::default()
                },
                RegionKind::Text => Coverage {
                    text_bytes: bytes,
                    text_huge_bytes: huge_bytes,
                    ..Coverage::default()
                },
            })
        });
        let used_bytes = self.anonymous_bytes.saturating_sub(self.lazily_freed_bytes);
        sum.anonymous_bytes = used_bytes.max(sum.fitting_bytes);
        sum
    }
}

/// One look at the system and at processes.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Look {
    /// Its beginning, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// The system.
    pub system: System,
    /// The processes to promote.
    pub processes: Vec<ProcessLook>,
}

impl Look {
    /// The region as it was seen.
    pub fn region(&self, process: ProcessId, address: u64) -> Option<&Region> {
        let process = self.processes.iter().find(|look| look.process == process)?;
        process.regions.iter().find(|region| region.address == address)
    }

    /// Updates it with an action done since.
    pub fn take_in(&mut self, outcome: &ActionOutcome) {
        let process = self.processes.iter_mut().find(|look| look.process == outcome.process);
        let Some(ProcessLook { regions, anonymous_bytes, .. }) = process else { return };
        for region in regions.iter_mut().filter(|region| region.address == outcome.address) {
            let before_bytes = u64::from(region.pages) * page_size_bytes() as u64;
            match (outcome.effect, outcome.action) {
                (Effect::Done, Action::Promote) => {
                    let Region { address, kind, heat_percent, .. } = *region;
                    let (pages, is_huge) = (REGION_PAGES, true);
                    *region =
                        Region { address, kind, pages, is_huge, heat_percent, ..Region::default() };
                }
                (Effect::Done, Action::Demote) => {
                    region.pages -= outcome.freed_pages.min(region.pages);
                    (region.is_huge, region.is_partially_mapped) = (false, false);
                }
                _ => {}
            }
            if region.kind == RegionKind::Private {
                let bytes = u64::from(region.pages) * page_size_bytes() as u64;
                *anonymous_bytes = (*anonymous_bytes + bytes).saturating_sub(before_bytes);
            }
        }
    }
}
