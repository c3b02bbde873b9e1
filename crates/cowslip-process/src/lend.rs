//! Memory of a holder, mapped by other processes in place of a copy.
//!
//! ```text
//!   the program's arena ── base ◀─MAP_PRIVATE── holder        pages of its own: to be copied
//!                           ▲  ◀─MAP_PRIVATE── borrower       maps the readers' tokens as well
//! ```
//! A holder of a program with an arena maps its files privately, and a token of their readers: as long as any process
//! maps that, the files stay as they are. A borrower maps both, as a child does, so that the holder may go.

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::procfs::{Mapping, mappings};
use cowslip_sys::target::Target;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, AsRawFd, Errno, OwnedFd, process};
use libc::{
    MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE, SYS_close, SYS_mmap,
};

use crate::hold::{Holder, with_room};
use crate::inject::{Injection, Sites};
use crate::library::TOKENS;
use crate::stop::Threads;

const OPERATION: &str = "lend memory of a program's instant";
/// Each is a mapping of each borrower.
const MOST_PARTS: usize = 512;

/// A range of a holder's memory that other processes can map.
#[derive(Debug)]
pub struct Loan {
    files: Vec<OwnedFd>,
    parts: Vec<Part>,
    tokens: Vec<OwnedFd>,
    own: Vec<VirtRange>,
}

/// A part that a file has.
#[derive(Debug)]
struct Part {
    /// From the beginning of the range.
    range: VirtRange,
    offset_bytes: u64,
    /// The number of its file.
    file: usize,
}

fn failed(errno: Errno) -> Error {
    Error::from_errno(OPERATION, errno)
}

fn unsupported(why: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, OPERATION).because(why)
}

impl Holder {
    /// Lends a range of the memory that it maps privately from an arena. Processes that are started from here on inherit
    /// the descriptors of it.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] without the right to open the files (`CAP_CHECKPOINT_RESTORE`);
    /// [`ErrorKind::Unsupported`] if there are too many parts.
    pub fn lend_memory(&self, range: VirtRange) -> Result<Loan> {
        let held = Target::open(self.pid()).map_err(failed)?;
        let maps = held.read_file("maps").map_err(failed)?;
        let pages = Scanner::new(held.open_file("pagemap").map_err(failed)?);
        let mut loan =
            Loan { files: Vec::new(), parts: Vec::new(), tokens: Vec::new(), own: Vec::new() };
        for mapping in mappings(&maps) {
            let name = link(&mapping);
            if TOKENS.iter().any(|token| mapping.name.starts_with(token)) && !mapping.is_private {
                loan.tokens.push(held.open_writable(&name).map_err(failed)?);
            }
            let part = mapping.range.intersect(range);
            if part.is_empty() || !mapping.is_private {
                continue;
            }
            let mut own = Vec::new();
            let whole = |run: VirtRange| run.outer_aligned(CHUNK_BYTES).intersect(part);
            pages.private_runs(part, |run| own.push(whole(run))).map_err(failed)?;
            if mapping.has_file {
                loan.files.push(held.open_file(&name).map_err(failed)?);
                loan.add(&mapping, part, &own, range.start);
            }
            loan.own.extend(own.iter().map(|own| VirtRange::new(own.start - range.start, own.len)));
        }
        if loan.tokens.is_empty() || loan.parts.len() > MOST_PARTS {
            return Err(unsupported("it is in no arena, or in too many parts"));
        }
        for file in loan.files.iter().chain(&loan.tokens) {
            process::keep_across_exec(file.as_fd()).map_err(failed)?;
        }
        Ok(loan)
    }
}

/// The name of a mapping's file in its process' folder.
fn link(mapping: &Mapping<'_>) -> String {
    format!("map_files/{:x}-{:x}", mapping.range.start, mapping.range.end())
}

impl Loan {
    /// Adds the parts of a mapping, which the last file has, between the holder's own.
    fn add(&mut self, mapping: &Mapping<'_>, part: VirtRange, own: &[VirtRange], start: usize) {
        let ends = own.iter().copied().chain([VirtRange::new(part.end(), 0)]);
        let mut from = part.start;
        for own in ends {
            if own.start > from {
                self.parts.push(Part {
                    range: VirtRange::between(from - start, own.start - start),
                    offset_bytes: mapping.offset_bytes + (from - mapping.range.start) as u64,
                    file: self.files.len() - 1,
                });
            }
            from = from.max(own.end());
        }
    }

    /// The parts that the holder has pages of its own in, from the beginning of the range: a borrower needs a copy of
    /// them.
    pub fn own_parts(&self) -> &[VirtRange] {
        &self.own
    }

    /// Has a process that inherited the descriptors map all other parts over its memory from `at` on, and close them.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] if it may not be traced; [`ErrorKind::Unsupported`] if no thread has room for a call;
    /// [`ErrorKind::Vanished`] if it has ended.
    pub fn map_in(&self, pid: i32, at: usize) -> Result<()> {
        let target = Target::open(pid).map_err(failed)?;
        let mut threads = Threads::seize(pid).map_err(failed)?;
        threads.stop().map_err(failed)?;
        let maps = target.read_file("maps").map_err(failed)?;
        let memory = target.open_memory().map_err(failed)?;
        let sites = Sites::find(&target, &maps).map_err(failed)?;
        let sites = sites.ok_or_else(|| unsupported("its code has no system call"))?;
        let (caller, room) = with_room(&mut threads, &maps, memory.as_fd(), |_| true)
            .ok_or_else(|| unsupported("none of its threads has room for a call"))?;
        let injection = Injection::prepare(caller, room, memory.as_fd(), sites).map_err(failed)?;
        injection.make(&self.calls(at)).map_err(failed)
    }

    fn calls(&self, at: usize) -> Vec<(libc::c_long, [u64; 6])> {
        let number = |file: &OwnedFd| file.as_raw_fd() as u64;
        let access = (PROT_READ | PROT_WRITE) as u64;
        let token = |token| {
            let len = page_size_bytes() as u64;
            (SYS_mmap, [0, len, access, MAP_SHARED as u64, number(token), 0])
        };
        let part = |part: &Part| {
            let flags = (MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE) as u64;
            let (place, len) = ((at + part.range.start) as u64, part.range.len as u64);
            let file = number(&self.files[part.file]);
            (SYS_mmap, [place, len, access, flags, file, part.offset_bytes])
        };
        let all = self.files.iter().chain(&self.tokens);
        let close = |file: &OwnedFd| (SYS_close, [number(file), 0, 0, 0, 0, 0]);
        // The tokens first: they keep the files as they are.
        let tokens = self.tokens.iter().map(token);
        tokens.chain(self.parts.iter().map(part)).chain(all.map(close)).collect()
    }
}
