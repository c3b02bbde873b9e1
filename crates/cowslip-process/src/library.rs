//! The library of `cowslip run` in a program: its [point](cowslip_sys::hold_point), and its mappings.

use std::collections::HashSet;
use std::fmt::Write as _;

use cowslip_sys::hold_point::{HoldPoint, Ranges};
use cowslip_sys::procfs::{Mapping, mappings};
use cowslip_sys::ptrace::Registers;
use cowslip_sys::reserved_fd::Table;
use cowslip_sys::target::Target;
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, BorrowedFd, Errno, Result, memfile};

use crate::loaded::Loaded;

/// A part of the name of its file.
const NAME: &str = "/libcowslip_preload";
/// A file of an arena on a mount of its own, where it has no name.
const HIDDEN: &str = "/#";
/// Files of arenas: in memory, or hidden.
const FILES_OF_ARENAS: [&str; 2] = ["/memfd:cowslip ", HIDDEN];
/// Files in memory by which an arena knows its readers.
pub(crate) const TOKENS: [&str; 2] = ["/memfd:cowslip-readers ", "/memfd:cowslip-users "];
/// Files in memory that it has beside those of the arenas.
const FILES: [&str; 3] = [TOKENS[0], TOKENS[1], "/memfd:cowslip-status "];

/// The library in a program.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Library {
    /// The address of the function that holds the program.
    pub(crate) hold: u64,
    code: VirtRange,
    /// The address of the arenas' places.
    arenas_at: u64,
    /// The address of the table of its descriptors.
    descriptors_at: u64,
    arenas: Vec<VirtRange>,
    /// An arena is in files that no other process can look up.
    pub(crate) hides_files: bool,
}

/// Mappings of the library that no copy needs: shared ones, which a freeze replaces, and space without content.
#[derive(Clone, Default, Debug)]
pub(crate) struct Own(Vec<VirtRange>);

impl Library {
    /// Finds the library; `None` in a program without it, or with one of another version.
    pub(crate) fn find(target: &Target, maps: &str) -> Result<Option<Self>> {
        let is_library = |mapping: &Mapping<'_>| mapping.name.contains(NAME);
        let all: Vec<_> = mappings(maps).filter(is_library).collect();
        if all.is_empty() {
            return Ok(None);
        }
        let memory = target.open_file("mem")?;
        let code = |address: u64| {
            let holds = |mapping: &&Mapping<'_>| mapping.range.contains(address as usize);
            all.iter().find(holds).filter(|mapping| mapping.protection == 5)
        };
        for mapping in all.iter().filter(|mapping| mapping.protection & 4 == 0) {
            let mut bytes = vec![0; mapping.range.len];
            let start = mapping.range.start as u64;
            if memfile::read_exact_at(memory.as_fd(), &mut bytes, start).is_err() {
                continue;
            }
            let found = HoldPoint::find(&bytes);
            let Some((point, code)) = found.and_then(|point| Some((point, code(point.function)?)))
            else {
                continue;
            };
            let found = Self {
                hold: point.function,
                code: code.range,
                arenas_at: point.arenas,
                descriptors_at: point.descriptors,
                ..Self::default()
            };
            let found = found.now(memory.as_fd())?;
            let is_hidden = |mapping: &Mapping<'_>| {
                mapping.name.starts_with(HIDDEN) && found.has_in_arena(mapping)
            };
            let hides_files = mappings(maps).any(|mapping| is_hidden(&mapping));
            return Ok(Some(Self { hides_files, ..found }));
        }
        Ok(None)
    }

    /// Finds the arenas that it has by now.
    pub(crate) fn now(&self, memory: BorrowedFd<'_>) -> Result<Self> {
        let mut arenas = [0; Ranges::BYTES];
        memfile::read_exact_at(memory, &mut arenas, self.arenas_at)?;
        Ok(Self { arenas: Ranges::read(&arenas), ..*self })
    }

    /// Finds memory among its own mappings that is known to be the program's: of a file, the heap or the stack.
    pub(crate) fn other_in(maps: &str, area: VirtRange) -> Option<&str> {
        let is_own = |name: &str| {
            FILES.iter().chain(&FILES_OF_ARENAS).any(|file| name.starts_with(file))
                || name.contains(NAME)
                || name.starts_with("[anon")
        };
        let is_other = |mapping: &Mapping<'_>| {
            !mapping.name.is_empty()
                && !is_own(mapping.name)
                && !mapping.range.intersect(area).is_empty()
        };
        mappings(maps).find(is_other).map(|mapping| mapping.name)
    }

    /// Returns true if a stopped thread is in it, or a function that it has called is, by the addresses on the stack. Some of
    /// them may be older: then it is not.
    pub(crate) fn is_called_by(&self, registers: &Registers, memory: BorrowedFd<'_>) -> bool {
        const MOST_BYTES: u64 = 16 << 10;
        let page = page_size_bytes() as u64;
        let (mut at, end) = (registers.rsp, registers.rsp.saturating_add(MOST_BYTES));
        let is_code = |word: u64| self.code.contains(word as usize);
        if is_code(registers.rip) {
            return true;
        }
        while at < end {
            let mut bytes = vec![0; (page - at % page) as usize];
            if memfile::read_exact_at(memory, &mut bytes, at).is_err() {
                break;
            }
            let (words, _) = bytes.as_chunks::<8>();
            if words.iter().any(|word| is_code(u64::from_ne_bytes(*word))) {
                return true;
            }
            at += bytes.len() as u64;
        }
        false
    }

    /// The descriptors that it has by now, in a program or in a child of it.
    pub(crate) fn descriptors(&self, memory: BorrowedFd<'_>) -> Result<Vec<i32>> {
        let mut table = [0; Table::BYTES];
        memfile::read_exact_at(memory, &mut table, self.descriptors_at)?;
        Ok(Table::read(&table))
    }

    /// All memory that is its own or its arenas', by the addresses among which its own mappings are.
    pub(crate) fn memory(
        &self,
        maps: &str,
        memory: BorrowedFd<'_>,
        area: VirtRange,
    ) -> Result<Vec<VirtRange>> {
        let mut loaded = Loaded::all(maps, memory);
        let library = loaded.find(|loaded| loaded.name.contains(NAME)).ok_or(Errno::NOENT)?;
        let mut all = self.arenas.clone();
        all.extend([area, library.range()]);
        all.sort_by_key(|range| range.start);
        Ok(all)
    }

    fn has_in_arena(&self, mapping: &Mapping<'_>) -> bool {
        self.arenas.iter().any(|arena| arena.covers(mapping.range))
    }

    /// Finds its mappings.
    pub(crate) fn own(&self, maps: &str) -> Own {
        let is_in_arena = |mapping: &Mapping<'_>| self.has_in_arena(mapping);
        let in_arenas = mappings(maps).filter(|mapping| mapping.has_file && is_in_arena(mapping));
        let devices: HashSet<u64> = in_arenas.map(|mapping| mapping.device).collect();
        let is_own = |mapping: &Mapping<'_>| {
            let has = |names: &[&str]| names.iter().any(|name| mapping.name.starts_with(name));
            // Views of frozen memory lie elsewhere, also of files of which an arena has nothing any more.
            let is_of_arena = devices.contains(&mapping.device) && has(&FILES_OF_ARENAS);
            (has(&FILES) || is_of_arena || is_in_arena(mapping))
                && (!mapping.is_private || !mapping.is_accessible)
        };
        Own(mappings(maps).filter(is_own).map(|mapping| mapping.range).collect())
    }
}

