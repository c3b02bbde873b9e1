//! Mappings of a process: `/proc/PID/maps` and `/proc/PID/smaps` (`proc_pid_maps(5)`).

use super::kib_field;
use crate::memfile;
use crate::units::VirtRange;

/// One line of `maps`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping<'a> {
    /// Its addresses.
    pub range: VirtRange,
    /// `PROT_` bits.
    pub protection: u32,
    /// The offset in the file at which it begins.
    pub offset_bytes: u64,
    /// True if it can be read or written: it is no guard.
    pub is_accessible: bool,
    /// True if writes stay in the process.
    pub is_private: bool,
    /// True if a file backs it.
    pub has_file: bool,
    /// The file's device.
    pub device: u64,
    /// The file's number on its device; 0: none.
    pub inode: u64,
    /// A path, or a name in brackets, or nothing.
    pub name: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest.trim_start().split_once(' ').unwrap_or((rest.trim(), ""));
            rest = after;
            word
        };
        let (start, end) = word().split_once('-')?;
        let hex = |text| usize::from_str_radix(text, 16).ok();
        let range = VirtRange::between(hex(start)?, hex(end)?);
        let permissions = word();
        if permissions.len() != 4 {
            return None;
        }
        let (offset, device, inode) = (word(), word(), word());
        let (major, minor) = device.split_once(':')?;
        let number = |text| u32::from_str_radix(text, 16).ok();
        let granted = ['r', 'w', 'x'].iter().enumerate();
        let granted = granted.filter(|(_, letter)| permissions.contains(**letter));
        Some(Self {
            range,
            protection: granted.map(|(bit, _)| 1 << bit).sum(),
            offset_bytes: u64::from_str_radix(offset, 16).ok()?,
            is_accessible: permissions.contains(['r', 'w']),
            is_private: permissions.ends_with('p'),
            has_file: inode != "0",
            device: rustix::fs::makedev(number(major)?, number(minor)?),
            inode: inode.parse().unwrap_or(0),
            name: rest.trim(),
        })
    }

    /// Returns true for private memory without a file, which the kernel backs with pages of any
    /// size.
    pub fn is_anonymous(&self) -> bool {
        self.is_private && !self.has_file && self.is_accessible && !self.is_special()
    }

    /// Whether it is of a memfd of that name (`memfd_create(2)`), whose pages are always the kernel's to give. A path says little:
    /// anybody may name a file so, in a file system that answers when it likes.
    pub fn is_memfd(&self, name: &str) -> bool {
        let found =
            self.name.strip_prefix("/memfd:").and_then(|rest| rest.strip_suffix(" (deleted)"));
        found == Some(name) && memfile::memfd_device() == Some(self.device)
    }

    fn is_special(&self) -> bool {
        self.name.starts_with("[v") || self.name == "[stack]" || self.name == "[uprobes]"
    }
}

/// The use of a mapping by `smaps`, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MappingUse {
    /// Pages in memory.
    pub resident_bytes: u64,
    /// Those that were accessed since the record of accesses was last cleared.
    pub referenced_bytes: u64,
    /// Those that belong to no file.
    pub anonymous_bytes: u64,
    /// Those of them that huge pages map.
    pub huge_bytes: u64,
    /// Those of them that the program freed lazily (`MADV_FREE`) and has not written since.
    pub lazily_freed_bytes: u64,
    /// Shared memory that huge pages map.
    pub shmem_huge_bytes: u64,
    /// Files' pages that huge pages map.
    pub file_huge_bytes: u64,
    /// Pages that other processes map too.
    pub shared_bytes: u64,
    /// Pages that no other process maps.
    pub private_bytes: u64,
    /// Pages of a hugetlb pool that no other process maps; they count as nothing else.
    pub private_hugetlb_bytes: u64,
    /// True if a userfaultfd watches it, for missing, minor or protected pages.
    pub has_userfaultfd: bool,
    /// True if the program asked for huge pages in it (`MADV_HUGEPAGE`).
    pub asks_for_huge_pages: bool,
}

