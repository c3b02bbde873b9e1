#![allow(unsafe_code)]
//! Memory for the store, of each kind, and the holder of its content while it is saved: a child, or a frozen view.
//!
//! # Safety
//! A [`Memory`] owns its range, which is mapped readable and writable until it is dropped. The advice given here
//! changes no content. A child reads the range, writes to files that are open and ends: all of it async-signal-safe,
//! and without allocation.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip::{Arena, ArenaSlice, FreezeMethod, Frozen};
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::{AsFd, OwnedFd, process};

use super::Result;
use crate::interrupt::Interrupt;

/// Bytes written by one system call.
const WRITE_BYTES: usize = 1 << 20;
const THAW_PATIENCE: Duration = Duration::from_secs(60);
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// The store's memory, which determines the way to save it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Fork4k,
    ForkThp,
    ForkHugetlb,
    Cowslip,
}

impl MemoryKind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Fork4k, Self::ForkThp, Self::ForkHugetlb, Self::Cowslip];

    /// Its name in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fork4k => "store-fork-4k",
            Self::ForkThp => "store-fork-thp",
            Self::ForkHugetlb => "store-fork-hugetlb",
            Self::Cowslip => "store-cowslip",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Memory {
    range: VirtRange,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// Mapped here, unmapped with this value.
    Mapping {
        _file: Option<OwnedFd>,
    },
    Arena {
        bytes: ArenaSlice<u8>,
        arena: Arena,
    },
}

impl Memory {
    /// Zeroed memory; `bytes` is a multiple of 2 MiB.
    pub(crate) fn new(kind: MemoryKind, bytes: usize) -> Result<Self> {
        match kind {
            MemoryKind::Fork4k => Self::anonymous(bytes, Advice::NoHugePage),
            MemoryKind::ForkThp => Self::anonymous(bytes, Advice::HugePage),
            MemoryKind::ForkHugetlb => Self::hugetlb(bytes),
            MemoryKind::Cowslip => {
                let failed = during("make an arena");
                let arena = Arena::new(ByteCount(bytes as u64)).map_err(failed)?;
                let bytes = arena.slice(bytes).map_err(during("allocate from an arena"))?;
                Ok(Self { range: bytes.range(), owner: Owner::Arena { bytes, arena } })
            }
        }
    }

    fn anonymous(bytes: usize, pages: Advice) -> Result<Self> {
        let range = memory::reserve(bytes, CHUNK_BYTES).map_err(during("reserve memory"))?;
        let memory = Self { range, owner: Owner::Mapping { _file: None } };
        // SAFETY: the range was just reserved for this value.
        unsafe { memory::map_anonymous(range, Prot::RW) }.map_err(during("map memory"))?;
        memory.advise(pages)?;
        memory.advise(Advice::DontFork)?;
        Ok(memory)
    }

    fn hugetlb(bytes: usize) -> Result<Self> {
        // A child reads memory that the store copies: without pages for the copies the kernel ends the child.
        let needed = 2 * (bytes / CHUNK_BYTES) as u64;
        let free = pool("free_hugepages")?.saturating_sub(pool("resv_hugepages")?);
        if free < needed {
            return Err(format!(
                "the hugetlb pool has {free} free pages, and the store and its copies need {needed}"
            ));
        }
        let file = memfile::memfd("cowslip-store", MemfdKind::Hugetlb2M, bytes as u64)
            .map_err(during("make a hugetlb file"))?;
        let range = memory::map_file_reserved(bytes, file.as_fd(), 0, Sharing::Private)
            .map_err(during("map hugetlb pages"))?;
        let memory = Self { range, owner: Owner::Mapping { _file: Some(file) } };
        memory.advise(Advice::DontFork)?;
        Ok(memory)
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the range stays mapped as long as `self`, is aligned to pages, and this process writes it only
        // through these atomics.
        unsafe {
            std::slice::from_raw_parts(self.range.start as *const AtomicU64, self.words_len())
        }
    }

