//! The library's threads at the instant of a mark. They are in no copy, and go on as they are on the way back.

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::{BorrowedFd, memfile};

use crate::look::{OPERATION, failed};
use crate::thread::ThreadState;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    /// Its number.
    pub(crate) id: i32,
    /// The address of its links in glibc's list of threads with stacks of their own. Other members of that list are the
    /// program's memory.
    links_at: u64,
    links: [u8; 16],
}

impl Service {
    /// Reads the links of all of them, in a program that is stopped, or was a moment ago.
    pub(super) fn all(threads: &[ThreadState], memory: BorrowedFd<'_>) -> Result<Vec<Self>> {
        threads.iter().map(|thread| Self::new(thread, memory)).collect()
    }

    fn new(thread: &ThreadState, memory: BorrowedFd<'_>) -> Result<Self> {
        let links_at = thread.links_at();
        let mut links = [0; 16];
        memfile::read_exact_at(memory, &mut links, links_at).map_err(failed)?;
        let word = |at: usize| u64::from_ne_bytes(links[at..at + 8].try_into().expect("8 bytes"));
        let reads = |at: u64| {
            let mut word = [0; 8];
            memfile::read_exact_at(memory, &mut word, at)
                .is_ok_and(|()| word == links_at.to_ne_bytes())
        };
        // The next one's link back, and the one's before.
        if !reads(word(0).wrapping_add(8)) || !reads(word(8)) {
            return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                .because("the list of threads of its C library is not known"));
        }
        Ok(Self { id: thread.id, links_at, links })
    }

    /// Sets the links to those of the instant.
    pub(crate) fn put_back(&self, memory: BorrowedFd<'_>) -> cowslip_sys::Result<()> {
        memfile::write_at(memory, &self.links, self.links_at)
    }
}
