//! Huge pages for the text of programs and libraries, where the file system and the kernel can.
//!
//! A kernel with `CONFIG_READ_ONLY_THP_FOR_FS` makes them in the page cache, for files that are not open for writing; it
//! drops them when one is opened for that. Files in a tmpfs need no such kernel. Each file system is tried once, with a
//! scratch file without a name.
//!
//! # Safety
//! The probe's range is its alone, and no reference into it exists.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cowslip::host::Answer;
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{self as sys, AsFd, Errno, OwnedFd, cache, memfile, procfs};

/// Local file systems: others answer when they like, and a page fault would wait for that.
const LOCAL: [&str; 5] = ["ext4", "xfs", "btrfs", "f2fs", "tmpfs"];

/// The file systems whose files targets execute.
#[derive(Debug, Default)]
pub(crate) struct FileSystems {
    /// By device; `None` for those that are not mounted here, or not local.
    known: BTreeMap<u64, Option<Answer>>,
    /// Answers that were not told yet.
    news: Vec<(PathBuf, Answer)>,
}

impl FileSystems {
    /// True if huge pages may be made for files on this device. The first question tries it.
    pub(crate) fn allows(&mut self, device: u64) -> bool {
        if !self.known.contains_key(&device) {
            let answer = mount_point(device).map(|folder| {
                let answer = probe(&folder);
                self.news.push((folder, answer.clone()));
                answer
            });
            self.known.insert(device, answer);
        }
        // Without a scratch file, the kernel answers for each region.
        matches!(self.known.get(&device), Some(Some(answer)) if *answer != Answer::Unsupported)
    }

    /// The mount points tried since the last call, with the answers.
    pub(crate) fn take_news(&mut self) -> Vec<(PathBuf, Answer)> {
        std::mem::take(&mut self.news)
    }
}

fn mount_point(device: u64) -> Option<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut mounts = procfs::mounts(&text);
    let mount = mounts.find(|mount| mount.device == device && LOCAL.contains(&mount.kind))?;
    Some(mount.point.into())
}

/// Makes a huge page of a scratch file on the file system that is mounted at `folder`.
fn probe(folder: &Path) -> Answer {
    let file = match scratch(folder) {
        Ok(file) => file,
        Err(errno) => return refused(folder, errno),
    };
    match collapse(&file) {
        Ok(true) => Answer::Available,
        Ok(false) => Answer::Unknown { errno: 0 },
        Err(Errno::INVAL) => Answer::Unsupported,
        Err(errno) => refused(folder, errno),
    }
}

fn refused(folder: &Path, errno: Errno) -> Answer {
    match errno {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            let hint = format!("no scratch file can be executed in {}", folder.display());
            Answer::Denied { hint }
        }
        errno => Answer::Unknown { errno: errno.raw_os_error() },
    }
}

/// A file of one huge page, written to the disk, and open for reading only.
fn scratch(folder: &Path) -> sys::Result<OwnedFd> {
    let file = memfile::nameless(folder)?;
    memfile::write_zeroes(file.as_fd(), 0, CHUNK_BYTES as u64)?;
    cache::drop_cached(file.as_fd())?;
    memfile::reopen_read_only(file.as_fd())
}

/// True if the kernel says that it maps a huge page then.
fn collapse(file: &OwnedFd) -> sys::Result<bool> {
    let range = memory::reserve(CHUNK_BYTES, CHUNK_BYTES)?;
    let made = || {
        // SAFETY: see the module.
        unsafe {
            memory::map_file(range, file.as_fd(), 0, Sharing::Private, Prot::READ | Prot::EXEC)
        }?;
        memory::populate(range)?;
        // SAFETY: see the module.
        unsafe { memory::advise(range, Advice::Collapse) }?;
        Ok(is_huge(range))
    };
    let made = made();
    // SAFETY: see the module.
    unsafe { memory::unmap(range) }?;
    made
}

fn is_huge(range: VirtRange) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    procfs::usage_of(&smaps, |mapping| mapping.range == range).huge_mapped_bytes() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tmpfs_has_huge_text_and_a_folder_that_cannot_be_written_is_no_answer() {
        match probe(Path::new("/dev/shm")) {
            Answer::Available => {}
            answer => println!("SKIPPED: shmem_collapse: {answer:?}"),
        }
        assert!(matches!(
            probe(Path::new("/proc")),
            Answer::Denied { .. } | Answer::Unknown { .. }
        ));
        let mut systems = FileSystems::default();
        assert!(!systems.allows(u64::MAX) && systems.take_news().is_empty(), "it is not mounted");
    }
}
