//! The huge part of memory.

use std::fmt;

/// The huge part of a process' anonymous memory. Lazily freed memory is not in use, and counts nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Private anonymous memory of all mappings.
    pub anonymous_bytes: u64,
    /// The part of it in mappings that have room for a huge page.
    pub fitting_bytes: u64,
    /// Huge pages in it.
    pub huge_bytes: u64,
    /// Mapped memory of arenas.
    pub arena_bytes: u64,
    /// Huge pages in arenas.
    pub arena_huge_bytes: u64,
    /// Other shared memory, as far as it is mapped; in no ratio, as other processes may map it too.
    pub shmem_bytes: u64,
    /// Huge pages in it.
    pub shmem_huge_bytes: u64,
    /// Shared memory, as far as it is mapped, that cannot be huge: the addresses of its mapping do not fit the huge
    /// pages of its file.
    pub shmem_unaligned_bytes: u64,
    /// Text of programs and libraries, as far as it is promoted and mapped; in no ratio either.
    pub text_bytes: u64,
    /// Huge pages in it.
    pub text_huge_bytes: u64,
}

impl Coverage {
    /// The huge part of all anonymous memory and arenas, from 0 to 1, even where the rest cannot be promoted;
    /// `None` if there is no such memory.
    pub fn ratio(&self) -> Option<f64> {
        self.huge_of(self.anonymous_bytes + self.arena_bytes)
    }

    /// The huge part of the memory that fits huge pages, from 0 to 1; `None` if none of it can be promoted.
    pub fn fitting_ratio(&self) -> Option<f64> {
        self.huge_of(self.fitting_bytes + self.arena_bytes)
    }

    /// True if at least `wanted` of all memory is huge; false where nothing can be promoted.
    pub fn reaches(&self, wanted: f64) -> bool {
        self.fitting_ratio().is_some() && self.ratio().is_some_and(|ratio| ratio >= wanted)
    }

    fn huge_of(&self, all_bytes: u64) -> Option<f64> {
        let huge_bytes = self.huge_bytes + self.arena_huge_bytes;
        (all_bytes > 0).then(|| huge_bytes as f64 / all_bytes as f64)
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            anonymous_bytes: self.anonymous_bytes + other.anonymous_bytes,
            fitting_bytes: self.fitting_bytes + other.fitting_bytes,
            huge_bytes: self.huge_bytes + other.huge_bytes,
            arena_bytes: self.arena_bytes + other.arena_bytes,
            arena_huge_bytes: self.arena_huge_bytes + other.arena_huge_bytes,
            shmem_bytes: self.shmem_bytes + other.shmem_bytes,
            shmem_huge_bytes: self.shmem_huge_bytes + other.shmem_huge_bytes,
            shmem_unaligned_bytes: self.shmem_unaligned_bytes + other.shmem_unaligned_bytes,
            text_bytes: self.text_bytes + other.text_bytes,
            text_huge_bytes: self.text_huge_bytes + other.text_huge_bytes,
        }
    }
}

impl fmt::Display for Coverage {
    /// The huge part of all, as a percentage.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&percent(self.ratio()))
    }
}

/// A ratio as a percentage, rounded down; a dash if there is none.
pub fn percent(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |ratio| {
        format!("{:.1} %", (ratio * 1000.0 + 1e-9).floor() / 10.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_of_all_memory_and_not_reached_by_rounding_or_by_nothing() {
        const MIB: u64 = 1 << 20;
        let node = Coverage {
            anonymous_bytes: 135 * MIB,
            fitting_bytes: 28 * MIB,
            huge_bytes: 20 * MIB,
            ..Coverage::default()
        };
        assert_eq!(
            (node.to_string(), percent(node.fitting_ratio())),
            ("14.8 %".into(), "71.4 %".into())
        );
        assert!(node.reaches(0.14) && !node.reaches(0.71));
        let all = Coverage { anonymous_bytes: 20 * MIB, fitting_bytes: 20 * MIB, ..node };
        assert!(all.reaches(1.0));
        let nearly = Coverage { anonymous_bytes: 20 * MIB + 4096, ..all };
        assert!(!nearly.reaches(1.0) && nearly.to_string() == "99.9 %", "{nearly}");
        let small = Coverage { anonymous_bytes: MIB, ..Coverage::default() };
        assert!(!small.reaches(0.0) && small.fitting_ratio().is_none(), "nothing fits");
        let arena = Coverage { arena_bytes: 4 * MIB, arena_huge_bytes: 2 * MIB, ..small };
        assert_eq!((arena.ratio(), arena.fitting_ratio()), (Some(0.4), Some(0.5)));
    }
}
