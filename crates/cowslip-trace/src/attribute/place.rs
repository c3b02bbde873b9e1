//! Kinds of mapped memory: a file, anonymous memory, a stack, ….

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::model::Map;

const MAP_SHARED: u32 = 1;
const MAP_PRIVATE: u32 = 2;
const MAP_STACK: u32 = 0x2_0000;
const MAP_HUGETLB: u32 = 0x4_0000;

/// The kind of memory that a mapping maps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(tag = "kind", content = "name", rename_all = "snake_case")]
pub enum Place {
    /// Memory without a file.
    Anonymous,
    /// The same, named with `PR_SET_VMA_ANON_NAME`.
    Named(Arc<str>),
    /// Memory below the program break.
    Heap,
    /// The first thread's stack.
    Stack,
    /// Memory mapped with `MAP_STACK`: another thread's stack.
    ThreadStack,
    /// Huge pages of the system's pool.
    Hugetlb,
    /// Memory that processes share, without a name: `MAP_SHARED` and `MAP_ANONYMOUS`.
    Shared,
    /// An arena of Cowslip's.
    Arena,
    /// A file in memory: memfd, `/dev/shm`, System V.
    MemoryFile(Arc<str>),
    /// A file, by its path.
    File(Arc<str>),
    /// A mapping of the kernel's own, such as `[vdso]`.
    Kernel(Arc<str>),
}

impl Place {
    /// The place that follows from the name and the flags of a mapping.
    ///
    /// ```
    /// use cowslip_trace::attribute::Place;
    /// use cowslip_trace::model::Map;
    /// let map = Map { name: Some("/memfd:cowslip (deleted)".into()), ..Map::default() };
    /// assert_eq!(Place::from_map(&map), Place::Arena);
    /// ```
    pub fn from_map(map: &Map) -> Self {
        let Some(name) = map.name.as_ref().filter(|name| !name.is_empty() && &***name != "//anon")
        else {
            return match map.flags {
                flags if flags & MAP_HUGETLB != 0 => Self::Hugetlb,
                flags if flags & MAP_SHARED != 0 => Self::Shared,
                flags if flags & MAP_STACK != 0 => Self::ThreadStack,
                _ => Self::Anonymous,
            };
        };
        let path = name.strip_suffix(" (deleted)").unwrap_or(name);
        match path {
            "[heap]" => Self::Heap,
            "[stack]" => Self::Stack,
            "/anon_hugepage" => Self::Hugetlb,
            "/memfd:cowslip" => Self::Arena,
            _ if path.starts_with("[anon:") => Self::Named(name.clone()),
            _ if path.starts_with('[') => Self::Kernel(name.clone()),
            // The kernel's name for unnamed shared memory; a private mapping of the device has the same name.
            "/dev/zero" if map.flags & MAP_PRIVATE != 0 => Self::MemoryFile(path.into()),
            "/dev/zero" => Self::Shared,
            // A file of a file system that is mounted nowhere, like arenas where memfds get no huge pages.
            _ if path != name.as_ref() && path.starts_with("/#") => Self::MemoryFile("/#".into()),
            _ if ["/memfd:", "/dev/shm/", "/SYSV"].iter().any(|start| path.starts_with(start)) => {
                Self::MemoryFile(path.into())
            }
            _ => Self::File(path.into()),
        }
    }

    /// True if its pages begin as zeroes and belong to no file.
    pub fn is_anonymous(&self) -> bool {
        matches!(
            self,
            Self::Anonymous
                | Self::Named(_)
                | Self::Heap
                | Self::Stack
                | Self::ThreadStack
                | Self::Hugetlb
        )
    }

    /// True if it is memory that several processes may share, and that no file system keeps.
    pub fn is_shared_memory(&self) -> bool {
        matches!(self, Self::Shared | Self::MemoryFile(_) | Self::Arena)
    }

    /// True if its pages begin as zeroes, private or shared.
    pub fn begins_empty(&self) -> bool {
        self.is_anonymous() || self.is_shared_memory()
    }

    /// True if its pages belong to a file, in memory or not.
    pub fn is_file(&self) -> bool {
        matches!(self, Self::File(_)) || self.is_shared_memory()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Anonymous => "anonymous",
            Self::Heap => "heap",
            Self::Stack => "stack",
            Self::ThreadStack => "thread stack",
            Self::Hugetlb => "hugetlb",
            Self::Shared => "shared",
            Self::Arena => "cowslip arena",
            Self::Named(name) | Self::MemoryFile(name) | Self::File(name) | Self::Kernel(name) => {
                name
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str, flags: u32) -> Place {
        let name = (!name.is_empty()).then(|| name.into());
        Place::from_map(&Map { name, flags, ..Map::default() })
    }

    #[test]
    fn names_and_flags_tell_what_a_mapping_is_of() {
        assert_eq!(place("", 0x22), Place::Anonymous);
        assert_eq!(place("//anon", 0x22), Place::Anonymous);
        assert_eq!(place("", 0x2_0022), Place::ThreadStack);
        assert_eq!(place("", 0x4_0022), Place::Hugetlb);
        assert_eq!(place("/anon_hugepage (deleted)", 2), Place::Hugetlb);
        assert_eq!(place("", 0x21), Place::Shared);
        assert_eq!(place("[heap]", 0), Place::Heap);
        assert_eq!(place("[vdso]", 0), Place::Kernel("[vdso]".into()));
        assert_eq!(
            place("/memfd:cowslip-lost", 1),
            Place::MemoryFile("/memfd:cowslip-lost".into())
        );
        assert_eq!(place("/dev/zero (deleted)", 1), Place::Shared);
        assert_eq!(place("/dev/zero", 2), Place::MemoryFile("/dev/zero".into()));
        assert_eq!(place("/#12 (deleted)", 1), Place::MemoryFile("/#".into()));
        assert_eq!(place("/usr/lib/a.so (deleted)", 2), Place::File("/usr/lib/a.so".into()));
        assert!(place("[anon:glibc: malloc]", 0).is_anonymous());
    }
}