    fn words_len(&self) -> usize {
        self.range.len / size_of::<AtomicU64>()
    }

    fn advise(&self, advice: Advice) -> Result<()> {
        // SAFETY: the range is this value's, and none of the advice above drops content.
        unsafe { memory::advise(self.range, advice) }.map_err(during(format!("madvise {advice:?}")))
    }

    /// Captures the content of this instant, to be written to `file`.
    pub(crate) fn snapshot(&self, file: File, stop: &Interrupt) -> Result<Snapshot<'_>> {
        let snapshot = match &self.owner {
            Owner::Arena { bytes, arena } => {
                let began = Instant::now();
                let frozen = arena.freeze().map_err(during("freeze the store"))?;
                let paused = began.elapsed();
                return Ok(Snapshot {
                    paused,
                    source: SnapshotSource::View { frozen, bytes, file },
                });
            }
            Owner::Mapping { .. } => {
                // A fork must not pay for the other stores.
                self.advise(Advice::DoFork)?;
                let forked = self.fork(file, stop);
                self.advise(Advice::DontFork)?;
                forked?
            }
        };
        Ok(snapshot)
    }

    fn fork(&self, file: File, stop: &Interrupt) -> Result<Snapshot<'_>> {
        let (written, mut tell) = io::pipe().map_err(during("make a pipe"))?;
        let (wait, leash) = io::pipe().map_err(during("make a pipe"))?;
        // SAFETY: only the child could write its copy of the range, and it only reads it.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.range.start as *const u8, self.range.len) };
        let began = Instant::now();
        // SAFETY: see the module.
        let pid = unsafe { process::fork() }.map_err(during("fork"))?;
        let paused = began.elapsed();
        if pid == 0 {
            drop(leash);
            let errno = write(&file, bytes, stop).map_or_else(errno_byte, |()| 0);
            let _ = tell.write_all(&[errno]);
            drop(tell);
            // Its memory stays shared until the parent has looked at it.
            let _ = read_byte(wait);
            process::exit_now(0);
        }
        let child = Child { pid, written: Some(written), leash: Some(leash) };
        Ok(Snapshot { paused, source: SnapshotSource::Child(child) })
    }

    /// Waits until the last snapshot has ended and its memory is thawed. The writer must be stopped.
    pub(crate) fn wait_thawed(&self, method: FreezeMethod) -> Result<()> {
        let Owner::Arena { arena, .. } = &self.owner else { return Ok(()) };
        if method == FreezeMethod::WithoutUserfaultfd {
            // SAFETY: the caller has stopped the only writer.
            return unsafe { arena.thaw_exclusive() }.map_err(during("thaw the store"));
        }
        if arena.wait_live(THAW_PATIENCE) {
            return Ok(());
        }
        let frozen = arena.metrics().frozen_chunks;
        Err(format!("{frozen} chunks were not thawed within {THAW_PATIENCE:?}"))
    }

    /// How the kernel maps it now.
    pub(crate) fn mapped(&self) -> Result<Mapped> {
        let path = "/proc/self/smaps";
        let text = fs::read_to_string(path).map_err(during(format!("read {path}")))?;
        let is_arena = matches!(self.owner, Owner::Arena { .. });
        // Private memory excludes pages that a child still shares; an arena's only anonymous pages are its copies.
        let own: &[&str] = if is_arena {
            &["Anonymous:"]
        } else {
            &["Private_Clean:", "Private_Dirty:", "Private_Hugetlb:"]
        };
        let huge = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:", "Private_Hugetlb:"];
        Ok(Mapped {
            huge_bytes: sum(&text, self.range, &huge),
            own_bytes: sum(&text, self.range, own),
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Mapping { .. } = self.owner {
            // SAFETY: mapped by this value; references to its words do not outlive it.
            let _ = unsafe { memory::unmap(self.range) };
        }
    }
}

/// The mappings of a store, from `/proc/self/smaps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) huge_bytes: u64,
    /// Memory shared with no snapshot: while there is one, its copies.
    pub(crate) own_bytes: u64,
}

