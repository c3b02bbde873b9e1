//! The ways of a knowing engineer to restore without Cowslip: the content of a plain file as memory.
//!
//! | baseline | memory | its pages come |
//! | --- | --- | --- |
//! | mmap, mmap-populate | the file's pages, mapped privately | when they are touched, or at once |
//! | mmap-huge | the same, with a page cache of folios of 2 MiB, mapped at such offsets | when they are touched |
//! | tmpfs-huge | a file of a tmpfs with huge pages, loaded before, mapped privately | when they are touched |
//! | uffd-copy, uffd-move | anonymous, or of hugetlb | by a thread, when they are touched |
//! | read-huge | anonymous, on huge pages | at once, by `read()` |
//! | memory-copy | anonymous, on huge pages, fresh or written before | at once, from memory |
//!
//! A second thread runs on the same processor, or on another: both are measured, and the better counts.

mod read;
mod userfault;

use std::fs::File;
use std::path::Path;

use cowslip_sys::memory::Advice;
use cowslip_sys::scheduling::{Processors, current_processor};
use cowslip_sys::{memfile, tmpfs};

use super::Result;
use crate::error::during;
use crate::memory::{Anonymous, Memory};

pub(super) use userfault::{Filling, Server};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Baseline {
    Mmap,
    MmapPopulate,
    MmapHuge,
    TmpfsHuge,
    Uffd(Filling, Threads),
    ReadHuge(Threads),
    ReadHugeDirect(Threads),
    /// Copies memory that has the content: no restore, but the cost of a copy.
    Copy(Target),
}

/// The target of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// New memory, which the kernel fills with zeroes as it is written.
    Fresh,
    Written,
}

/// The processor of the helping thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Threads {
    /// The processor of the program, or no helping thread.
    OneProcessor,
    TwoProcessors,
}

/// Memory with the content, and its source.
#[derive(Debug)]
pub(super) enum Loaded {
    Whole(Memory),
    Served(Server),
    Copied { memory: Memory, _source: Memory },
}

impl Loaded {
    pub(super) fn memory(&self) -> &Memory {
        match self {
            Self::Whole(memory) | Self::Copied { memory, .. } => memory,
            Self::Served(server) => server.memory(),
        }
    }
}

/// State that is made before the clock runs.
#[derive(Debug)]
pub(super) enum Prepared {
    Nothing,
    /// A file of a tmpfs that has the content.
    Tmpfs(File),
    Copy {
        source: Memory,
        target: Option<Memory>,
    },
}

impl Baseline {
    /// Returns true if it can be measured from a cold page cache.
    pub(super) fn can_be_cold(self) -> bool {
        !matches!(self, Self::TmpfsHuge | Self::Copy(_))
    }

    /// Returns true if it can win while the disk is awaited: with a thread that helps, and not a page at a time.
    pub(super) fn may_be_fastest_when_cold(self) -> bool {
        match self {
            Self::Mmap | Self::MmapHuge | Self::TmpfsHuge => true,
            Self::MmapPopulate | Self::Copy(_) => false,
            Self::Uffd(filling, threads) => {
                filling != Filling::Copy4k && threads == Threads::TwoProcessors
            }
            Self::ReadHuge(threads) | Self::ReadHugeDirect(threads) => {
                threads == Threads::TwoProcessors
            }
        }
    }

    /// Before the clock runs: fills a tmpfs, or the page cache with huge folios if it is to be hot.
    pub(super) fn prepare(self, file: &Path, bytes: usize, is_cold: bool) -> Result<Prepared> {
        match self {
            Self::TmpfsHuge => Ok(Prepared::Tmpfs(in_tmpfs(file, bytes)?)),
            Self::Copy(target) => {
                let source = Memory::private_file(in_tmpfs(file, bytes)?, bytes)?;
                source.advise(Advice::HugePage)?;
                source.populate()?;
                let written = || {
                    let mut memory = Memory::anonymous(bytes, Anonymous::Huge)?;
                    memory.bytes_mut().fill(1);
                    Ok::<_, crate::Error>(memory)
                };
                let target = (target == Target::Written).then(written).transpose()?;
                Ok(Prepared::Copy { source, target })
            }
            Self::MmapHuge if !is_cold => {
                super::sample::prepare(file, true)?;
                map_huge(file, bytes)?.populate()?;
                Ok(Prepared::Nothing)
            }
            _ => Ok(Prepared::Nothing),
        }
    }

    /// Memory with the content of a file.
    pub(super) fn load(self, prepared: Prepared, file: &Path, bytes: usize) -> Result<Loaded> {
        Ok(match (self, prepared) {
            (_, Prepared::Tmpfs(tmpfs)) => {
                let memory = Memory::private_file(tmpfs, bytes)?;
                memory.advise(Advice::HugePage)?;
                Loaded::Whole(memory)
            }
            (_, Prepared::Copy { source, target }) => {
                let fresh = || Memory::anonymous(bytes, Anonymous::Huge);
                let mut memory = target.map_or_else(fresh, Ok)?;
                memory.words_mut().copy_from_slice(source.words());
                Loaded::Copied { memory, _source: source }
            }
            (Self::Mmap | Self::TmpfsHuge | Self::Copy(_), _) => {
                Loaded::Whole(Memory::private_file(open(file)?, bytes)?)
            }
            (Self::MmapPopulate, _) => {
                let memory = Memory::private_file(open(file)?, bytes)?;
                memory.populate()?;
                Loaded::Whole(memory)
            }
            (Self::MmapHuge, _) => Loaded::Whole(map_huge(file, bytes)?),
            (Self::Uffd(filling, threads), _) => {
                Loaded::Served(Server::start(filling, threads, file, bytes)?)
            }
            (Self::ReadHuge(threads), _) => {
                Loaded::Whole(read::read(&open(file)?, bytes, threads)?)
            }
            (Self::ReadHugeDirect(threads), _) => {
                let direct = memfile::open_direct(file)
                    .map_err(during("open a file to be read around the page cache"))?;
                Loaded::Whole(read::read(&File::from(direct), bytes, threads)?)
            }
        })
    }
}

fn in_tmpfs(file: &Path, bytes: usize) -> Result<File> {
    let tmpfs = tmpfs::huge_file(bytes as u64);
    let mut tmpfs = File::from(tmpfs.map_err(during("mount a tmpfs with huge pages"))?);
    std::io::copy(&mut open(file)?, &mut tmpfs).map_err(during("fill a tmpfs"))?;
    Ok(tmpfs)
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(during("open a file"))
}

fn map_huge(file: &Path, bytes: usize) -> Result<Memory> {
    let memory = Memory::private_file(open(file)?, bytes)?;
    memory.advise(Advice::HugePage)?;
    Ok(memory)
}

/// Keeps this thread where it is, and returns the processors for the helping thread.
fn place(threads: Threads) -> Result<Processors> {
    let allowed = Processors::from_thread(0).map_err(during("ask for processors"))?;
    let here = current_processor();
    let only = |processor| Processors::only(processor).map_err(during("choose a processor"));
    let mine = only(here)?;
    mine.assign(0).map_err(during("stay on a processor"))?;
    if threads == Threads::OneProcessor {
        return Ok(mine);
    }
    for other in 0.. {
        let there = only(other)?;
        if other != here && there.assign(0).is_ok() {
            mine.assign(0).map_err(during("stay on a processor"))?;
            return Ok(there);
        }
    }
    Ok(allowed)
}
