//! How much of memory is huge.

use std::fmt;

/// How much of the memory that could be huge is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Private anonymous memory in mappings that have room for a huge page.
    pub anonymous_bytes: u64,
    /// Huge pages in it.
    pub huge_bytes: u64,
    /// Memory of arenas, as far as it is mapped.
    pub arena_bytes: u64,
    /// Huge pages in it.
    pub arena_huge_bytes: u64,
}

impl Coverage {
    /// The huge part of all of it, from 0 to 1; `None` if there is nothing that could be huge.
    pub fn ratio(&self) -> Option<f64> {
        let all_bytes = self.anonymous_bytes + self.arena_bytes;
        let huge_bytes = self.huge_bytes + self.arena_huge_bytes;
        (all_bytes > 0).then(|| huge_bytes as f64 / all_bytes as f64)
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            anonymous_bytes: self.anonymous_bytes + other.anonymous_bytes,
            huge_bytes: self.huge_bytes + other.huge_bytes,
            arena_bytes: self.arena_bytes + other.arena_bytes,
            arena_huge_bytes: self.arena_huge_bytes + other.arena_huge_bytes,
        }
    }
}

impl fmt::Display for Coverage {
    /// The huge part, or a dash if there is nothing that could be huge.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ratio() {
            Some(ratio) => write!(f, "{:.1} %", ratio * 100.0),
            None => f.write_str("–"),
        }
    }
}
