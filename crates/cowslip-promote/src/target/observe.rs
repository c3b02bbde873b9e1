//! Looks at a process: the state of the pages in each of its regions.

use std::collections::BTreeMap;

use cowslip_sys::pageflags::PageFlags;
use cowslip_sys::pagemap::{Method, PageKinds, Scanner};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{self as sys, process, procfs};

use super::Target;
use super::arenas;
use super::entries::Entries;
use super::file_memory;
use super::heads::Heads;
use super::lazily_freed::{Sums, may_have_some};
use super::limits::Groups;
use super::regions_of;
use crate::file_text::FileSystems;
use crate::model::{
    HeatSource, HugeSource, LazyFreeSource, ProcessLook, REGION_PAGES, Region, RegionKind,
};

/// The result of a walk over the mappings.
struct Survey {
    regions: Vec<Region>,
    edge_bytes: u64,
    huge_source: HugeSource,
    lazy_free_source: LazyFreeSource,
}

impl Target {
    /// Looks at the process. Spends up to `content_ns` of processor time on reading huge pages, to find those
    /// that are nearly empty; the next look continues where this one ended.
    ///
    /// With `by_mapping`, it also finds out which mappings were accessed since the last look, if permitted.
    /// That makes the kernel walk all page tables twice, once with the process' memory map locked. With
    /// `has_lazily_freed`, it looks for lazily freed pages: another walk, if there is anything to promote. With
    /// `systems`, text of programs and libraries counts.
    pub(crate) fn look(
        &mut self,
        content_ns: u64,
        by_mapping: bool,
        has_lazily_freed: bool,
        groups: &mut Groups<'_>,
        systems: Option<&mut FileSystems>,
    ) -> sys::Result<ProcessLook> {
        let scanner = Scanner::new(self.handle.open_file("pagemap")?);
        let maps = self.handle.read_file("maps")?;
        let survey = self.survey(&scanner, &maps, has_lazily_freed, systems)?;
        let Survey { mut regions, edge_bytes, huge_source, lazy_free_source } = survey;
        self.see_merged(&scanner, &mut regions)?;
        let heat_source = if by_mapping { self.take_heat(&mut regions)? } else { HeatSource::None };
        self.look_inside(&mut regions, content_ns)?;
        let status = self.handle.read_file("status")?;
        let group = groups.look(self.handle.read_file("cgroup").unwrap_or_default());
        self.memory_group = group.group;
        Ok(ProcessLook {
            process: self.id,
            name: self.name.clone(),
            weight: self.weight,
            group: self.group.clone(),
            resident_bytes: procfs::resident_bytes(&status),
            anonymous_bytes: procfs::field_bytes(&status, "RssAnon").unwrap_or(0),
            is_disabled: procfs::thp_is_disabled(&status),
            gain: self.gain,
            saved_ns: self.saved_ns,
            heat_source,
            huge_source,
            lazy_free_source,
            lazily_freed_bytes: self.lazily_freed.bytes(),
            limits: group.limits,
            pressure_percent: group.pressure_percent,
            edge_bytes,
            regions,
        })
    }