/// The sum of some fields, in bytes, over the mappings that begin in `range`.
fn sum(smaps: &str, range: VirtRange, fields: &[&str]) -> u64 {
    let mut inside = false;
    let mut bytes = 0;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(name) = words.next() else { continue };
        let start =
            name.split_once('-').and_then(|(start, _)| usize::from_str_radix(start, 16).ok());
        if let Some(start) = start {
            inside = range.contains(start);
        } else if inside && fields.contains(&name) {
            bytes += words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10;
        }
    }
    bytes
}

/// The content of the store at one instant, being saved.
#[derive(Debug)]
pub(crate) struct Snapshot<'a> {
    /// Time of the call that made it.
    pub(crate) paused: Duration,
    source: SnapshotSource<'a>,
}

#[derive(Debug)]
enum SnapshotSource<'a> {
    Child(Child),
    View { frozen: Frozen, bytes: &'a ArenaSlice<u8>, file: File },
}

impl Snapshot<'_> {
    /// Waits until it is written; this thread writes it if no child does.
    pub(crate) fn write(&mut self, stop: &Interrupt) -> Result<()> {
        match &mut self.source {
            SnapshotSource::Child(child) => child.written.take().map_or(Ok(()), written),
            SnapshotSource::View { frozen, bytes, file } => write(file, frozen.slice(bytes), stop),
        }
        .map_err(during("write the save"))
    }

    pub(crate) fn method(&self) -> FreezeMethod {
        match &self.source {
            SnapshotSource::Child(_) => FreezeMethod::WithoutUserfaultfd,
            SnapshotSource::View { frozen, .. } => frozen.method(),
        }
    }

    /// Releases it.
    pub(crate) fn end(self) -> Result<()> {
        match self.source {
            SnapshotSource::View { .. } => Ok(()),
            SnapshotSource::Child(mut child) => match child
                .wait()
                .map_err(during("wait for the child"))?
            {
                0 => Ok(()),
                status => Err(format!("the child that saved ended with wait status {status:#x}")),
            },
        }
    }
}

/// A child that saves, ended when this is dropped.
#[derive(Debug)]
struct Child {
    pid: i32,
    /// Receives a byte once the child has written.
    written: Option<PipeReader>,
    /// The child lives until this is closed.
    leash: Option<PipeWriter>,
}

impl Child {
    fn wait(&mut self) -> cowslip_sys::Result<i32> {
        let Some(leash) = self.leash.take() else { return Ok(0) };
        drop(leash);
        process::wait_for(self.pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}

fn write(mut file: &File, bytes: &[u8], stop: &Interrupt) -> io::Result<()> {
    for chunk in bytes.chunks(WRITE_BYTES) {
        if stop.is_set() {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        file.write_all(chunk)?;
    }
    Ok(())
}

/// A child's report on its writing: 0 is success.
fn errno_byte(error: io::Error) -> u8 {
    error.raw_os_error().and_then(|errno| errno.try_into().ok()).unwrap_or(u8::MAX)
}

fn written(told: PipeReader) -> io::Result<()> {
    match read_byte(told)? {
        0 => Ok(()),
        u8::MAX => Err(ErrorKind::ConnectionAborted.into()),
        errno => Err(io::Error::from_raw_os_error(errno.into())),
    }
}

/// Reads one byte; an end of file is an error.
fn read_byte(mut pipe: PipeReader) -> io::Result<u8> {
    let mut byte = [0];
    pipe.read_exact(&mut byte).map(|()| byte[0])
}

fn pool(name: &str) -> Result<u64> {
    let path = format!("{POOL}/{name}");
    let text = fs::read_to_string(&path).map_err(during(format!("read {path}")))?;
    text.trim().parse().map_err(during(format!("read {path}")))
}

/// For `map_err`: adds the action that failed.
pub(crate) fn during<E: fmt::Display>(doing: impl fmt::Display) -> impl FnOnce(E) -> String {
    move |error| format!("{doing}: {error}")
}
