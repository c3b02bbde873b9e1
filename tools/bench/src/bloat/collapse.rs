//! `MADV_COLLAPSE` by hand, as an administrator's script does it to a program once it is filled.

use cowslip::units::CHUNK_BYTES;
use cowslip_sys::Errno;
use cowslip_sys::procfs;
use cowslip_sys::target::{Advice, Target};

use crate::error::{Error, Result};
use crate::interrupt::Interrupt;

/// madvise(2) documents `EAGAIN` as "Resource temporarily unavailable: try again".
const TRIES: u32 = 20;

/// Makes huge pages of all anonymous memory of a process, in one go.
pub(super) fn collapse(pid: i32, stop: &Interrupt) -> Result<()> {
    let failed = |errno: Errno| Error::Failed(format!("collapse the memory of {pid}: {errno}"));
    let process = Target::open(pid).map_err(failed)?;
    let maps = process.read_file("maps").map_err(failed)?;
    for mapping in procfs::mappings(&maps).filter(procfs::Mapping::is_anonymous) {
        let range = mapping.range.inner_aligned(CHUNK_BYTES);
        for _ in 0..TRIES {
            stop.check()?;
            // An empty part is refused, and the rest of the range is huge all the same.
            if range.is_empty() || process.advise(range, Advice::Collapse) != Err(Errno::AGAIN) {
                break;
            }
        }
    }
    Ok(())
}
