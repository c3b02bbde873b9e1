//! The memory that a template and its clones share.

use std::sync::{Arc, Weak};

use cowslip_sys::error::Result;
use cowslip_sys::process;

use super::content::Content;
use super::file::File;
use super::layout::Layout;
use super::offer::Offered;
use crate::arena::Handle;
use crate::arena::readers::Pin;

/// The parts that the template and its clones in this process share.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) pin: Arc<Pin>,
    pub(super) content: Content,
    /// The file of the regions that clones share, if there are any.
    pub(super) shared: Option<File>,
    pub(super) layout: Layout,
    /// True if the file is made of huge pages.
    pub(super) is_huge: bool,
    pub(super) offered: Offered,
    /// Last, because its drop tells the arena that the pin is gone.
    pub(super) _owner: Option<Owner>,
}

/// The arena, if this process made the template from it.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) arena: Weak<Handle>,
    pub(super) pid: i32,
}

impl Base {
    /// The base for receivers, and true if it is made of huge pages.
    pub(super) fn file_to_offer(&self) -> Result<(&File, bool)> {
        let own = self.content.in_one(&self.layout)?;
        let file = self.offered.file(own, &self.layout)?;
        Ok((file, self.is_huge && core::ptr::eq(file, own)))
    }

    /// A token that the next receiver can map.
    pub(super) fn token_to_offer(&self) -> Result<Arc<Pin>> {
        self.offered.token(&self.pin)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // In a child the lock may be held by a thread that does not exist.
        if self.pid != process::pid() {
            return;
        }
        if let Some(handle) = self.arena.upgrade() {
            let mut state = handle.shared.lock();
            state.plan.thaw.look_soon();
            handle.shared.notify(&state);
        }
    }
}
