#![allow(unsafe_code)]
//! Memory that a thread fills where it is touched, by userfaultfd, as fast as a program of its own could.
//!
//! The file is mapped, and its pages are copied straight from the page cache to the faulting place: nothing is read
//! into a buffer first, nothing is checked. Pages must be filled before they are moved, so they are read into a huge
//! page of the thread's own. On a processor of its own the thread polls for faults; on the program's it sleeps.
//!
//! # Safety
//! The file's mapping is only read, of a file that is never written, and lives as long as the thread. The stage is the
//! thread's own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use cowslip::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::memory;
use cowslip_sys::scheduling::Processors;
use cowslip_sys::uffd::{self, Features, Outcome, RegisterMode, Uffd};
use cowslip_sys::{AsFd, Errno, OwnedFd, memfile, process};

use super::{Threads, open, place};
use crate::error::{Error, Result, during};
use crate::memory::{Anonymous, Memory};
use crate::uffd_messages::read_faults;

/// Bytes read ahead of a fault, from a cold page cache.
const AHEAD: usize = 4 * CHUNK_BYTES;

/// The unit that a fault brings in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Filling {
    /// A page, by `UFFDIO_COPY`
    Copy4k,
    /// 2 MiB, by `UFFDIO_COPY`
    Copy2m,
    /// A page of hugetlb, by `UFFDIO_COPY`
    CopyHugetlb,
    /// A huge page, by `UFFDIO_MOVE`
    Move2m,
}

/// The thread, and the memory that it fills.
#[derive(Debug)]
pub(in super::super) struct Server {
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    uffd: Uffd,
    memory: Memory,
    wake: OwnedFd,
    closing: AtomicBool,
}

impl Server {
    pub(super) fn start(
        filling: Filling,
        threads: Threads,
        file: &Path,
        bytes: usize,
    ) -> Result<Self> {
        let (fd, _) = uffd::open().map_err(during(
            "open a userfaultfd (vm.unprivileged_userfaultfd=1 or CAP_SYS_PTRACE)",
        ))?;
        let moves = filling == Filling::Move2m;
        let features = if moves { Features::MOVE } else { Features::empty() };
        let uffd = Uffd::new(fd, features).map_err(|errno| match errno {
            Errno::INVAL if moves => {
                Error::Failed("this kernel has no UFFDIO_MOVE (Linux 6.8)".to_owned())
            }
            errno => during("agree on userfaultfd's features")(errno),
        })?;
        let memory = match filling {
            Filling::Copy4k | Filling::Copy2m => Memory::anonymous(bytes, Anonymous::Base)?,
            Filling::CopyHugetlb => Memory::hugetlb(bytes)?,
            Filling::Move2m => Memory::anonymous(bytes, Anonymous::Huge)?,
        };
        uffd.register(memory.range(), RegisterMode::MISSING).map_err(during("register memory"))?;
        let messages = uffd.as_fd().try_clone_to_owned().map_err(during("copy a descriptor"))?;
        let wake = process::eventfd().map_err(during("make an eventfd"))?;
        let shared = Arc::new(Shared { uffd, memory, wake, closing: AtomicBool::new(false) });
        let theirs = Filler {
            shared: Arc::clone(&shared),
            step: if filling == Filling::Copy4k { page_size_bytes() } else { CHUNK_BYTES },
            source: Memory::private_file(open(file)?, bytes)?,
            file: open(file)?,
            stage: moves.then(|| Memory::anonymous(CHUNK_BYTES, Anonymous::Huge)).transpose()?,
            spins: threads == Threads::TwoProcessors,
            processors: place(threads)?,
        };
        let thread = std::thread::spawn(move || theirs.run(File::from(messages)));
        Ok(Self { thread: Some(thread), shared })
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.shared.memory
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.closing.store(true, Relaxed);
        process::notify(self.shared.wake.as_fd());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct Filler {
    shared: Arc<Shared>,
    /// Bytes that a fault brings in.
    step: usize,
    /// The file, mapped.
    source: Memory,
    file: File,
    /// A huge page whose content is moved away.
    stage: Option<Memory>,
    spins: bool,
    processors: Processors,
}

impl Filler {
    fn run(mut self, mut messages: File) {
        // If this fails, the thread runs where the kernel puts it.
        let _ = self.processors.assign(0);
        let mut addresses = Vec::new();
        while !self.shared.closing.load(Relaxed) {
            if !self.spins {
                let fds = [self.shared.uffd.as_fd(), self.shared.wake.as_fd()];
                let _ = process::wait_readable(&fds, &mut [false; 2], None);
            }
            read_faults(&mut messages, |address| addresses.push(address));
            while let Some(address) = addresses.pop() {
                let at = (address - self.shared.memory.range().start) / self.step * self.step;
                if let Err(error) = self.fill(at) {
                    // The thread that waits for this page would hang.
                    eprintln!("cowslip: a userfaultfd baseline: {error}");
                    process::exit_now(1);
                }
            }
        }
    }

    fn fill(&mut self, at: usize) -> Result<()> {
        let len = self.step.min(self.shared.memory.bytes() - at);
        if self.step == CHUNK_BYTES {
            memfile::will_need(self.file.as_fd(), (at + len) as u64, AHEAD as u64);
        }
        let mut done = 0;
        if let Some(stage) = &mut self.stage {
            let content = &mut stage.bytes_mut()[..len];
            self.file.read_exact_at(content, at as u64).map_err(during("read a file"))?;
            let stage = stage.range().start;
            done = self.move_from(stage, at, len)?;
        } else if self.step == CHUNK_BYTES {
            let part = VirtRange::new(self.source.range().start + at, len);
            memory::populate(part).map_err(during("map the page cache"))?;
        }
        // SAFETY: see the module: `at` and `len` are inside of the mapping.
        let content = unsafe {
            std::slice::from_raw_parts((self.source.range().start + at) as *const u8, len)
        };
        while done < len {
            let range = VirtRange::new(self.shared.memory.range().start + at + done, len - done);
            done += match self.shared.uffd.copy(range, &content[done..]) {
                Ok(Outcome::Done) => range.len,
                Ok(Outcome::Again { done_bytes }) => done_bytes as usize,
                Ok(Outcome::AlreadyMapped) => page_size_bytes().min(range.len),
                Err(errno) => return Err(during("UFFDIO_COPY")(errno)),
            };
        }
        Ok(())
    }

    /// Moves pages, and returns the bytes moved; the rest is to be copied.
    fn move_from(&self, stage: usize, at: usize, len: usize) -> Result<usize> {
        let range = VirtRange::new(self.shared.memory.range().start + at, len);
        // SAFETY: the stage is this thread's, and is filled anew before it is looked at again.
        match unsafe { self.shared.uffd.move_pages(range, stage) } {
            Ok(Outcome::Done) => Ok(len),
            Ok(Outcome::Again { done_bytes }) => Ok(done_bytes as usize),
            Ok(Outcome::AlreadyMapped) | Err(Errno::BUSY) => Ok(0),
            Err(errno) => Err(during("UFFDIO_MOVE")(errno)),
        }
    }
}
