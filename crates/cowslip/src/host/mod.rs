//! What this kernel and these privileges allow.

use crate::units::ByteCount;

/// Memory and swap of this machine.
pub fn memory_and_swap() -> ByteCount {
    crate::sys::process::memory_and_swap()
}

/// Whether a memfd gets huge pages when they are asked for with `madvise`.
pub(crate) fn shmem_gives_huge_pages() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    matches!(
        setting.ok().as_deref().and_then(chosen),
        Some("always" | "within_size" | "advise" | "force")
    )
}

/// The bracketed word of a line such as `always [madvise] never`.
pub fn chosen(setting: &str) -> Option<&str> {
    let start = setting.find('[')? + 1;
    let end = start + setting[start..].find(']')?;
    Some(&setting[start..end])
}
