//! Programs and libraries that a process has loaded (`elf(5)`).
//!
//! The tables by which they call each other are read from the process' memory, those for debuggers from the file. They are the
//! process' own, which may have anything in their place: lengths are bounded, and sums wrap.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use cowslip_sys::procfs::{Mapping, mappings};
use cowslip_sys::target::Target;
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{BorrowedFd, Errno, Result, memfile};
use object::elf::{self, DynamicTag, FileHeader64};
use object::pod::{self, Pod};
use object::read::elf::{FileHeader, SectionHeader};
use object::{NativeEndian, ReadCache};

type Header = FileHeader64<NativeEndian>;
type Segment = elf::ProgramHeader64<NativeEndian>;
type Dynamic = elf::Dyn64<NativeEndian>;
type Relocation = elf::Rela64<NativeEndian>;
type Symbol = elf::Sym64<NativeEndian>;

/// The longest table that is read.
const MOST_BYTES: usize = 16 << 20;
/// The longest table of a file that is read: those of browsers have 100 MiB.
const MOST_BYTES_OF_FILE: u64 = 256 << 20;
/// The most symbols of one hash.
const MOST_IN_BUCKET: u64 = 1 << 10;

/// One of them.
pub(crate) struct Loaded<'a> {
    /// Its path.
    pub(crate) name: &'a str,
    /// The mappings of its file.
    parts: Vec<Mapping<'a>>,
    memory: BorrowedFd<'a>,
    /// The difference between its addresses in memory and in its file.
    bias: u64,
    /// The end of its memory, of which the last pages are not the file's.
    end: u64,
    dynamic: Vec<Dynamic>,
}

impl<'a> Loaded<'a> {
    /// Finds all of them, by the text of `/proc/PID/maps`.
    pub(crate) fn all(maps: &'a str, memory: BorrowedFd<'a>) -> impl Iterator<Item = Self> {
        let all: Vec<_> = mappings(maps).filter(|mapping| mapping.has_file).collect();
        let starts = (0..all.len()).filter(|i| all[*i].offset_bytes == 0).collect::<Vec<_>>();
        starts.into_iter().filter_map(move |first| {
            let file = |mapping: &Mapping<'_>| (mapping.device, mapping.inode);
            let is_part = |mapping: &&Mapping<'_>| file(mapping) == file(&all[first]);
            let parts: Vec<_> = all[first..].iter().take_while(is_part).copied().collect();
            let has_code = parts.iter().any(|part| part.protection & libc::PROT_EXEC as u32 != 0);
            has_code.then(|| Self::read(parts, memory).ok())?
        })
    }

    fn read(parts: Vec<Mapping<'a>>, memory: BorrowedFd<'a>) -> Result<Self> {
        let base = parts[0].range.start as u64;
        let header: Header = read_one(memory, base)?;
        if !header.is_supported() {
            return Err(Errno::NOEXEC);
        }
        let place = base.wrapping_add(header.e_phoff.get(NativeEndian));
        let segments: Vec<Segment> = read(memory, place, header.e_phnum.get(NativeEndian).into())?;
        let of_kind = |kind: elf::ProgramType| {
            segments.iter().find(move |segment| segment.p_type.get(NativeEndian) == kind)
        };
        let (Some(first), Some(dynamic)) = (of_kind(elf::PT_LOAD), of_kind(elf::PT_DYNAMIC)) else {
            return Err(Errno::NOEXEC);
        };
        let bias = base.wrapping_sub(first.p_vaddr.get(NativeEndian));
        let ends =
            segments.iter().filter(|segment| segment.p_type.get(NativeEndian) == elf::PT_LOAD);
        let ends = ends.map(|segment| {
            bias.wrapping_add(segment.p_vaddr.get(NativeEndian))
                .wrapping_add(segment.p_memsz.get(NativeEndian))
        });
        let end = ends.max().unwrap_or(base);
        let place = bias.wrapping_add(dynamic.p_vaddr.get(NativeEndian));
        let count = dynamic.p_memsz.get(NativeEndian) as usize / size_of::<Dynamic>();
        let dynamic = read(memory, place, count)?;
        Ok(Self { name: parts[0].name, parts, memory, bias, end, dynamic })
    }

    /// All of its memory.
    pub(crate) fn range(&self) -> VirtRange {
        let start = self.parts[0].range.start;
        let end = (self.end as usize).checked_next_multiple_of(page_size_bytes());
        VirtRange::between(start, end.unwrap_or(start).max(start))
    }

    fn value(&self, tag: DynamicTag) -> Option<u64> {
        let entry = self.dynamic.iter().find(|entry| entry.d_tag.get(NativeEndian) == tag)?;
        Some(entry.d_val.get(NativeEndian))
    }

