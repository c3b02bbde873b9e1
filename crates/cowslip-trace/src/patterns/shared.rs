//! Advice about base pages in shared memory.

use crate::analysis::Analysis;
use crate::attribute::Place;
use crate::thp::{self, Kind};

/// Advice for places where huge pages fit and did not come.
pub(super) fn advice(analysis: &Analysis, place: &Place) -> String {
    const SETTING: &str = "transparent_hugepage/shmem_enabled";
    const ASK: &str = "madvise(MADV_HUGEPAGE)";
    let name = match place {
        Place::MemoryFile(name) => &**name,
        _ => "",
    };
    if name.starts_with("/dev/shm/") {
        return format!(
            "a mount gives its files huge pages by an option: mount -o remount,huge=advise /dev/shm, \
             and {ASK}"
        );
    }
    match thp::setting(&analysis.header.machine, Kind::Shared) {
        Some(word @ ("never" | "deny")) => format!(
            "shared memory gets no huge pages ({SETTING}: {word}): set it to advise, and {ASK}; or take \
             them from the pool (vm.nr_hugepages) by {}",
            by_pool(analysis, name)
        ),
        Some("advise") => {
            format!("shared memory gets huge pages where a program asks ({SETTING}: advise): {ASK}")
        }
        Some(word) => format!(
            "shared memory gets huge pages ({SETTING}: {word}), and they did not come: see free memory \
             in one piece"
        ),
        None => format!("{ASK}, with {SETTING} at advise"),
    }
}

/// The way for a program to take its shared memory from the system's pool of huge pages.
fn by_pool(analysis: &Analysis, name: &str) -> &'static str {
    let program = analysis.header.command.first().map_or("", |path| path.as_str());
    let threads = analysis.threads.iter().map(|thread| &*thread.name);
    let is_postgres =
        |name: &str| name.rsplit('/').next().is_some_and(|file| file.starts_with("postgres"));
    match name {
        _ if threads.chain([program]).any(is_postgres) => "huge_pages = on",
        _ if name.starts_with("/SYSV") => "SHM_HUGETLB",
        _ if name.starts_with("/memfd:") => "MFD_HUGETLB",
        _ => "MAP_HUGETLB",
    }
}
