//! The cost and the effect of each size of pages for memory as it is used now.

use cowslip_sys::units::{CHUNK_BYTES, page_size_bytes};
use serde::Serialize;

/// Sizes from four base pages to a huge page, as powers of two.
const ORDERS: std::ops::RangeInclusive<u32> = 2..=9;
/// Parts of resident memory: the most that a size may cost, and the least that it has to cover.
const MOST_COST: f64 = 0.1;
const LEAST_COVER: f64 = 0.5;
/// With less memory than this no size matters.
const LEAST_BYTES: u64 = 16 << 20;

/// Pages of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SizeAdvice {
    /// Their size.
    pub page_bytes: u64,
    /// At the fault, wherever anything is used: memory more than now.
    pub added_bytes: u64,
    /// Resident memory that they would map.
    pub covered_bytes: u64,
    /// Entries that would translate all resident memory.
    pub entries: u64,
    /// Only where pages are as full as the threshold: memory more than now.
    pub dense_added_bytes: u64,
    /// Resident memory that those would map.
    pub dense_covered_bytes: u64,
    /// Entries that would translate all resident memory then.
    pub dense_entries: u64,
}

/// The sizes for a process' private anonymous memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Advice {
    /// The memory that is in use now.
    pub resident_bytes: u64,
    /// The part of it that huge pages map now.
    pub huge_bytes: u64,
    /// Each size, the smallest first.
    pub sizes: Vec<SizeAdvice>,
    threshold_percent: u8,
}

