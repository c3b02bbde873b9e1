//! Mappings of a process: `/proc/PID/maps` and `/proc/PID/smaps` (`proc_pid_maps(5)`).

use super::kib_field;
use crate::units::VirtRange;

/// One line of `maps`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping<'a> {
    /// Where it lies.
    pub range: VirtRange,
    /// `PROT_` bits.
    pub protection: u32,
    /// Where in the file it begins.
    pub offset_bytes: u64,
    /// Whether it can be read or written: no guard.
    pub is_accessible: bool,
    /// Whether writes stay in the process.
    pub is_private: bool,
    /// Whether a file is behind it.
    pub has_file: bool,
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
        let (offset, _device, inode) = (word(), word(), word());
        let granted = ['r', 'w', 'x'].iter().enumerate();
        let granted = granted.filter(|(_, letter)| permissions.contains(**letter));
        Some(Self {
            range,
            protection: granted.map(|(bit, _)| 1 << bit).sum(),
            offset_bytes: u64::from_str_radix(offset, 16).ok()?,
            is_accessible: permissions.contains(['r', 'w']),
            is_private: permissions.ends_with('p'),
            has_file: inode != "0",
            name: rest.trim(),
        })
    }

    /// Whether it is private memory of no file, which the kernel makes of pages of any size.
    pub fn is_anonymous(&self) -> bool {
        self.is_private && !self.has_file && self.is_accessible && !self.is_special()
    }

    fn is_special(&self) -> bool {
        self.name.starts_with("[v") || self.name == "[stack]" || self.name == "[uprobes]"
    }
}

/// What `smaps` says of a mapping, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MappingUse {
    /// Pages in memory.
    pub resident_bytes: u64,
    /// Those that were accessed since that was last forgotten.
    pub referenced_bytes: u64,
    /// Those that belong to no file.
    pub anonymous_bytes: u64,
    /// Those of them that huge pages map.
    pub huge_bytes: u64,
    /// Shared memory that huge pages map.
    pub shmem_huge_bytes: u64,
    /// Pages that other processes map too.
    pub shared_bytes: u64,
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
        if let Some((name, bytes)) = kib_field(line) {
            let Some((_, sums)) = all.last_mut() else { continue };
            match name {
                "Rss" => sums.resident_bytes = bytes,
                "Referenced" => sums.referenced_bytes = bytes,
                "Anonymous" => sums.anonymous_bytes = bytes,
                "AnonHugePages" => sums.huge_bytes = bytes,
                "ShmemPmdMapped" => sums.shmem_huge_bytes = bytes,
                "Shared_Clean" | "Shared_Dirty" => sums.shared_bytes += bytes,
                _ => {}
            }
        } else if let Some(mapping) = Mapping::parse(line) {
            all.push((mapping, MappingUse::default()));
        }
    }
    all
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
