//! Parts of frozen memory that a reader gives back read as zeroes, and stay parts of its mapping.
//!
//! ```text
//!   copy, or the file's page ──MADV_DONTNEED──▶ the file's page ──UFFDIO_ZEROPAGE──▶ the zero page, which a write copies
//! ```
//! A mapping of zeroes over each part would make three mappings of one: a child of Redis, which gives back thousands of
//! single pages while it saves, would have as many, up to `vm.max_map_count`. The zero page is an entry of a page
//! table. To the kernel it is a private page: forks copy it, and a thaw of the arena that this process may own later
//! writes it to the file.
//!
//! The kernel does that only in registered memory. Registering a single page cuts it out of its mapping for a moment:
//! four calls, and two of them change the list of mappings. A mapping with all of its pages in the file has none missing.
//! It is registered whole, for missing pages, and stays so: each further page takes two calls. Elsewhere the part is
//! registered for write protection meanwhile, and none of its entries is protected. Either way no access of any thread
//! waits.
//!
//! Memory that another userfaultfd is about to register must be [let go](ZeroPages::let_go) first.

use cowslip_sys::memory::Advice;
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::uffd::{self, Features, Outcome, RegisterMode, Uffd};
use cowslip_sys::units::VirtRange;
use cowslip_sys::{Errno, process};

use crate::mapping::OwnedRange;

/// The most attempts: a thread that reads the part meanwhile maps the file's page again.
const TRIES: usize = 16;

/// The userfaultfd that maps the zero page in this process.
#[derive(Debug, Default)]
pub(crate) struct ZeroPages {
    opened: Option<Opened>,
    /// The kernel, or a limit, refused it once.
    is_refused: bool,
}

#[derive(Debug)]
struct Opened {
    uffd: Uffd<ReservedFd>,
    /// A userfaultfd acts on the address space of the process that opened it.
    pid: i32,
}

impl ZeroPages {
    /// Makes `part` of one private mapping of a file read as zeroes, after its content was dropped. `whole` looks for the
    /// mapping that it is a part of, if all of its pages are in the file and stay there.
    ///
    /// # Errors
    /// The kernel's. Each page of the part then reads as zeroes, as before, or as the file.
    pub(crate) fn put(
        &mut self,
        part: OwnedRange,
        whole: impl FnOnce() -> Option<VirtRange>,
    ) -> Result<(), Errno> {
        if self.is_refused {
            return Err(Errno::OPNOTSUPP);
        }
        let put = self.uffd().and_then(|uffd| put(uffd, part, whole));
        self.is_refused = put.is_err_and(|errno| errno != Errno::AGAIN);
        put
    }

    fn uffd(&mut self) -> Result<&Uffd<ReservedFd>, Errno> {
        let pid = process::pid();
        if let Some(strange) = self.opened.take_if(|opened| opened.pid != pid) {
            // In a child forked without our knowledge, the number may be another file's.
            std::mem::forget(strange);
        }
        let opened = match self.opened.take() {
            Some(opened) => opened,
            None => {
                let fd = ReservedFd::open(uffd::open_for_user_mode)?;
                Opened { uffd: Uffd::new(fd, Features::empty())?, pid }
            }
        };
        Ok(&self.opened.insert(opened).uffd)
    }

    /// In a forked child: forgets the descriptor, which is the parent's.
    pub(crate) fn in_child(&mut self) {
        self.opened = None;
    }

    /// Ends all registrations. The zero pages stay.
    pub(crate) fn let_go(&mut self) {
        if let Some(strange) = self.opened.take_if(|opened| opened.pid != process::pid()) {
            std::mem::forget(strange);
        }
        self.opened = None;
    }
}

fn put(
    uffd: &Uffd<ReservedFd>,
    part: OwnedRange,
    whole: impl FnOnce() -> Option<VirtRange>,
) -> Result<(), Errno> {
    match put_registered(uffd, part) {
        Err(Errno::NOENT) => {}
        done => return done,
    }
    if whole().is_some_and(|whole| uffd.register(whole, RegisterMode::MISSING).is_ok()) {
        return put_registered(uffd, part);
    }
    uffd.register(*part, RegisterMode::WP)?;
    let put = put_registered(uffd, part);
    // If it is refused, the mapping stays cut in three, which changes no content.
    let _ = uffd.unregister(*part);
    put
}

fn put_registered(uffd: &Uffd<ReservedFd>, part: OwnedRange) -> Result<(), Errno> {
    let mut rest = part;
    for _ in 0..TRIES {
        rest.advise(Advice::DontNeed)?;
        match uffd.map_zeroes(*rest)? {
            Outcome::Done => return Ok(()),
            Outcome::Again { done_bytes } => {
                let done = rest.start + done_bytes as usize;
                rest = part.part(VirtRange::between(done, rest.end()));
            }
            Outcome::AlreadyMapped => {}
        }
        if rest.is_empty() {
            return Ok(());
        }
    }
    Err(Errno::AGAIN)
}