impl Own {
    /// Returns true if a mapping, or a part of one, is the library's.
    pub(crate) fn has(&self, range: VirtRange) -> bool {
        let after = self.0.partition_point(|own| own.end() <= range.start);
        self.0.get(after).is_some_and(|own| own.covers(range))
    }
}

/// The text of `maps` without the parts of mappings that lie in `ranges`, which are in order.
pub(crate) fn without(maps: &str, ranges: &[VirtRange]) -> String {
    let mut rest = String::new();
    for line in maps.lines() {
        let Some(mapping) = mappings(line).next() else { continue };
        let fields = line.split_once(' ').map_or("", |(_, fields)| fields);
        let mut at = mapping.range.start;
        let ends = VirtRange::new(mapping.range.end(), 0);
        let cuts = ranges.iter().map(|range| range.intersect(mapping.range));
        for cut in cuts.filter(|cut| !cut.is_empty()).chain([ends]) {
            if at < cut.start {
                let _ = writeln!(rest, "{at:x}-{:x} {fields}", cut.start);
            }
            at = at.max(cut.end());
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_mappings_of_its_files_and_empty_space_are_its_own() {
        let maps = "1000-3000 rw-s 00000000 00:29 2 /#2 (deleted)\n\
            3000-4000 rw-p 00002000 00:29 2 /#2 (deleted)\n\
            4000-5000 ---p 00000000 00:00 0 \n\
            5000-6000 rw-p 00000000 00:00 0 \n\
            7000-8000 rw-s 00000000 00:29 2 /#2 (deleted)\n\
            8000-9000 rw-s 00000000 00:2a 3 /#3 (deleted)\n\
            9000-a000 rw-s 00000000 00:01 9 /memfd:cowslip-users (deleted)\n";
        let arenas = vec![VirtRange::between(0x1000, 0x6000)];
        let library = Library { arenas, ..Library::default() };
        let own = library.own(maps);
        let mine: Vec<bool> = mappings(maps).map(|mapping| own.has(mapping.range)).collect();
        assert_eq!(mine, [true, false, true, false, true, false, true]);
    }

    #[test]
    fn ranges_are_cut_out_of_mappings() {
        let maps = "1000-5000 rw-p 00000000 00:00 0 [heap]\n5000-6000 r--p 00000000 08:01 9 /a\n";
        let ranges = [(0x800, 0x2000), (0x3000, 0x4000), (0x8000, 0x9000)];
        let ranges = ranges.map(|(start, end)| VirtRange::between(start, end));
        assert_eq!(
            without(maps, &ranges),
            "2000-3000 rw-p 00000000 00:00 0 [heap]\n4000-5000 rw-p 00000000 00:00 0 [heap]\n\
             5000-6000 r--p 00000000 08:01 9 /a\n"
        );
        assert_eq!(without(maps, &[VirtRange::between(0, 0x9000)]), "");
        assert_eq!(without(maps, &[]), maps);
    }

    #[test]
    fn memory_of_the_program_is_known_among_the_librarys() {
        let area = VirtRange::between(0x1000, 0x9000);
        let own = "1000-2000 rw-p 00000000 00:00 0 \n\
            2000-3000 rw-s 00000000 00:01 9 /memfd:cowslip-users (deleted)\n\
            3000-4000 rw-s 00000000 00:29 2 /#2 (deleted)\n\
            9000-a000 rw-p 00000000 00:00 0 [heap]\n";
        assert_eq!(Library::other_in(own, area), None);
        for name in ["[heap]", "/usr/bin/redis-server"] {
            let maps = format!("{own}8000-9000 rw-p 00000000 08:01 7 {name}\n");
            assert_eq!(Library::other_in(&maps, area), Some(name));
        }
    }
}
