#![allow(unsafe_code)]
//! The cost of a page fault on this machine now.
//!
//! # Safety
//! Memory is mapped, touched and unmapped here, and no other code knows of it.

use crate::memory::{self, Advice, Prot};
use crate::process::now_ns;
use crate::procfs::{Policy, Thp};
use crate::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use crate::{Errno, Result};

/// Chunks touched in each measurement; the median of several counts.
const CHUNKS: usize = 2;
const MEASUREMENTS: usize = 7;

/// Nanoseconds that the first write to a base page of anonymous memory takes.
pub fn base_page_ns() -> Result<f64> {
    measure(Advice::NoHugePage, page_size_bytes())
}

/// Nanoseconds that the first write to a huge page of anonymous memory takes.
///
/// # Errors
/// `EOPNOTSUPP` where huge pages are off.
pub fn huge_page_ns() -> Result<f64> {
    match Thp::read()?.enabled {
        Policy::Never => Err(Errno::OPNOTSUPP),
        _ => measure(Advice::HugePage, CHUNK_BYTES),
    }
}

fn measure(advice: Advice, step: usize) -> Result<f64> {
    let range = memory::reserve(CHUNKS * CHUNK_BYTES, CHUNK_BYTES)?;
    let measured: Result<Vec<f64>> =
        (0..MEASUREMENTS).map(|_| touch(range, advice, step)).collect();
    // SAFETY: reserved above; no other code knows of it.
    unsafe { memory::unmap(range) }?;
    let mut measured = measured?;
    measured.sort_unstable_by(f64::total_cmp);
    Ok(measured[MEASUREMENTS / 2])
}

fn touch(range: VirtRange, advice: Advice, step: usize) -> Result<f64> {
    // SAFETY: the range belongs to the caller, which reserved it.
    unsafe {
        memory::map_anonymous(range, Prot::RW)?;
        memory::advise(range, advice)?;
    }
    let began = now_ns();
    for address in (range.start..range.end()).step_by(step) {
        // SAFETY: just mapped for writing, and owned by the caller alone.
        unsafe { (address as *mut u8).write_volatile(1) };
    }
    Ok((now_ns() - began) as f64 / (range.len / step) as f64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_fault_takes_time() {
        let ns = super::base_page_ns().unwrap();
        assert!((10.0..10e6).contains(&ns), "{ns}");
    }
}
