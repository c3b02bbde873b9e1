//! The rules that give a fault its kind; `docs/trace.md` describes them.

use super::kind::FaultKind;
use super::pages::Page;
use crate::model::{Access, Fault, Severity};

/// The owner of a mapping's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Memory {
    /// The process, initially zeroes.
    Anonymous,
    /// A file on a device, or the process with its copies.
    PrivateFile,
    /// A file on a device.
    SharedFile,
    /// A memory file, or the process with its copies.
    PrivateMemoryFile,
    /// Shared memory: of a memory file, or of none.
    Shared,
    /// The kernel, or unknown.
    Other,
}

/// The evidence about a fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence {
    pub(super) fault: Fault,
    pub(super) memory: Memory,
    /// The page that was touched.
    pub(super) page: Page,
    /// The same page of shared memory, for all processes.
    pub(super) shared: Page,
    /// The mapping has an unseen past.
    pub(super) is_old: bool,
    /// The process forked, or was made by a fork, while the trace ran.
    pub(super) has_forked: bool,
    /// The page may have been there when the process forked, without its own fault in the trace.
    pub(super) may_have_come_unseen: bool,
    /// Every map and unmap is seen, as its own event.
    pub(super) sees_unmaps: bool,
}

impl Evidence {
    pub(super) fn kind(&self) -> FaultKind {
        match self.memory {
            Memory::Anonymous => self.anonymous(),
            Memory::Shared => self.shared(),
            Memory::Other => FaultKind::Unknown,
            _ => self.file(),
        }
    }

    fn anonymous(&self) -> FaultKind {
        match self.page {
            Page::Unseen => self.unseen(),
            // A page that was given back is neither in memory nor in swap, unless something unseen brought
            // it.
            Page::Discarded if self.is_major() || self.fault.was_present == Some(true) => {
                FaultKind::Unknown
            }
            Page::Discarded => FaultKind::Refault,
            Page::Clean | Page::CleanBeforeFork if self.may_be_write() && !self.is_major() => {
                FaultKind::FirstWrite
            }
            _ => self.seen(),
        }
    }

    /// A child shares the memory of its parent, and maps each page again.
    fn shared(&self) -> FaultKind {
        let is_gone = self.page == Page::Discarded || self.shared == Page::Discarded;
        let is_there = !matches!(self.shared, Page::Unseen | Page::Discarded);
        match self.page {
            _ if self.is_major() && is_there => FaultKind::SwapIn,
            _ if self.is_major() => FaultKind::Unknown,
            _ if is_gone => FaultKind::Refault,
            Page::Unseen if self.fault.was_present == Some(true) => FaultKind::Unknown,
            Page::Unseen if is_there => FaultKind::SharedMapped,
            Page::Unseen if self.is_old || self.may_have_come_unseen => FaultKind::Unknown,
            Page::Unseen => FaultKind::FirstTouch,
            _ => self.repeated(),
        }
    }

    /// A page of anonymous memory that no event touched.
    fn unseen(&self) -> FaultKind {
        let present_write =
            self.fault.was_present == Some(true) && self.fault.access == Some(Access::Write);
        match self.fault.was_present {
            _ if present_write && self.has_forked => FaultKind::CowAfterFork,
            Some(true) => FaultKind::Unknown,
            _ if self.is_old => FaultKind::Unknown,
            None if self.may_have_come_unseen => FaultKind::Unknown,
            _ if self.is_major() => FaultKind::Unknown,
            _ => FaultKind::FirstTouch,
        }
    }

    /// A page that the process has, or had when it forked.
    fn seen(&self) -> FaultKind {
        match self.page {
            _ if self.is_major() => FaultKind::SwapIn,
            Page::OwnBeforeFork if self.may_be_write() => FaultKind::CowAfterFork,
            _ => self.repeated(),
        }
    }

    fn file(&self) -> FaultKind {
        let is_private = matches!(self.memory, Memory::PrivateFile | Memory::PrivateMemoryFile);
        let is_write = self.fault.access == Some(Access::Write);
        let is_of_device = matches!(self.memory, Memory::PrivateFile | Memory::SharedFile);
        match self.page {
            Page::Own | Page::OwnBeforeFork if is_private => self.seen(),
            _ if self.is_major() && is_of_device => FaultKind::FileRead,
            _ if self.is_major() => FaultKind::Unknown,
            Page::Discarded => FaultKind::Refault,
            _ if is_private && is_write => FaultKind::FileCopy,
            // A present page faulted, and the access is unknown: it was a write.
            Page::Clean | Page::CleanBeforeFork
                if is_private
                    && self.fault.was_present == Some(true)
                    && self.fault.access.is_none() =>
            {
                FaultKind::FileCopy
            }
            Page::Clean if is_private && self.fault.access.is_none() => FaultKind::Unknown,
            Page::Clean => self.repeated(),
            _ if self.fault.severity.is_none() => FaultKind::Unknown,
            _ => FaultKind::FileMapped,
        }
    }

    fn repeated(&self) -> FaultKind {
        if self.sees_unmaps { FaultKind::Repeated } else { FaultKind::Unknown }
    }

    /// True if the fault may be a write to a present page that was not writable.
    fn may_be_write(&self) -> bool {
        !matches!(self.fault.access, Some(Access::Read | Access::Execute))
            && self.fault.was_present != Some(false)
    }

    fn is_major(&self) -> bool {
        self.fault.severity == Some(Severity::Major)
    }

    /// True if the events show that this fault brings a page of memory that begins empty.
    pub(super) fn is_new(&self) -> bool {
        let is_gone = self.memory == Memory::Shared && self.shared == Page::Discarded;
        matches!(self.memory, Memory::Anonymous | Memory::Shared)
            && (is_gone || matches!(self.page, Page::Unseen | Page::Discarded))
    }

    /// The state of the page after a fault of that kind.
    pub(super) fn page_after(&self, kind: FaultKind) -> Page {
        let is_read = matches!(self.fault.access, Some(Access::Read | Access::Execute));
        let is_write = self.fault.access == Some(Access::Write);
        match (kind, self.memory) {
            (FaultKind::Repeated, _) => self.page,
            (_, Memory::Shared) => Page::Own,
            (FaultKind::FileCopy | FaultKind::CowAfterFork | FaultKind::FirstWrite, _) => Page::Own,
            (FaultKind::FirstTouch | FaultKind::Refault, Memory::Anonymous) if is_read => {
                Page::Clean
            }
            (_, Memory::Anonymous) | (FaultKind::SwapIn, _) => match self.page {
                Page::OwnBeforeFork if is_read => self.page,
                _ => Page::Own,
            },
            (_, Memory::PrivateFile | Memory::PrivateMemoryFile) if is_write => Page::Own,
            _ => Page::Clean,
        }
    }
}
