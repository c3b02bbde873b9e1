//! The system's settings of transparent huge pages and of khugepaged.

use super::read;
use crate::{Errno, Result};

const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const MAX_PTES_NONE: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none";

/// Who gets huge pages at a fault and from khugepaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Everybody.
    Always,
    /// Who asks for them.
    Madvise,
    /// Nobody.
    Never,
    /// A word that this program does not know.
    Other(String),
}

impl Policy {
    /// Reads the choice in brackets: `always [madvise] never`.
    ///
    /// ```
    /// use cowslip_sys::procfs::Policy;
    /// assert_eq!(Policy::parse("always [madvise] never\n"), Policy::Madvise);
    /// ```
    pub fn parse(line: &str) -> Self {
        let chosen = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        Self::of_word(chosen.map_or(line.trim(), |(word, _)| word))
    }

    /// The policy with this word.
    pub fn of_word(word: &str) -> Self {
        match word {
            "always" => Self::Always,
            "madvise" => Self::Madvise,
            "never" => Self::Never,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The word for it.
    pub fn word(&self) -> &str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
            Self::Other(word) => word,
        }
    }
}

/// The settings in force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thp {
    /// `transparent_hugepage/enabled`
    pub enabled: Policy,
    /// Absent pages in 2 MiB that khugepaged fills with zeroes (`khugepaged/max_ptes_none`).
    pub max_ptes_none: u32,
}

impl Thp {
    /// The settings of this machine; `ENOENT` on a kernel without huge pages.
    pub fn read() -> Result<Self> {
        let max_ptes_none = read(MAX_PTES_NONE)?.trim().parse().map_err(|_| Errno::IO)?;
        Ok(Self { enabled: Policy::parse(&read(ENABLED)?), max_ptes_none })
    }

    /// Makes these the settings of the whole machine; `EACCES` for others than root.
    pub fn write(&self) -> Result<()> {
        write(MAX_PTES_NONE, &self.max_ptes_none.to_string())?;
        write(ENABLED, self.enabled.word())
    }
}

fn write(path: &str, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
