//! The system's settings of transparent huge pages and of khugepaged.

use super::{read_text, write_text};
use crate::{Errno, Result};

/// The setting of huge pages for shared memory, for instance of a memfd.
pub const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const MAX_PTES_NONE: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none";

/// The memory that gets huge pages at a fault and from khugepaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Policy {
    /// All memory.
    Always,
    /// Memory for which the program asks (`madvise(2)`).
    Madvise,
    /// None.
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
        Self::of_word(chosen(line).unwrap_or(line.trim()))
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

/// The word in brackets in a setting such as `always [madvise] never`.
///
/// ```
/// use cowslip_sys::procfs::chosen;
/// assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
/// assert_eq!(chosen("madvise"), None);
/// assert_eq!(chosen("]["), None);
/// ```
pub fn chosen(setting: &str) -> Option<&str> {
    let (_, rest) = setting.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// The folder of the settings for pages of one size, such as `hugepages-64kB`.
pub fn size_folder(page_bytes: u64) -> String {
    format!("hugepages-{}kB", page_bytes >> 10)
}

/// The memory that gets pages of this size at a fault (Linux 6.8); `ENOENT` where the kernel has none of that size.
pub fn size_policy(page_bytes: u64) -> Result<Policy> {
    Ok(Policy::parse(&read_text(size_setting(page_bytes))?))
}

/// Sets [`size_policy`] for the whole machine; `EACCES` for users other than root.
pub fn set_size_policy(page_bytes: u64, policy: &Policy) -> Result<()> {
    write_text(size_setting(page_bytes), policy.word())
}

fn size_setting(page_bytes: u64) -> String {
    format!("{FOLDER}/{}/enabled", size_folder(page_bytes))
}

/// The choice in [`SHMEM_ENABLED`].
pub fn shmem_setting() -> Option<String> {
    chosen(&read_text(SHMEM_ENABLED).ok()?).map(str::to_owned)
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
        let max_ptes_none = read_text(MAX_PTES_NONE)?.trim().parse().map_err(|_| Errno::IO)?;
        Ok(Self { enabled: Policy::parse(&read_text(ENABLED)?), max_ptes_none })
    }

    /// Makes these the settings of the whole machine; `EACCES` for users other than root.
    pub fn write(&self) -> Result<()> {
        write_text(MAX_PTES_NONE, &self.max_ptes_none.to_string())?;
        write_text(ENABLED, self.enabled.word())
    }
}
