//! Memory that a program keeps out of core files (`MADV_DONTDUMP`), as it does with keys.

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::target::Target;
use libc::{MADV_DONTNEED, SYS_madvise};

use crate::branch::{Caller, memory_of};
use crate::hold::Holder;
use crate::kept::out_of_core_files;
use crate::library::Own;
use crate::shared::{self, SharedMemory};

const OPERATION: &str = "leave out memory that core files lack";

impl Holder {
    /// Empties the holder's memory that core files lack. The program keeps it.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] once the holder is lent; [`ErrorKind::Vanished`] if it has been killed.
    pub fn forget_secrets(&mut self) -> Result<()> {
        let (program, held) = self.both();
        let smaps = held.read_file("smaps").during(OPERATION)?;
        // The holder's shared memory is its own, without the flag that the program's had at the look, or has now.
        let now = program.read_file("smaps").unwrap_or_default();
        let secrets = [self.secrets(), &out_of_core_files(&now, &Own::default())].concat();
        let is_secret = |memory: &&SharedMemory| {
            secrets.iter().any(|secret| !secret.intersect(memory.range).is_empty())
        };
        let own: Vec<_> = self.shared().iter().filter(is_secret).cloned().collect();
        self.calls(OPERATION, |caller, _| {
            own.iter().try_for_each(|memory| shared::empty(caller, memory))?;
            out_of_core_files(&smaps, &Own::default()).iter().try_for_each(|range| {
                let (start, len) = (range.start as u64, range.len as u64);
                caller.call(SYS_madvise, &[start, len, MADV_DONTNEED as u64]).map(drop)
            })
        })
    }

    /// Has the holder make calls.
    pub(crate) fn calls(
        &mut self,
        operation: &'static str,
        make: impl FnOnce(&mut Caller<'_>, &Target) -> cowslip_sys::Result<()>,
    ) -> Result<()> {
        let sites = self.sites();
        let Some(child) = self.stopped() else {
            return Err(Error::new(ErrorKind::Busy, operation).because("the holder is lent"));
        };
        child.take_over().during(operation)?;
        let (held, memory) = memory_of(child).during(operation)?;
        let mut caller = Caller::new(child, &memory, sites).during(operation)?;
        make(&mut caller, &held).during(operation)
    }
}