impl MappingUse {
    /// Bytes mapped by page-table entries of the size of a huge page, in any kind of memory.
    pub fn huge_mapped_bytes(&self) -> u64 {
        self.huge_bytes + self.shmem_huge_bytes + self.file_huge_bytes
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            resident_bytes: self.resident_bytes + other.resident_bytes,
            referenced_bytes: self.referenced_bytes + other.referenced_bytes,
            anonymous_bytes: self.anonymous_bytes + other.anonymous_bytes,
            huge_bytes: self.huge_bytes + other.huge_bytes,
            lazily_freed_bytes: self.lazily_freed_bytes + other.lazily_freed_bytes,
            shmem_huge_bytes: self.shmem_huge_bytes + other.shmem_huge_bytes,
            file_huge_bytes: self.file_huge_bytes + other.file_huge_bytes,
            shared_bytes: self.shared_bytes + other.shared_bytes,
            private_bytes: self.private_bytes + other.private_bytes,
            private_hugetlb_bytes: self.private_hugetlb_bytes + other.private_hugetlb_bytes,
            has_userfaultfd: self.has_userfaultfd || other.has_userfaultfd,
            asks_for_huge_pages: self.asks_for_huge_pages || other.asks_for_huge_pages,
        }
    }

    /// Takes in a line of `smaps` or `smaps_rollup`.
    fn take(&mut self, line: &str) {
        let Some((name, bytes)) = kib_field(line) else {
            let flags = line.strip_prefix("VmFlags:").unwrap_or("").split_ascii_whitespace();
            for flag in flags {
                self.has_userfaultfd |= ["um", "ui", "uw"].contains(&flag);
                self.asks_for_huge_pages |= flag == "hg";
            }
            return;
        };
        match name {
            "Rss" => self.resident_bytes = bytes,
            "Referenced" => self.referenced_bytes = bytes,
            "Anonymous" => self.anonymous_bytes = bytes,
            "AnonHugePages" => self.huge_bytes = bytes,
            "LazyFree" => self.lazily_freed_bytes = bytes,
            "ShmemPmdMapped" => self.shmem_huge_bytes = bytes,
            "FilePmdMapped" => self.file_huge_bytes = bytes,
            "Shared_Clean" | "Shared_Dirty" => self.shared_bytes += bytes,
            "Private_Clean" | "Private_Dirty" => self.private_bytes += bytes,
            "Private_Hugetlb" => self.private_hugetlb_bytes = bytes,
            _ => {}
        }
    }

    /// Reads the text of `/proc/PID/smaps_rollup`: all mappings of a process together.
    pub fn rollup(text: &str) -> Self {
        let mut sums = Self::default();
        text.lines().for_each(|line| sums.take(line));
        sums
    }
}

/// The mappings in the text of `maps`.
///
/// ```
/// use cowslip_sys::procfs;
/// let maps = "7f00-8f00 rw-p 00000000 00:00 0 [heap]\n9000-a000 r--s 00000000 fe:00 17 /etc/a file\n";
/// let all: Vec<_> = procfs::mappings(maps).collect();
/// assert!(all[0].is_anonymous() && !all[1].is_anonymous());
/// assert_eq!((all[1].name, all[0].protection, all[1].protection), ("/etc/a file", 3, 1));
/// ```
pub fn mappings(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    maps.lines().filter_map(Mapping::parse)
}