    /// The address in memory of a table. The loader of glibc has put it in the place of that in the file, musl's has not.
    fn table(&self, tag: DynamicTag) -> Option<u64> {
        let value = self.value(tag)?;
        let is_in_memory = value >= self.parts[0].range.start as u64;
        Some(if is_in_memory { value } else { value.wrapping_add(self.bias) })
    }

    /// Returns true if one of its mappings has `range`, with this protection at least, and no other process sees its writes.
    fn has(&self, range: VirtRange, protection: i32) -> bool {
        let protection = protection as u32;
        self.parts.iter().any(|part| {
            part.is_private
                && part.protection & protection == protection
                && part.range.covers(range)
        })
    }

    /// The addresses of the places through which it calls a function of another library.
    pub(crate) fn slots(&self, function: &str) -> Option<Vec<u64>> {
        let mut slots = Vec::new();
        for (start, bytes) in [(elf::DT_JMPREL, elf::DT_PLTRELSZ), (elf::DT_RELA, elf::DT_RELASZ)] {
            let (Some(start), Some(bytes)) = (self.table(start), self.value(bytes)) else {
                continue;
            };
            let count = bytes as usize / size_of::<Relocation>();
            slots.extend(read::<Relocation>(self.memory, start, count).ok()?);
        }
        let is_slot = |relocation: &Relocation| {
            let kind = relocation.r_type(NativeEndian, false);
            let start = relocation.r_offset.get(NativeEndian).wrapping_add(self.bias);
            [elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT].contains(&kind)
                && self.has(VirtRange::new(start as usize, 8), libc::PROT_READ)
        };
        slots.retain(is_slot);
        let number = |slot: &Relocation| slot.r_sym(NativeEndian, false) as usize;
        let count = slots.iter().map(number).max()? + 1;
        let symbols: Vec<Symbol> = read(self.memory, self.table(elf::DT_SYMTAB)?, count).ok()?;
        let len = self.value(elf::DT_STRSZ)? as usize;
        let names: Vec<u8> = read(self.memory, self.table(elf::DT_STRTAB)?, len).ok()?;
        let is_functions = |slot: &&Relocation| {
            let name = names.get(symbols[number(slot)].st_name.get(NativeEndian) as usize..);
            let name = name.and_then(|rest| rest.split(|&byte| byte == 0).next());
            name == Some(function.as_bytes())
        };
        let found = slots.iter().filter(is_functions);
        let place = |slot: &Relocation| slot.r_offset.get(NativeEndian).wrapping_add(self.bias);
        Some(found.map(place).collect())
    }

    /// The address of a function that it offers to other libraries.
    pub(crate) fn function(&self, name: &str) -> Option<u64> {
        let (symbols, names) = (self.table(elf::DT_SYMTAB)?, self.table(elf::DT_STRTAB)?);
        let table = self.table(elf::DT_GNU_HASH)?;
        let header: [u32; 4] = read_one(self.memory, table).ok()?;
        let [buckets, first, words_of_filter, _] = header.map(u64::from);
        let hash = elf::gnu_hash(name.as_bytes());
        let word = |place: u64| read_one::<u32>(self.memory, place).ok();
        let buckets_at = table.wrapping_add(16 + 8 * words_of_filter);
        let chains_at = buckets_at.wrapping_add(4 * buckets);
        let bucket = u64::from(hash).checked_rem(buckets)?;
        let start = u64::from(word(buckets_at.wrapping_add(4 * bucket))?);
        for number in start..start + MOST_IN_BUCKET {
            let other = word(chains_at.wrapping_add(4 * number.checked_sub(first)?))?;
            if other | 1 == hash | 1 {
                let symbol = self.symbol(symbols, number)?;
                let place = symbol.st_value.get(NativeEndian).wrapping_add(self.bias);
                if self.has_name(names, &symbol, name) {
                    let is_code = self.has(VirtRange::new(place as usize, 1), libc::PROT_EXEC);
                    return is_code.then_some(place);
                }
            }
            if other & 1 != 0 {
                return None;
            }
        }
        None
    }