/// The recommended size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recommendation<'a> {
    /// Promotion of dense memory to huge pages.
    Promote(&'a SizeAdvice),
    /// Pages of this size at the fault.
    AtFault(&'a SizeAdvice),
    /// There is too little memory.
    TooLittle,
    /// Each size costs too much memory, or covers too little.
    None,
}

impl Advice {
    /// For no memory yet. `threshold_percent` tells which pages count as dense.
    pub(crate) fn new(threshold_percent: u8) -> Self {
        let size = |order| SizeAdvice {
            page_bytes: (page_size_bytes() as u64) << order,
            ..SizeAdvice::default()
        };
        let sizes = ORDERS.map(size).collect();
        Self { resident_bytes: 0, huge_bytes: 0, sizes, threshold_percent }
    }

    /// Adds the memory of another process, weighed by the same threshold.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.resident_bytes += other.resident_bytes;
        self.huge_bytes += other.huge_bytes;
        for (sum, size) in self.sizes.iter_mut().zip(&other.sizes) {
            sum.added_bytes += size.added_bytes;
            sum.covered_bytes += size.covered_bytes;
            sum.entries += size.entries;
            sum.dense_added_bytes += size.dense_added_bytes;
            sum.dense_covered_bytes += size.dense_covered_bytes;
            sum.dense_entries += size.dense_entries;
        }
    }

    /// The sizes below a huge page that cost little memory and cover much of it at the fault, the largest first; none
    /// where promotion does, or where there is too little memory.
    pub(crate) fn at_fault(&self) -> impl Iterator<Item = &SizeAdvice> {
        let most = match self.recommendation() {
            Recommendation::AtFault(largest) => largest.page_bytes.min(CHUNK_BYTES as u64 / 2),
            _ => 0,
        };
        let sizes = self.sizes.iter().rev().filter(move |size| size.page_bytes <= most);
        sizes.filter(|size| self.is_cheap(size.page_bytes) && self.is_covered(size))
    }

    /// True if pages of this size at the fault cost little memory.
    pub(crate) fn is_cheap(&self, page_bytes: u64) -> bool {
        let size = self.size(page_bytes);
        size.is_some_and(|size| size.added_bytes as f64 <= MOST_COST * self.resident_bytes as f64)
    }

    fn is_covered(&self, size: &SizeAdvice) -> bool {
        size.covered_bytes as f64 >= LEAST_COVER * self.resident_bytes as f64
    }

    pub(crate) fn size(&self, page_bytes: u64) -> Option<&SizeAdvice> {
        self.sizes.iter().find(|size| size.page_bytes == page_bytes)
    }

    /// Adds a mapping, or a part of it that no page of any size crosses: the number of its first page, and for each of its pages if it is resident.
    pub(crate) fn add(&mut self, first_page: u64, is_resident: &[bool]) {
        let page = page_size_bytes() as u64;
        let resident = is_resident.iter().filter(|is_resident| **is_resident).count() as u64;
        self.resident_bytes += resident * page;
        for size in &mut self.sizes {
            let pages = size.page_bytes / page;
            let offset = first_page.next_multiple_of(pages) - first_page;
            let aligned = is_resident.get(offset as usize..).unwrap_or_default();
            (size.entries, size.dense_entries) =
                (size.entries + resident, size.dense_entries + resident);
            for block in aligned.chunks_exact(pages as usize) {
                let used = block.iter().filter(|is_resident| **is_resident).count() as u64;
                if used == 0 {
                    continue;
                }
                let (added, covered) = ((pages - used) * page, used * page);
                size.added_bytes += added;
                size.covered_bytes += covered;
                size.entries -= used - 1;
                if used * 100 >= pages * u64::from(self.threshold_percent) {
                    size.dense_added_bytes += added;
                    size.dense_covered_bytes += covered;
                    size.dense_entries -= used - 1;
                }
            }
        }
    }

    /// The best of the sizes.
    pub fn recommendation(&self) -> Recommendation<'_> {
        let of_resident = |bytes: u64| bytes as f64 / self.resident_bytes as f64;
        if self.resident_bytes < LEAST_BYTES {
            return Recommendation::TooLittle;
        }
        let huge = self.sizes.last().expect("there are sizes");
        if of_resident(huge.dense_covered_bytes) >= LEAST_COVER {
            return Recommendation::Promote(huge);
        }
        let is_good = |size: &&SizeAdvice| self.is_cheap(size.page_bytes) && self.is_covered(size);
        let largest = self.sizes.iter().rev().find(is_good);
        largest.map_or(Recommendation::None, Recommendation::AtFault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(advice: &Advice, kib: u64) -> SizeAdvice {
        *advice.sizes.iter().find(|size| size.page_bytes == kib << 10).unwrap()
    }

    #[test]
    fn each_size_has_its_cost_and_its_cover() {
        let page = page_size_bytes() as u64;
        let mut advice = Advice::new(90);
        // From page 6 on: 2 pages before the first aligned 8, of which 5 are resident.
        let mut pages = vec![true; 2];
        pages.extend([true, true, true, true, true, false, false, false]);
        advice.add(6, &pages);
        assert_eq!(advice.resident_bytes, 7 * page);
        let quad = size(&advice, 16);
        assert_eq!((quad.added_bytes, quad.covered_bytes, quad.entries), (3 * page, 5 * page, 4));
        assert_eq!(
            (quad.dense_added_bytes, quad.dense_covered_bytes, quad.dense_entries),
            (0, 4 * page, 4)
        );
        let eight = size(&advice, 32);
        assert_eq!(
            (eight.added_bytes, eight.covered_bytes, eight.entries),
            (3 * page, 5 * page, 3)
        );
        assert_eq!((eight.dense_covered_bytes, eight.dense_entries), (0, 7));
        assert_eq!(
            size(&advice, 64),
            SizeAdvice { page_bytes: 65536, entries: 7, dense_entries: 7, ..SizeAdvice::default() }
        );
    }

    #[test]
    fn the_recommendation_follows_the_use() {
        let of = |is_resident: &dyn Fn(usize) -> bool| {
            let mut advice = Advice::new(90);
            let pages: Vec<bool> = (0..64 << 10).map(is_resident).collect();
            advice.add(0, &pages);
            match advice.recommendation() {
                Recommendation::Promote(size) => (1, size.page_bytes),
                Recommendation::AtFault(size) => (2, size.page_bytes),
                Recommendation::TooLittle => (3, 0),
                Recommendation::None => (4, 0),
            }
        };
        assert_eq!(of(&|_| true), (1, 2 << 20));
        assert_eq!(of(&|page| page % 512 < 256), (2, 1 << 20), "half full, in one piece");
        assert_eq!(of(&|page| page % 32 < 16), (2, 64 << 10));
        assert_eq!(of(&|page| page % 2 == 0), (4, 0), "scattered");
        assert_eq!(of(&|page| page < 512), (3, 0));
    }
}