    fn survey(
        &mut self,
        scanner: &Scanner,
        maps: &str,
        has_lazily_freed: bool,
        systems: Option<&mut FileSystems>,
    ) -> sys::Result<Survey> {
        let mappings: Vec<_> = procfs::mappings(maps).collect();
        self.arenas = arenas::find(&self.handle, &mappings)?;
        self.files = file_memory::find_shared(&self.handle, &mappings, &self.arenas)?;
        if let Some(systems) = systems {
            self.files.extend(file_memory::find_text(&mappings, systems));
        }
        let kinds: Vec<RegionKind> =
            self.arenas.iter().map(|arena| arena.kind(&self.handle)).collect::<sys::Result<_>>()?;
        let kind_of = |range| {
            let arena = self.arenas.iter().position(|arena| arena.covers(range));
            let file = self.files.iter().find(|file| file.covers(range));
            match (file, arena) {
                (Some(file), _) => file.kind(),
                (None, arena) => arena.map_or(RegionKind::Private, |index| kinds[index]),
            }
        };
        let complete = |range: VirtRange, regions: &mut Vec<Region>, first: usize| {
            if let Some(mapping) = self.files.iter().find(|file| file.covers(range)) {
                let mut of_mapping = regions.split_off(first);
                mapping.add_held(&self.handle, range, &mut of_mapping);
                regions.append(&mut of_mapping);
            }
        };
        let (mut regions, mut edge_bytes) = (Vec::new(), 0);
        let flags = PageFlags::open().ok();
        if scanner.method() == Method::Scan {
            for mapping in mappings {
                let range = regions_of(&mapping, &self.arenas, &self.files);
                let (first, kind) = (regions.len(), kind_of(mapping.range));
                survey(scanner, range, &mut regions)?;
                for region in &mut regions[first..] {
                    region.kind = kind;
                    if !kind.is_of_file() {
                        look_closer(scanner, flags.as_ref(), region)?;
                    }
                }
                complete(range, &mut regions, first);
                if !range.is_empty() && kind == RegionKind::Private {
                    let (start, end) = (mapping.range.start, mapping.range.end());
                    edge_bytes += present_bytes(scanner, VirtRange::between(start, range.start))?;
                    edge_bytes += present_bytes(scanner, VirtRange::between(range.end(), end))?;
                }
            }
            self.lazily_freed = match has_lazily_freed && regions.iter().any(may_have_some) {
                true => Sums::read(&self.handle)?,
                false => Sums::default(),
            };
            let lazy_free_source = self.see_lazily_freed(scanner, flags.as_ref(), &mut regions)?;
            let huge_source = HugeSource::PageTables;
            return Ok(Survey { regions, edge_bytes, huge_source, lazy_free_source });
        }
        let smaps = self.handle.read_file("smaps")?;
        let smaps = procfs::smaps(&smaps);
        let mut entries = Entries::new(scanner, flags.as_ref());
        for (mapping, usage) in &smaps {
            let range = regions_of(mapping, &self.arenas, &self.files);
            let (first, kind) = (regions.len(), kind_of(mapping.range));
            let agreed = |address| self.agreed.contains(&address);
            entries.survey(range, usage, agreed, &mut regions)?;
            regions[first..].iter_mut().for_each(|region| region.kind = kind);
            complete(range, &mut regions, first);
            if !range.is_empty() && kind == RegionKind::Private {
                let pages: u64 =
                    regions[first..].iter().map(|region| u64::from(region.pages)).sum();
                let regions_bytes = pages * page_size_bytes() as u64;
                edge_bytes += usage.anonymous_bytes.saturating_sub(regions_bytes);
            }
        }
        let huge_source = entries.huge_source;
        self.lazily_freed = Sums::from_smaps(&smaps);
        let lazy_free_source = self.see_lazily_freed(scanner, flags.as_ref(), &mut regions)?;
        self.known = regions.iter().map(|region| (region.address, *region)).collect();
        self.agreed.retain(|address| {
            self.known.get(address).is_some_and(|region| region.pages == REGION_PAGES)
        });
        Ok(Survey { regions, edge_bytes, huge_source, lazy_free_source })
    }

    /// Looks at one region again.
    pub(crate) fn look_again(&self, scanner: &Scanner, address: u64) -> sys::Result<Region> {
        let range = VirtRange::new(address as usize, CHUNK_BYTES);
        let region = self.look_at_tables(scanner, address)?;
        let Some(mapping) = self.files.iter().find(|file| file.covers(range)) else {
            return Ok(region);
        };
        let mut regions = vec![region];
        mapping.add_held(&self.handle, range, &mut regions);
        Ok(regions[0])
    }

    fn look_at_tables(&self, scanner: &Scanner, address: u64) -> sys::Result<Region> {
        let range = VirtRange::new(address as usize, CHUNK_BYTES);
        let kind = match self.arenas.iter().find(|arena| arena.covers(range)) {
            Some(arena) => arena.kind(&self.handle)?,
            None => RegionKind::Private,
        };
        if scanner.method() == Method::Entries {
            let known = self.known.get(&address).copied().unwrap_or_default();
            let (mut present, mut not_exclusive) = (0, 0);
            scanner.entries(range, |_, entry| {
                present += u16::from(entry.is_present());
                not_exclusive += u16::from(entry.is_not_exclusive());
            })?;
            return Ok(Region {
                address,
                kind,
                pages: present - not_exclusive,
                shared_pages: not_exclusive.saturating_sub(known.zero_pages),
                is_huge: known.is_huge && present == REGION_PAGES,
                ..Region::default()
            });
        }
        let mut found = Vec::new();
        survey(scanner, range, &mut found)?;
        let mut region = found.pop().unwrap_or(Region { address, ..Region::default() });
        region.kind = kind;
        look_closer(scanner, None, &mut region)?;
        Ok(region)
    }

