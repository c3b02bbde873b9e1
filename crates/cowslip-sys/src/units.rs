//! Bytes, pages, chunks and ranges, each with a type of its own.

use core::fmt;

/// The base page size of this machine in bytes (`AT_PAGESZ`), never assumed.
pub fn page_size_bytes() -> usize {
    rustix::param::page_size()
}

/// Bytes in one chunk: the size that one PMD entry maps on x86-64 and on arm64 with 4 KiB pages.
pub const CHUNK_BYTES: usize = 2 << 20;

/// Bytes that one PUD entry maps; arenas are aligned to it so that whole page-table subtrees move at once.
pub const GIB_BYTES: usize = 1 << 30;

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// `n` mebibytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` gibibytes.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// Reads `512`, `64K`, `256MiB`, `1.5G` … (binary units, upper or lower case).
    ///
    /// ```
    /// use cowslip_sys::units::ByteCount;
    /// assert_eq!(ByteCount::parse("1.5G"), Some(ByteCount::mib(1536)));
    /// assert_eq!(ByteCount::parse("seven"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: f64 = number.parse().ok()?;
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return None,
        };
        let bytes = number * (1u64 << shift) as f64;
        (bytes < u64::MAX as f64).then_some(Self(bytes as u64))
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if value.fract() == 0.0 {
            write!(f, "{value:.0} {}", UNITS[unit])
        } else {
            write!(f, "{value:.1} {}", UNITS[unit])
        }
    }
}

/// A number of base pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct PageCount(pub u64);

impl PageCount {
    /// The pages that `bytes` fill, rounded up.
    pub fn holding(bytes: ByteCount) -> Self {
        Self(bytes.0.div_ceil(page_size_bytes() as u64))
    }

    /// The bytes in these pages.
    pub fn bytes(self) -> ByteCount {
        ByteCount(self.0 * page_size_bytes() as u64)
    }
}

/// A range of virtual addresses of this process: `start .. start + len`, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VirtRange {
    /// First address.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

impl VirtRange {
    /// The range of `len` bytes at `start`.
    pub const fn new(start: usize, len: usize) -> Self {
        Self { start, len }
    }

    /// The range from `start` up to, but excluding, `end`.
    pub const fn between(start: usize, end: usize) -> Self {
        Self { start, len: end.saturating_sub(start) }
    }

    /// One past the last address.
    pub const fn end(self) -> usize {
        self.start + self.len
    }

    /// Returns true if it has no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns true if `address` lies inside.
    pub const fn contains(self, address: usize) -> bool {
        self.start <= address && address < self.end()
    }

    /// Returns true if all of `other` lies inside.
    pub const fn covers(self, other: Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// The common part of both; empty if there is none.
    pub const fn intersect(self, other: Self) -> Self {
        let start = if self.start > other.start { self.start } else { other.start };
        let end = if self.end() < other.end() { self.end() } else { other.end() };
        Self::between(start, end)
    }

    /// The largest part with ends that are multiples of `align` (a power of two); may be empty.
    pub const fn inner_aligned(self, align: usize) -> Self {
        let start = (self.start + align - 1) & !(align - 1);
        Self::between(start, self.end() & !(align - 1))
    }

    /// The smallest range around it with ends that are multiples of `align` (a power of two).
    pub const fn outer_aligned(self, align: usize) -> Self {
        let start = self.start & !(align - 1);
        Self::between(start, (self.end() + align - 1) & !(align - 1))
    }
}

impl fmt::Debug for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end())
    }
}

impl fmt::Display for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x} ({})", self.start, self.end(), ByteCount(self.len as u64))
    }
}

/// Rounds `bytes` up to a multiple of `align` (a power of two); `None` on overflow.
pub const fn round_up(bytes: usize, align: usize) -> Option<usize> {
    match bytes.checked_add(align - 1) {
        Some(sum) => Some(sum & !(align - 1)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_print_and_parse() {
        assert_eq!(ByteCount::gib(24).to_string(), "24 GiB");
        assert_eq!(ByteCount(1536).to_string(), "1.5 KiB");
        assert_eq!(ByteCount::parse("2MiB"), Some(ByteCount::mib(2)));
        assert_eq!(ByteCount::parse(" 7 "), Some(ByteCount(7)));
        for bad in ["", "-1", "1.2.3", "4 miles", "99999999999T"] {
            assert_eq!(ByteCount::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranges_align_and_intersect() {
        let r = VirtRange::between(0x1000, 0x5000);
        assert_eq!(r.inner_aligned(0x2000), VirtRange::between(0x2000, 0x4000));
        assert_eq!(r.outer_aligned(0x2000), VirtRange::between(0, 0x6000));
        assert!(r.intersect(VirtRange::between(0x5000, 0x6000)).is_empty());
        assert!(VirtRange::between(0x1000, 0x1800).inner_aligned(0x1000).is_empty());
        assert_eq!(round_up(usize::MAX, 4096), None);
    }
}
