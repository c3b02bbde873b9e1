//! Sources of heat: how it is known which memory is accessed.

use serde::{Deserialize, Serialize};

/// A source of heat: of knowledge about accesses to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeatSource {
    /// It is not known: every region counts as hot.
    #[default]
    None,
    /// Accessed bits that the kernel samples in regions of its own (DAMON).
    Damon,
    /// The bitmap of idle pages.
    IdlePages,
    /// Accessed bits, summed over each mapping (`clear_refs` and `smaps`).
    Mappings,
}

impl HeatSource {
    /// A description for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::None => "not known",
            Self::Damon => "by DAMON, of some MiB at a time",
            Self::IdlePages => "by page",
            Self::Mappings => "by mapping (clear_refs and smaps)",
        }
    }
}
