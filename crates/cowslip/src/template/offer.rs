//! The files of a template that other processes get.
//!
//! Any process that gets them may be hostile, and has this user's rights. It may read the base, and
//! be counted as a reader, and changes nothing that others see:
//!
//! * The base could be opened again, for writing: [`handed_out::forbid_changes`]. Where that fails,
//!   receivers get a copy in a memfd.
//! * The token could be sealed, so that no other process can map it. The next receivers get another
//!   one, and the sealed one counts as mapped, which keeps the base for them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cowslip_sys::error::{During, Result};
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::{AsFd, Errno, OwnedFd, handed_out};

use super::file::File;
use super::layout::{Inherit, Layout};
use crate::arena::readers::Pin;

const OPERATION: &str = "protect a template from the process that gets it";
/// Bytes that are copied at once.
const PART_BYTES: usize = 1 << 20;

/// What receivers get instead of the template's own files.
#[derive(Debug, Default)]
pub(super) struct Offered {
    base: OnceLock<File>,
    token: Mutex<Option<Arc<Pin>>>,
}

impl Offered {
    /// The base for receivers; `own`, if they cannot change it.
    pub(super) fn file<'a>(&'a self, own: &'a File, layout: &Layout) -> Result<&'a File> {
        if let Some(copy) = self.base.get() {
            return Ok(copy);
        }
        if handed_out::forbid_changes(own.fd().during(OPERATION)?).is_ok() {
            return Ok(own);
        }
        let copy = copy(own, layout).during(OPERATION)?;
        let copy = File::new(ReservedFd::hold(copy)).during(OPERATION)?;
        Ok(self.base.get_or_init(|| copy))
    }

    /// A token that the next receiver can map; `own`, if it can map that.
    pub(super) fn token(&self, own: &Arc<Pin>) -> Result<Arc<Pin>> {
        let is_intact = |pin: &Pin| pin.is_intact().during(OPERATION);
        if is_intact(own)? {
            return Ok(Arc::clone(own));
        }
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        match &*token {
            Some(token) if is_intact(token)? => Ok(Arc::clone(token)),
            _ => Ok(Arc::clone(token.insert(Arc::new(own.another()?)))),
        }
    }
}

/// A copy of a base in a memfd.
fn copy(base: &File, layout: &Layout) -> Result<OwnedFd, Errno> {
    let from = base.fd()?;
    let to = memfile::memfd("cowslip", MemfdKind::Shmem, layout.file_len())?;
    let mut content = vec![0; PART_BYTES];
    for region in layout.regions().iter().filter(|region| region.inherit == Inherit::Copied) {
        let mut at = layout.offset(*region);
        let end = at + region.range.len as u64;
        while let Some((start, stop)) = memfile::next_data(from, at, end)? {
            at = stop.min(start + PART_BYTES as u64);
            let part = &mut content[..(at - start) as usize];
            memfile::read_exact_at(from, part, start)?;
            memfile::write_at(to.as_fd(), part, start)?;
        }
    }
    let copy = memfile::reopen_read_only(to.as_fd())?;
    handed_out::forbid_changes(copy.as_fd()).map(|()| copy)
}
