//! Fragmented memory: free memory without 2 MiB in one piece.
//!
//! A process takes memory as base pages, the hugetlb pool takes the huge pages that are left free, and then the process
//! gives back all but one page of each few. The free memory is then in small pieces, between pages that the kernel can
//! move together if it takes the time.
//!
//! Or the pages in between are [pinned](super::pinned), so that it cannot move them. All huge pages that it can still
//! make are then in the pool, but for those that are to be left.

use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};
use cowslip_sys::procfs::{available_bytes, buddy_orders};

use super::process::Command;
use super::target::Target;
use super::{Bench, Result};
use crate::error::{Error, during};
use crate::pool::Pool;

/// One page in this many stays.
const KEEP_ONE_IN: usize = 16;
/// One page in this many is pinned: half a huge page.
const PIN_ONE_IN: usize = 256;
/// Available memory that is left unused meanwhile.
const SPARED_BYTES: u64 = 1 << 30;
/// Other processes take and free pages while the pool is filled.
const TRIES: usize = 4;

/// Keeps memory fragmented while it lives.
#[derive(Debug)]
pub(super) struct Fragmented {
    pools: Vec<Pool>,
    _holder: Target,
    /// Free huge pages that are left.
    pub(super) free_huge_pages: u64,
}

impl Fragmented {
    /// Fragments this much free memory, and leaves this many huge pages free.
    pub(super) fn with(bench: &Bench<'_>, bytes: u64, huge_pages: u64) -> Result<Self> {
        let mut holder = Target::start()?;
        holder.tell(Command::Fill { bytes, base: true }, bench.stop)?;
        let mut fragmented = Self { pools: Vec::new(), _holder: holder, free_huge_pages: 0 };
        let mut pooled_bytes = 0;
        for _ in 0..TRIES {
            let Some(excess @ 1..) = free_huge_pages()?.checked_sub(huge_pages) else { break };
            let excess_bytes = excess * CHUNK_BYTES as u64;
            let (available, _) = available_bytes().map_err(during("read /proc/meminfo"))?;
            // The pages that the process gives back will be available too.
            let given_back = bytes - bytes / KEEP_ONE_IN as u64;
            if available + given_back < excess_bytes + SPARED_BYTES {
                let why = format!(
                    "memory stays in one piece: {} more would have to be taken, and {} of the {} available are \
                     spared",
                    ByteCount(excess_bytes),
                    ByteCount(SPARED_BYTES),
                    ByteCount(available)
                );
                return Err(Error::Failed(why));
            }
            match Pool::with_free_bytes((pooled_bytes + excess_bytes) as usize) {
                Ok(pool) => {
                    pooled_bytes += excess_bytes;
                    fragmented.pools.push(pool);
                }
                // Another process took some meanwhile, which leaves less to take.
                Err(Error::Failed(_)) => {}
                Err(error) => return Err(error),
            }
        }
        fragmented._holder.tell(Command::Thin { keep_one_in: KEEP_ONE_IN }, bench.stop)?;
        fragmented.free_huge_pages = free_huge_pages()?;
        Ok(fragmented)
    }

    /// Pins a page in each huge page of free memory, and leaves about this many huge pages free.
    pub(super) fn pinned(bench: &Bench<'_>, huge_pages: u64) -> Result<Self> {
        // These are not pinned.
        let left = Pool::with_all_free(huge_pages)?;
        let (_, total_bytes) = available_bytes().map_err(during("read /proc/meminfo"))?;
        let spared_bytes = SPARED_BYTES.min(total_bytes / 8);
        let bytes =
            free_bytes()?.saturating_sub(spared_bytes) / CHUNK_BYTES as u64 * CHUNK_BYTES as u64;
        let mut holder = Target::start()?;
        holder.tell(Command::Fill { bytes, base: true }, bench.stop)?;
        holder.tell(Command::Pin { keep_one_in: PIN_ONE_IN }, bench.stop)?;
        let all = Pool::with_all_free(total_bytes / CHUNK_BYTES as u64)?;
        all.give_back(huge_pages)?;
        let pools = vec![left, all];
        let free_huge_pages = free_huge_pages()?;
        Ok(Self { pools, _holder: holder, free_huge_pages })
    }
}

impl Drop for Fragmented {
    fn drop(&mut self) {
        // Each pool restores the size that it found: the last one first.
        while self.pools.pop().is_some() {}
    }
}

fn free_bytes() -> Result<u64> {
    let orders = buddy_orders().map_err(during("read /proc/buddyinfo"))?;
    let pages: u64 = orders.free.iter().enumerate().map(|(order, blocks)| blocks << order).sum();
    Ok(pages * page_size_bytes() as u64)
}

/// Free memory in pieces of at least a huge page, in huge pages.
pub(super) fn free_huge_pages() -> Result<u64> {
    let huge_order = (CHUNK_BYTES / page_size_bytes()).trailing_zeros() as usize;
    let orders = buddy_orders().map_err(during("read /proc/buddyinfo"))?;
    let huge = orders.free.iter().enumerate().skip(huge_order);
    Ok(huge.map(|(order, blocks)| blocks << (order - huge_order)).sum())
}
