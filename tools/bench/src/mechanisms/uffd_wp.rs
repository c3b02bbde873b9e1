//! userfaultfd write protection: a thread saves each page before the first write to it (as QEMU's background snapshots
//! do).

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cowslip::units::{VirtRange, page_size_bytes};
use cowslip_sys::uffd::{self, Features, Outcome, RegisterMode, Uffd};
use cowslip_sys::{AsFd, OwnedFd, process};

use super::Mechanism;
use crate::error::{Error, Result, during};
use crate::memory::{Anonymous, Memory};
use crate::uffd_messages::read_faults;

/// Write protection with a thread that saves pages. Dropped in this order: no thread waits for a fault once the
/// descriptor is closed.
#[derive(Debug)]
pub(crate) struct UffdWp {
    handler: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    uffd: Uffd,
    memory: Arc<Memory>,
    pages: Anonymous,
    wake: OwnedFd,
    closing: AtomicBool,
}

impl UffdWp {
    pub(crate) fn new(bytes: usize, pages: Anonymous) -> Result<Self> {
        let (fd, _) = uffd::open().map_err(during(
            "open a userfaultfd (vm.unprivileged_userfaultfd=1 or CAP_SYS_PTRACE)",
        ))?;
        let uffd = Uffd::new(fd, Features::PAGEFAULT_FLAG_WP)
            .map_err(during("ask userfaultfd for write protection"))?;
        let memory = Arc::new(Memory::anonymous(bytes, pages)?);
        uffd.register(memory.range(), RegisterMode::WP).map_err(during("register memory"))?;
        let messages = uffd.as_fd().try_clone_to_owned().map_err(during("copy a descriptor"))?;
        let wake = process::eventfd().map_err(during("make an eventfd"))?;
        let shared = Arc::new(Shared { uffd, memory, pages, wake, closing: false.into() });
        let theirs = Arc::clone(&shared);
        let handler = thread::spawn(move || theirs.serve(File::from(messages)));
        Ok(Self { handler: Some(handler), shared })
    }

    /// Its memory for a guest.
    pub(crate) fn shared_memory(&self) -> Arc<Memory> {
        Arc::clone(&self.shared.memory)
    }
}

impl Shared {
    fn serve(&self, mut messages: File) {
        let mut saved = vec![0; page_size_bytes() / 8];
        while !self.closing.load(Relaxed) {
            let fds = [self.uffd.as_fd(), self.wake.as_fd()];
            let _ = process::wait_readable(&fds, &mut [false; 2], None);
            read_faults(&mut messages, |address| self.save(address, &mut saved));
        }
    }

    /// Saves the page that begins at `address`, and lets the writer go on.
    fn save(&self, address: usize, saved: &mut [u64]) {
        for (i, place) in saved.iter_mut().enumerate() {
            *place = self.memory.word(address - self.memory.range().start + i * 8).load(Relaxed);
        }
        std::hint::black_box(saved);
        // If it fails the writer faults again.
        let _ = self.uffd.write_protect(VirtRange::new(address, page_size_bytes()), false);
    }

    fn write_protect(&self, protect: bool) -> Result<()> {
        let range = self.memory.range();
        match self.uffd.write_protect(range, protect).map_err(during("write-protect memory"))? {
            Outcome::Again { .. } => Err(Error::Failed("write-protect memory: EAGAIN".to_owned())),
            Outcome::Done | Outcome::AlreadyMapped => Ok(()),
        }
    }
}

impl Mechanism for UffdWp {
    fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    fn snapshot(&mut self) -> Result<Duration> {
        let began = Instant::now();
        self.shared.write_protect(true)?;
        Ok(began.elapsed())
    }

    fn release(&mut self) -> Result<()> {
        self.shared.write_protect(false)
    }

    fn renew(&mut self) -> Result<()> {
        if self.shared.pages == Anonymous::Huge { self.shared.memory.collapse() } else { Ok(()) }
    }
}

impl Drop for UffdWp {
    fn drop(&mut self) {
        let _ = self.shared.write_protect(false);
        self.shared.closing.store(true, Relaxed);
        process::notify(self.shared.wake.as_fd());
        if let Some(handler) = self.handler.take() {
            let _ = handler.join();
        }
    }
}