    /// The address of a function that it keeps to itself, by the symbols of its file; `None` if the file has none any more.
    pub(crate) fn hidden_function(&self, target: &Target, name: &str) -> Option<u64> {
        let file = ReadCache::new(self.open(target)?);
        let header = Header::parse(&file).ok()?;
        let sections = header.section_headers(NativeEndian, &file).ok()?;
        let is_symbols = |section: &&elf::SectionHeader64<NativeEndian>| {
            section.sh_type(NativeEndian) == elf::SHT_SYMTAB
        };
        let symbols = sections.iter().find(is_symbols)?;
        let names = sections.get(symbols.sh_link(NativeEndian) as usize)?;
        if [symbols, names].iter().any(|table| table.sh_size.get(NativeEndian) > MOST_BYTES_OF_FILE)
        {
            return None;
        }
        let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
        let names = names.data(NativeEndian, &file).ok()?;
        let place = 1 + names.windows(wanted.len()).position(|window| window == wanted)?;
        let symbols = symbols.data_as_array::<Symbol, _>(NativeEndian, &file).ok()?;
        let has_name = |symbol: &&Symbol| symbol.st_name.get(NativeEndian) as usize == place;
        let value = symbols.iter().find(has_name)?.st_value.get(NativeEndian);
        let place = value.wrapping_add(self.bias);
        self.has(VirtRange::new(place as usize, 1), libc::PROT_EXEC).then_some(place)
    }

    /// Opens its file, also one that was deleted, or that another has replaced. Without privileges it is found by its path.
    fn open(&self, target: &Target) -> Option<File> {
        let first = &self.parts[0];
        let range = format!("map_files/{:x}-{:x}", first.range.start, first.range.end());
        if let Ok(file) = target.open_file(&range) {
            return Some(file.into());
        }
        let file = File::from(target.open_file(&format!("root{}", self.name)).ok()?);
        let is_it = file.metadata().is_ok_and(|file| file.is_file() && file.ino() == first.inode);
        is_it.then_some(file)
    }

    fn symbol(&self, symbols: u64, number: u64) -> Option<Symbol> {
        let place = symbols.wrapping_add(number * size_of::<Symbol>() as u64);
        read_one(self.memory, place).ok()
    }

    fn has_name(&self, names: u64, symbol: &Symbol, name: &str) -> bool {
        let mut bytes = vec![0; name.len() + 1];
        let place = names.wrapping_add(symbol.st_name.get(NativeEndian).into());
        let read = memfile::read_exact_at(self.memory, &mut bytes, place);
        read.is_ok() && bytes.strip_suffix(&[0]) == Some(name.as_bytes())
    }
}

fn read_one<T: Pod>(memory: BorrowedFd<'_>, place: u64) -> Result<T> {
    read(memory, place, 1).map(|all| all[0])
}

fn read<T: Pod>(memory: BorrowedFd<'_>, place: u64, count: usize) -> Result<Vec<T>> {
    let len = count.checked_mul(size_of::<T>()).filter(|len| *len <= MOST_BYTES);
    let len = len.ok_or(Errno::NOEXEC)?;
    let mut words = vec![0_u64; len.div_ceil(8)];
    let bytes = &mut pod::bytes_of_slice_mut(&mut words)[..len];
    memfile::read_exact_at(memory, bytes, place)?;
    let (all, _) = pod::slice_from_bytes(bytes, count).map_err(|()| Errno::NOEXEC)?;
    Ok(all.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cowslip_sys::{AsFd, procfs};

    #[test]
    fn tables_of_this_process_are_those_of_its_loader() {
        if cfg!(target_feature = "crt-static") {
            println!("SKIPPED: loader: this test is a static program");
            return;
        }
        let maps = procfs::read_text("/proc/self/maps").unwrap();
        let target = Target::open(std::process::id() as i32).unwrap();
        let memory = target.open_file("mem").unwrap();
        let all: Vec<_> = Loaded::all(&maps, memory.as_fd()).collect();
        let libc = all.iter().find(|loaded| loaded.name.contains("/libc.so.6")).unwrap();
        assert_eq!(libc.function("getppid"), Some(libc::getppid as *const () as u64));
        assert_eq!(libc.function("no_such_function"), None);
        let own = tables_of_this_process_are_those_of_its_loader as *const () as u64;
        let program = &all[0];
        assert!(program.has(VirtRange::new(own as usize, 1), libc::PROT_EXEC));
        let [slot] = program.slots("getppid").unwrap()[..] else { panic!("one slot") };
        let address: u64 = read_one(memory.as_fd(), slot).unwrap();
        assert_eq!(Some(address), libc.function("getppid"));
        assert_eq!(program.function("main"), None, "not for libraries");
        let main = program.hidden_function(&target, "main").unwrap();
        assert!(program.has(VirtRange::new(main as usize, 1), libc::PROT_EXEC), "{main:x}");
        assert_eq!(program.hidden_function(&target, "no_such_function"), None);
    }

    #[test]
    fn lengths_are_bounded() {
        let target = Target::open(std::process::id() as i32).unwrap();
        let memory = target.open_file("mem").unwrap();
        let longest = read::<u64>(memory.as_fd(), 0, usize::MAX);
        assert_eq!(longest.unwrap_err(), Errno::NOEXEC);
    }
}