    /// Heat by mapping. Resets the accessed bits for the next look.
    fn take_heat(&mut self, regions: &mut [Region]) -> sys::Result<HeatSource> {
        let knew = std::mem::replace(&mut self.knows_heat, true);
        if knew {
            let smaps = self.handle.read_file("smaps")?;
            let heat: BTreeMap<usize, (usize, u8)> = procfs::smaps(&smaps)
                .iter()
                .filter(|(_, usage)| usage.resident_bytes > 0)
                .map(|(mapping, usage)| {
                    let percent = usage.referenced_bytes * 100 / usage.resident_bytes;
                    (mapping.range.start, (mapping.range.end(), percent.min(100) as u8))
                })
                .collect();
            for region in regions.iter_mut() {
                let address = region.address as usize;
                let below = heat.range(..=address).next_back();
                region.heat_percent =
                    below.filter(|(_, (end, _))| address < *end).map(|(_, (_, percent))| *percent);
            }
        }
        match self.handle.clear_referenced() {
            Err(sys::Errno::ACCESS | sys::Errno::PERM) => return Ok(HeatSource::None),
            cleared => cleared?,
        }
        Ok(if knew { HeatSource::Mappings } else { HeatSource::None })
    }

    fn look_inside(&mut self, regions: &mut [Region], content_ns: u64) -> sys::Result<()> {
        let began = process::thread_cpu_ns();
        let first = regions.partition_point(|region| region.address < self.next_content);
        let (before, after) = regions.split_at_mut(first);
        let huge = after.iter_mut().chain(before).filter(|region| {
            region.is_huge && region.shared_pages == 0 && region.kind == RegionKind::Private
        });
        let mut is_zero = Vec::new();
        for region in huge {
            if process::thread_cpu_ns() - began >= content_ns {
                break;
            }
            match self.handle.zero_pages(region.range(), &mut is_zero) {
                Ok(()) => {
                    region.nonzero_pages =
                        Some(is_zero.iter().filter(|is_zero| !**is_zero).count() as u16);
                }
                // Unmapped meanwhile, or not readable: its content remains unknown.
                Err(sys::Errno::IO | sys::Errno::FAULT) => {}
                Err(errno) => return Err(errno),
            }
            self.next_content = region.address + 1;
        }
        Ok(())
    }
}

/// Adds every region of `range` (whole regions) that is not empty.
fn survey(scanner: &Scanner, range: VirtRange, regions: &mut Vec<Region>) -> sys::Result<()> {
    scanner.kinds(range, |run, kinds| {
        let mut rest = run;
        while !rest.is_empty() {
            let address = rest.start & !(CHUNK_BYTES - 1);
            let part = rest.intersect(VirtRange::new(address, CHUNK_BYTES));
            rest = VirtRange::between(part.end(), run.end());
            if regions.last().is_none_or(|region| region.address != address as u64) {
                regions.push(Region { address: address as u64, ..Region::default() });
            }
            let region = regions.last_mut().expect("there is one now");
            add(region, (part.len / page_size_bytes()) as u16, kinds);
        }
    })
}

/// Memory in use in a range of any regions.
fn present_bytes(scanner: &Scanner, range: VirtRange) -> sys::Result<u64> {
    let mut bytes = 0;
    if !range.is_empty() {
        scanner.kinds(range, |run, kinds| {
            if kinds.contains(PageKinds::PRESENT) && !kinds.contains(PageKinds::ZERO) {
                bytes += run.len as u64;
            }
        })?;
    }
    Ok(bytes)
}

fn add(region: &mut Region, pages: u16, kinds: PageKinds) {
    if kinds.contains(PageKinds::ZERO) {
        region.zero_pages += pages;
    } else if kinds.contains(PageKinds::PRESENT) {
        region.pages += pages;
        region.is_huge |= kinds.contains(PageKinds::HUGE) && pages == REGION_PAGES;
    } else {
        region.swapped_pages += pages;
    }
}

/// Adds facts for which `PAGEMAP_SCAN` has no category: pages that another process maps too, which the zero
/// page looks like in the entries, and whether some of them belong to a huge page. A huge page is shared as a
/// whole.
pub(crate) fn look_closer(
    scanner: &Scanner,
    flags: Option<&PageFlags>,
    region: &mut Region,
) -> sys::Result<()> {
    if region.is_huge {
        let first = VirtRange::new(region.address as usize, page_size_bytes());
        region.shared_pages = scanner.count_not_exclusive(first)? as u16 * REGION_PAGES;
        return Ok(());
    }
    let (mut not_exclusive, mut heads) = (0u16, Heads::default());
    scanner.entries(region.range(), |page, entry| {
        not_exclusive += u16::from(entry.is_not_exclusive());
        heads.see(page, entry);
    })?;
    region.shared_pages = not_exclusive.saturating_sub(region.zero_pages).min(region.pages);
    if let Some(flags) = flags.filter(|_| region.pages < REGION_PAGES) {
        region.is_partially_mapped = heads.any(flags)?;
    }
    Ok(())
}