/// The mappings in the text of `smaps`, each with its use.
pub fn smaps(text: &str) -> Vec<(Mapping<'_>, MappingUse)> {
    let mut all: Vec<(Mapping<'_>, MappingUse)> = Vec::new();
    for line in text.lines() {
        if let Some(mapping) = Mapping::parse(line) {
            all.push((mapping, MappingUse::default()));
        } else if let Some((_, sums)) = all.last_mut() {
            sums.take(line);
        }
    }
    all
}

/// The summed use of the mappings in the text of `smaps` for which `counts` returns true.
pub fn usage_of(text: &str, counts: impl Fn(&Mapping<'_>) -> bool) -> MappingUse {
    let all = smaps(text).into_iter().filter(|(mapping, _)| counts(mapping));
    all.fold(MappingUse::default(), |sum, (_, usage)| sum.plus(usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_told_from_its_fields() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nRss:                   8 kB\n\
                    Shared_Clean:          4 kB\nShared_Dirty:          8 kB\n\
                    Referenced:            4 kB\nAnonHugePages:         0 kB\n\
                    VmFlags: rd wr mr mw me ac \n3000-4000 ---p 00000000 00:00 0 \nRss: 4 kB\n";
        let all = smaps(text);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].1.resident_bytes, all[0].1.referenced_bytes), (8 << 10, 4 << 10));
        assert_eq!(all[0].1.shared_bytes, 12 << 10);
        assert!(all[0].0.is_anonymous() && !all[1].0.is_anonymous(), "a guard");
        assert_eq!(all[1].0.range, VirtRange::between(0x3000, 0x4000));
    }

    #[test]
    fn a_file_that_is_named_as_a_memfd_is_none() {
        let device = memfile::memfd_device().unwrap();
        let line = |device, name| {
            let device = (rustix::fs::major(device), rustix::fs::minor(device));
            format!("1000-2000 r--s 00000000 {:02x}:{:02x} 7 {name}", device.0, device.1)
        };
        let is_memfd = |line: &str| mappings(line).next().unwrap().is_memfd("a");
        assert!(is_memfd(&line(device, "/memfd:a (deleted)")));
        assert!(!is_memfd(&line(device + 1, "/memfd:a (deleted)")), "a file of that path");
        for name in ["/memfd:ab (deleted)", "/x/memfd:a (deleted)", "/memfd:a", "/dev/shm/a"] {
            assert!(!is_memfd(&line(device, name)), "{name}");
        }
    }

    #[test]
    fn the_use_of_some_mappings_is_summed_up() {
        let text = "\
200000-400000 rw-s 00000000 00:01 1 /memfd:a (deleted)\nShmemPmdMapped:     2048 kB\nVmFlags: rd wr uw \n\
400000-600000 r--s 00000000 00:01 1 /memfd:a (deleted)\nShmemPmdMapped:     2048 kB\n\
600000-800000 rw-p 00000000 00:00 0 \nAnonHugePages:      2048 kB\nFilePmdMapped:     0 kB\n\
LazyFree: 16 kB\nPrivate_Clean: 4 kB\nPrivate_Dirty: 8 kB\nPrivate_Hugetlb: 2048 kB\nVmFlags: rd hg \n";
        let within = |start, end| {
            let range = VirtRange::between(start, end);
            usage_of(text, |mapping| range.covers(mapping.range))
        };
        let shared = within(0x20_0000, 0x60_0000);
        assert_eq!((shared.shmem_huge_bytes, shared.huge_mapped_bytes()), (4 << 20, 4 << 20));
        assert!(shared.has_userfaultfd && !within(0x40_0000, 0x80_0000).has_userfaultfd);
        let private = within(0x60_0000, 0x80_0000);
        assert_eq!((private.huge_bytes, private.private_bytes), (2 << 20, 12 << 10));
        assert!(private.asks_for_huge_pages && !shared.asks_for_huge_pages);
        assert_eq!(
            (private.private_hugetlb_bytes, private.lazily_freed_bytes),
            (2 << 20, 16 << 10)
        );
        assert_eq!(within(0x20_0000, 0x20_1000), MappingUse::default(), "a part of one");
        let rollup = "00400000-7fff ---p 00000000 00:00 0 [rollup]\nRss:     8192 kB\n\
                      AnonHugePages:  2048 kB\nShmemPmdMapped: 4096 kB\n";
        let sums = MappingUse::rollup(rollup);
        assert_eq!((sums.resident_bytes, sums.huge_mapped_bytes()), (8 << 20, 6 << 20));
    }

    #[test]
    fn what_the_kernel_maps_for_itself_is_not_anonymous_memory() {
        for name in ["[vdso]", "[vvar]", "[stack]"] {
            let line = format!("1000-3000 r--p 00000000 00:00 0 {name}");
            assert!(!mappings(&line).next().unwrap().is_anonymous(), "{name}");
        }
        assert!(
            mappings("1000-2000 rw-p 0 00:00 0 [anon:glibc: malloc]")
                .next()
                .unwrap()
                .is_anonymous()
        );
        assert_eq!(mappings("nonsense\n1000 rw-p\n").count(), 0);
    }
}
