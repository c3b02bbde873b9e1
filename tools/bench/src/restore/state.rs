//! State after a restore: memory, huge mappings, ties.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cowslip::units::VirtRange;
use serde::{Deserialize, Serialize};

use super::Result;
use crate::error::during;
use crate::smaps;

/// The state of this process, and of a range of its memory.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(super) struct State {
    /// Mapped and present.
    pub(super) rss_bytes: u64,
    /// Memory in memory files that this process has open: memfds, unnamed files of a tmpfs.
    pub(super) shmem_bytes: u64,
    /// Bytes of the range that huge entries map.
    pub(super) huge_bytes: u64,
    /// True if the file that it came from is mapped.
    pub(super) maps_file: bool,
    /// True if a part of the range is registered with a userfaultfd.
    pub(super) is_registered: bool,
}

impl State {
    pub(super) fn new(range: VirtRange, file: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/self/{name}");
            fs::read_to_string(&path).map_err(during(format!("read {path}")))
        };
        let status = read("status")?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss = rss.and_then(|rss| rss.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        let file = file.canonicalize().map_err(during("find the file"))?;
        let file = file.to_string_lossy().into_owned();
        Ok(Self {
            rss_bytes: rss.unwrap_or(0) << 10,
            shmem_bytes: shmem_bytes()?,
            huge_bytes: smaps::huge_mapped_bytes(range)?,
            maps_file: read("maps")?.lines().any(|line| line.ends_with(&file)),
            is_registered: smaps::is_registered(range)?,
        })
    }

    /// The additional memory since `before`.
    pub(super) fn since(self, before: &Self) -> Self {
        Self {
            rss_bytes: self.rss_bytes.saturating_sub(before.rss_bytes),
            shmem_bytes: self.shmem_bytes.saturating_sub(before.shmem_bytes),
            ..self
        }
    }
}

/// Memory of the open files without a name: this process opens no others of the kind.
fn shmem_bytes() -> Result<u64> {
    let open = fs::read_dir("/proc/self/fd").map_err(during("read /proc/self/fd"))?;
    let mut files = BTreeMap::new();
    for entry in open.flatten() {
        // The descriptor of the directory itself is closed by now.
        let Ok(file) = fs::metadata(entry.path()) else { continue };
        if file.is_file() && file.nlink() == 0 {
            files.insert((file.dev(), file.ino()), file.blocks() * 512);
        }
    }
    Ok(files.values().sum())
}
