#![allow(unsafe_code)]
//! Who still reads a base?
//!
//! Children, their children, children that closed every descriptor: all keep the memory mappings they
//! were forked with, and only those, until they exit, are killed, or exec. So the answer is a mapping:
//! a page of a memfd, the *token*, mapped shared and writable while a process forks and unmapped by
//! the parent afterwards. The kernel refuses `F_SEAL_WRITE` with `EBUSY` exactly as long as such a
//! mapping of the file exists anywhere (`fcntl(2)`): one call, no bookkeeping that a `kill -9` could
//! leave wrong.
//!
//! A template's base is read by processes that were not forked. Each maps the readers' token with a
//! [`Pin`], from a descriptor that it was handed, before it maps the base: that fails if the token is
//! spent, and else the base stays. Children forked from it inherit the pin with what it holds.
//!
//! The owner of a base has a token too, kept out of its children with `MADV_DONTFORK`. A child that
//! holds its descriptor can seal it once the owner is gone; `F_SEAL_SEAL` in the same call makes
//! sure that only one of several children becomes the next owner.
//!
//! # Safety
//! Both kinds change only the page that they reserved for themselves.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::{During, Result, errno_of};
use crate::sys::held::HeldFd;
use crate::sys::memfile::{self, MemfdKind, Seals};
use crate::sys::memory::{self, Advice, Prot, Sharing};
use crate::sys::{AsFd, BorrowedFd, Errno, OwnedFd};
use crate::units::{VirtRange, page_size_bytes};

#[derive(Debug)]
struct Token {
    file: HeldFd,
    page: VirtRange,
}

impl Token {
    fn new(name: &str) -> Result<Self> {
        const OPERATION: &str = "make a token for the readers of a base";
        let len = page_size_bytes();
        let file = memfile::memfd(name, MemfdKind::Shmem, len as u64).during(OPERATION)?;
        let page = memory::reserve(len, len).during(OPERATION)?;
        Ok(Self { file: HeldFd::hold(file), page })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn map(&self) -> Result<()> {
        // SAFETY: the page is the token's own. Not even readable, but it could be made writable,
        // which is what the kernel counts.
        unsafe { memory::map_file(self.page, self.file.as_fd(), 0, Sharing::Shared, Prot::NONE) }
            .during("map a token")
    }

    fn unmap(&self) -> Result<()> {
        // SAFETY: the page is the token's own; it stays reserved.
        unsafe { memory::map_anonymous(self.page, Prot::NONE) }.during("unmap a token")
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if !self.page.is_empty() {
            // SAFETY: the page is the token's own, and nobody refers to it any more.
            let _ = unsafe { memory::unmap(self.page) };
        }
    }
}

/// Mapped by every process but the owner that reads a base.
#[derive(Debug)]
pub(crate) struct ReaderToken(Token);

impl ReaderToken {
    pub(crate) fn new() -> Result<Self> {
        Token::new("cowslip-readers").map(Self)
    }

    /// Maps it, so that children forked from now on have it.
    pub(crate) fn show(&self) -> Result<()> {
        self.0.map()
    }

    /// Unmaps it in this process.
    pub(crate) fn hide(&self) -> Result<()> {
        self.0.unmap()
    }

    /// Keeps the base as long as the pin lives.
    pub(crate) fn pin(&self) -> Result<Pin, Errno> {
        let again = self.0.fd().try_clone_to_owned();
        again.map_err(|error| errno_of(&error)).and_then(Pin::new)
    }

    /// Whether another process maps it. Once the answer was no, it stays no: the token is spent.
    pub(crate) fn is_read(&self) -> bool {
        // Any refusal but a clear "nobody" counts as a reader: that costs huge pages, not data.
        memfile::seal(self.0.file.as_fd(), Seals::WRITE).is_err()
    }
}

/// Keeps a base: the token of its readers, mapped by a process for as long as it has a template or a
/// clone of it, and by the children that it forks.
#[derive(Debug)]
pub(crate) struct Pin(Token);

impl Pin {
    /// The errno of a token that is spent is `EPERM`.
    pub(crate) fn new(file: OwnedFd) -> Result<Self, Errno> {
        let len = page_size_bytes();
        let token = Token { file: HeldFd::hold(file), page: memory::reserve(len, len)? };
        // SAFETY: the page is the token's own. Writable: else newer kernels map a spent token too.
        unsafe { memory::map_file(token.page, token.fd(), 0, Sharing::Shared, Prot::RW) }?;
        Ok(Self(token))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// A number that no other reader of this base gets.
    pub(crate) fn next_number(&self) -> u64 {
        // SAFETY: the page is mapped readable and writable as long as the pin, holds zeroes at first, and
        // every process accesses this word of it in this way only.
        let counter = unsafe { &*(self.0.page.start as *const AtomicU64) };
        counter.fetch_add(1, Relaxed)
    }
}

/// Mapped by the owner of a base and not by its children.
#[derive(Debug)]
pub(crate) struct OwnerToken(Token);

impl OwnerToken {
    pub(crate) fn new() -> Result<Self> {
        let token = Token::new("cowslip-owner")?;
        token.map()?;
        // SAFETY: the page is the token's own.
        unsafe { memory::advise(token.page, Advice::DontFork) }
            .during("keep a token from children")?;
        Ok(Self(token))
    }

    /// In a child, at once: the page stayed behind, and its address is free for others.
    pub(crate) fn in_child(&mut self) {
        self.0.page = VirtRange::default();
    }

    /// In a child: whether the owner is gone and this process is the first to have noticed.
    pub(crate) fn inherit(&self) -> bool {
        memfile::seal(self.0.file.as_fd(), Seals::WRITE | Seals::SEAL).is_ok()
    }
}
