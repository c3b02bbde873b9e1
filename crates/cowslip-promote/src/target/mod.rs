//! A process to promote: observed, acted on, measured.

mod act;
mod arenas;
mod effort;
mod entries;
mod file_memory;
mod heads;
mod lazily_freed;
mod limits;
mod merged;
mod observe;
mod pages;
mod partially_mapped;

use std::collections::{BTreeMap, BTreeSet};

use cowslip_sys::capabilities::SETCAP;
use cowslip_sys::cgroup;
use cowslip_sys::error::{During, Error, Result};
use cowslip_sys::procfs::{self, Mapping};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{self as sys, Errno};

use crate::model::{Coverage, GainState, ProcessId, Region, RegionKind, Settings, added_bytes};
use crate::work::WorkSource;
use arenas::ForeignArena;
use file_memory::FileMapping;

pub(crate) use file_memory::FileRegion;
pub(crate) use limits::Groups;

/// A process, observed and acted on until it ends. Exec and the reuse of its number are harmless: the
/// kernel's handles belong to the process, and no action changes content.
#[derive(Debug)]
pub struct Target {
    pub(crate) handle: sys::target::Target,
    id: ProcessId,
    name: String,
    pub(crate) weight: u32,
    pub(crate) group: Option<String>,
    pub(crate) gain: GainState,
    /// Processor time that each huge page saves it, ns a second, as measured.
    pub(crate) saved_ns: Option<f64>,
    /// The counter of its work, if one was named.
    pub(crate) work: Option<WorkSource>,
    /// The control group that its memory counts against, by the last look.
    pub(crate) memory_group: Option<cgroup::Group>,
    /// The address at which the next look continues to read huge pages.
    next_content: u64,
    knows_heat: bool,
    arenas: Vec<ForeignArena>,
    files: Vec<FileMapping>,
    lazily_freed: lazily_freed::Sums,
    /// Regions with merged pages at the last look.
    merged: BTreeSet<u64>,
    /// Without `PAGEMAP_SCAN`: the last look, and the regions that a collapse has made huge.
    known: BTreeMap<u64, Region>,
    agreed: BTreeSet<u64>,
}

impl Target {
    /// Opens the process that has this number now, if it may be observed. `weight` is its weight in sharing
    /// huge pages with others.
    ///
    /// `Vanished` if there is none, `Denied` with the missing privilege if it may not be observed.
    pub fn open(pid: i32, weight: u32) -> Result<Self> {
        let doing = "open the process to promote";
        let open = || {
            let handle = sys::target::Target::open(pid)?;
            let stat = handle.read_file("stat")?;
            let start_ticks = procfs::start_ticks(&stat).ok_or(Errno::IO)?;
            let name = procfs::command_name(&stat).unwrap_or("?").to_owned();
            handle.open_file("pagemap")?;
            handle.open_file("mem")?;
            let id = ProcessId { pid, start_ticks };
            Ok(Self {
                handle,
                id,
                name,
                weight,
                group: None,
                gain: GainState::default(),
                saved_ns: None,
                work: None,
                memory_group: None,
                next_content: 0,
                knows_heat: false,
                arenas: Vec::new(),
                files: Vec::new(),
                lazily_freed: lazily_freed::Sums::default(),
                merged: BTreeSet::new(),
                known: BTreeMap::new(),
                agreed: BTreeSet::new(),
            })
        };
        open().during(doing).map_err(|error| explain(error, pid))
    }

    /// Shares its weight with all other processes of the group: their huge pages count together.
    #[must_use]
    pub fn in_group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Has its gain from huge pages measured before its memory is promoted, by this counter of its work if there is one.
    #[must_use]
    pub fn to_measure(mut self, work: Option<WorkSource>) -> Self {
        (self.gain, self.work) = (GainState::Unmeasured, work);
        self
    }

    /// The process.
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// Its name when it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The region of a file that is at this address, if it is shared memory or text.
    pub(crate) fn file_region(&self, address: u64) -> Option<FileRegion> {
        let range = VirtRange::new(address as usize, CHUNK_BYTES);
        let mapping = self.files.iter().find(|file| file.covers(range))?;
        Some(mapping.file_region(address))
    }

