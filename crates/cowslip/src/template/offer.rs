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

use super::layout::Inherit;
use super::{Base, File};
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

impl Base {
    /// The base for receivers, and true if it is made of huge pages.
    pub(super) fn file_to_offer(&self) -> Result<(&File, bool)> {
        if let Some(copy) = self.offered.base.get() {
            return Ok((copy, false));
        }
        let own = self.file.fd().during(OPERATION)?;
        if handed_out::forbid_changes(own).is_ok() {
            return Ok((&self.file, self.is_huge));
        }
        let copy = self.copy().during(OPERATION)?;
        let copy = File::new(ReservedFd::hold(copy)).during(OPERATION)?;
        Ok((self.offered.base.get_or_init(|| copy), false))
    }

    /// A copy of the base in a memfd.
    fn copy(&self) -> Result<OwnedFd, Errno> {
        let from = self.file.fd()?;
        let to = memfile::memfd("cowslip", MemfdKind::Shmem, self.layout.file_len())?;
        let mut content = vec![0; PART_BYTES];
        for region in
            self.layout.regions().iter().filter(|region| region.inherit == Inherit::Copied)
        {
            let mut at = self.layout.offset(*region);
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

    /// A token that the next receiver can map.
    pub(super) fn token_to_offer(&self) -> Result<Arc<Pin>> {
        let is_intact = |pin: &Pin| pin.is_intact().during(OPERATION);
        if is_intact(&self.pin)? {
            return Ok(Arc::clone(&self.pin));
        }
        let mut token = self.offered.token.lock().unwrap_or_else(PoisonError::into_inner);
        match &*token {
            Some(token) if is_intact(token)? => Ok(Arc::clone(token)),
            _ => Ok(Arc::clone(token.insert(Arc::new(self.pin.another()?)))),
        }
    }
}
