//! Call stacks by the unwind tables of the program's files (`.eh_frame`), which compilers write for x86-64 whether or not there
//! are frame pointers.
//!
//! ```text
//!  registers and a copy of the stack ─┐
//!  executable mappings at that moment ┴▶ tables of their files, read once each ──▶ addresses
//! ```
//! The kernel's copy is of the inner end of the stack: a call stack that needs more ends there.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use cowslip_sys::perf::StackCopy;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder as _};
use object::elf::{FileHeader64, PF_X, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{NativeEndian, ReadCache, ReadRef};

use super::options::MOST_FRAMES;
use super::space::Space;
use crate::model::Map;

const PROT_EXEC: u32 = 4;
/// Processes whose tables are kept.
const MOST_PROCESSES: usize = 256;
/// The tables of larger files are not read.
const LARGEST_TABLE: u64 = 256 << 20;

type Bytes = Arc<[u8]>;

/// The registers and the stack of a thread, as they were.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Copied {
    ip: u64,
    sp: u64,
    bp: u64,
    stack: Box<[u8]>,
}

impl Copied {
    pub(super) fn from_copy(copy: &StackCopy<'_>) -> Self {
        Self { ip: copy.ip, sp: copy.sp, bp: copy.bp, stack: copy.bytes.into() }
    }

    /// The word at an address of the stack.
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.sp)?).ok()?;
        let word = self.stack.get(at..at.checked_add(8)?)?;
        word.try_into().ok().map(u64::from_ne_bytes)
    }
}

/// Finds callers; keeps what it read of files.
#[derive(Default)]
pub(super) struct Unwinder {
    files: HashMap<Arc<str>, Option<Arc<Tables>>>,
    processes: HashMap<u32, Process>,
    cache: CacheX86_64,
}

/// The unwinder of a process, for the code that it had mapped at one moment.
struct Process {
    code_version: u64,
    unwinder: UnwinderX86_64<Bytes>,
}

impl Unwinder {
    /// Forgets a process: it has ended, or is another program now.
    pub(super) fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// The innermost frame, and the places behind the calls of its callers.
    pub(super) fn frames(
        &mut self,
        pid: u32,
        space: &Space,
        copied: &Copied,
        frames: &mut Vec<u64>,
    ) {
        let Self { files, processes, cache } = self;
        if processes.get(&pid).is_none_or(|process| process.code_version != space.code_version()) {
            if processes.len() >= MOST_PROCESSES {
                processes.clear();
            }
            processes.insert(pid, Process::new(pid, space, files));
        }
        let registers = UnwindRegsX86_64::new(copied.ip, copied.sp, copied.bp);
        let mut read = |address| copied.word(address).ok_or(());
        let unwinder = &processes[&pid].unwinder;
        let mut found = unwinder.iter_frames(copied.ip, registers, cache, &mut read);
        frames.clear();
        while let Ok(Some(frame)) = found.next()
            && frames.len() < usize::from(MOST_FRAMES)
        {
            frames.push(frame.address());
        }
    }
}

impl std::fmt::Debug for Unwinder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unwinder").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl Process {
    fn new(pid: u32, space: &Space, files: &mut HashMap<Arc<str>, Option<Arc<Tables>>>) -> Self {
        let mut unwinder = UnwinderX86_64::new();
        let is_code = |map: &&Map| map.protection & PROT_EXEC != 0;
        for map in space.maps().filter(is_code) {
            let Some(name) = map.name.as_ref().filter(|name| name.starts_with('/')) else {
                continue;
            };
            let tables =
                files.entry(name.clone()).or_insert_with(|| Tables::read(pid, name).map(Arc::new));
            if let Some(module) = tables.as_ref().and_then(|tables| tables.module(map)) {
                unwinder.add_module(module);
            }
        }
        Self { code_version: space.code_version(), unwinder }
    }
}

/// The unwind tables of a file, and the places of its code.
struct Tables {
    name: Arc<str>,
    /// The offset in the file, the address and the size of each executable segment.
    segments: Vec<(u64, u64, u64)>,
    eh_frame: Option<(Range<u64>, Bytes)>,
    eh_frame_hdr: Option<(Range<u64>, Bytes)>,
}

impl Tables {
    /// `None` if the file cannot be read, or is of another kind.
    fn read(pid: u32, name: &Arc<str>) -> Option<Self> {
        // The process may have another root.
        let in_its_root = File::open(format!("/proc/{pid}/root{name}"));
        let data = &ReadCache::new(in_its_root.or_else(|_| File::open(&**name)).ok()?);
        let header = FileHeader64::<NativeEndian>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let is_code = |segment: &&object::elf::ProgramHeader64<_>| {
            segment.p_type(endian) == PT_LOAD && segment.p_flags(endian).contains(PF_X)
        };
        let segments = header.program_headers(endian, data).ok()?.iter().filter(is_code);
        let place = |segment: &object::elf::ProgramHeader64<_>| {
            (segment.p_offset(endian), segment.p_vaddr(endian), segment.p_memsz(endian))
        };
        let sections = header.sections(endian, data).ok()?;
        let section = |name: &[u8]| {
            let (_, section) = sections.section_by_name(endian, name)?;
            let (offset, size) = section.file_range(endian)?;
            let bytes =
                (size <= LARGEST_TABLE).then(|| data.read_bytes_at(offset, size).ok())??;
            let address = section.sh_addr(endian);
            Some((address..address.checked_add(size)?, Bytes::from(bytes)))
        };
        Some(Self {
            name: name.clone(),
            segments: segments.map(place).collect(),
            eh_frame: section(b".eh_frame"),
            eh_frame_hdr: section(b".eh_frame_hdr"),
        })
    }

    /// The tables for a mapping of the file.
    fn module(&self, map: &Map) -> Option<Module<Bytes>> {
        let (start, end) = (map.range.start as u64, map.range.end() as u64);
        let page = cowslip_sys::units::page_size_bytes() as u64;
        // A segment is mapped from the page in which it begins.
        let (offset, address, _) = self.segments.iter().find(|(offset, _, size)| {
            (offset - offset % page..offset.saturating_add(*size)).contains(&map.offset_bytes)
        })?;
        let base = start.wrapping_sub(address.wrapping_add(map.offset_bytes).wrapping_sub(*offset));
        let sections = ExplicitModuleSectionInfo {
            eh_frame_svma: self.eh_frame.as_ref().map(|(range, _)| range.clone()),
            eh_frame: self.eh_frame.as_ref().map(|(_, bytes)| bytes.clone()),
            eh_frame_hdr_svma: self.eh_frame_hdr.as_ref().map(|(range, _)| range.clone()),
            eh_frame_hdr: self.eh_frame_hdr.as_ref().map(|(_, bytes)| bytes.clone()),
            ..ExplicitModuleSectionInfo::default()
        };
        Some(Module::new(self.name.to_string(), start..end, base, sections))
    }
}