    /// True if a promotion of a region with so many pages in use leaves room below the limits of its control
    /// group, as they are now.
    pub(crate) fn has_room(&self, pages: u16, settings: &Settings) -> bool {
        let Some(group) = &self.memory_group else { return true };
        limits::has_room(group, added_bytes(pages), settings)
    }

    /// The huge part of its memory by the kernel's sums (`/proc/PID/smaps`): independent of the looks, and
    /// far slower.
    pub fn coverage(&self) -> Result<Coverage> {
        let text = self.handle.read_file("smaps").during("read smaps of the process")?;
        let all = procfs::smaps(&text);
        let mappings: Vec<_> = all.iter().map(|(mapping, _)| *mapping).collect();
        let arenas =
            arenas::find(&self.handle, &mappings).during("read the counters of its arenas")?;
        let mut files = file_memory::find_shared(&self.handle, &mappings, &arenas)
            .during("find the shared memory of the process")?;
        let unaligned = file_memory::find_unaligned(&self.handle, &mappings, &arenas)
            .during("find the shared memory of the process")?;
        // Text is known by the last look.
        files.extend(self.files.iter().filter(|file| file.kind() == RegionKind::Text).cloned());
        Ok(all.iter().fold(Coverage::default(), |sum, (mapping, usage)| {
            let fits = !regions_of(mapping, &arenas, &files).is_empty();
            let (bytes, huge_bytes) = (usage.resident_bytes, usage.huge_mapped_bytes());
            match files.iter().find(|file| file.covers(mapping.range)).map(FileMapping::kind) {
                Some(RegionKind::Text) => {
                    return sum.plus(Coverage {
                        text_bytes: bytes,
                        text_huge_bytes: huge_bytes,
                        ..Coverage::default()
                    });
                }
                Some(_) => {
                    return sum.plus(Coverage {
                        shmem_bytes: bytes,
                        shmem_huge_bytes: huge_bytes,
                        ..Coverage::default()
                    });
                }
                None => {}
            }
            if unaligned.iter().any(|file| file.covers(mapping.range)) {
                return sum.plus(Coverage { shmem_unaligned_bytes: bytes, ..Coverage::default() });
            }
            sum.plus(match arenas.iter().any(|arena| arena.has(mapping)) {
                true if fits => Coverage {
                    arena_bytes: usage.resident_bytes,
                    arena_huge_bytes: usage.shmem_huge_bytes,
                    ..Coverage::default()
                },
                true => Coverage::default(),
                false => {
                    // Lazily freed huge pages are still huge.
                    let used_bytes = usage.anonymous_bytes.saturating_sub(usage.lazily_freed_bytes);
                    let anonymous_bytes = used_bytes.max(usage.huge_bytes);
                    Coverage {
                        anonymous_bytes,
                        fitting_bytes: if fits { anonymous_bytes } else { 0 },
                        huge_bytes: if fits { usage.huge_bytes } else { 0 },
                        ..Coverage::default()
                    }
                }
            })
        }))
    }
}

/// The part of a mapping that huge pages can map.
fn regions_of(mapping: &Mapping<'_>, arenas: &[ForeignArena], files: &[FileMapping]) -> VirtRange {
    let is_arena = mapping.is_accessible && arenas.iter().any(|arena| arena.has(mapping));
    let is_of_file = || files.iter().any(|file| file.covers(mapping.range));
    if mapping.is_anonymous() || is_arena || is_of_file() {
        mapping.range.inner_aligned(CHUNK_BYTES)
    } else {
        VirtRange::default()
    }
}

fn explain(error: Error, pid: i32) -> Error {
    use crate::ErrorKind::{Denied, Vanished};
    match error.kind() {
        Vanished => error.because(format!("there is no process {pid}")),
        Denied => error.because(format!("process {pid} is another user's")).advise(format!(
            "run as its user, or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH (as root, or once \
                 `{SETCAP}`)"
        )),
        _ => error.because(format!("it is process {pid}")),
    }
}
