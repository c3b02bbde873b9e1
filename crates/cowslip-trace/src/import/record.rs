//! Records of perf's `perf.data`, in terms of a trace.

use std::io;

use crate::model::{Map, Severity};

/// Takes a record.
pub(super) type Take<'a> = dyn FnMut(At, Record<'_>) -> io::Result<()> + 'a;

/// The time and the task, as far as recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct At {
    pub(super) time_ns: Option<u64>,
    pub(super) pid: u32,
    pub(super) tid: u32,
}

/// A record of perf's.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Record<'a> {
    Fault(Fault<'a>),
    Map(Map),
    Comm { name: &'a str, is_exec: bool },
    Fork { child_pid: u32, child_tid: u32 },
    Exit,
    Lost { count: u64 },
    Enter(Call),
    Leave { result: u64 },
    Other,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Fault<'a> {
    pub(super) source: Source,
    pub(super) address: Option<u64>,
    pub(super) ip: Option<u64>,
    /// The processor's error code: x86's bits.
    pub(super) error_code: Option<u64>,
    pub(super) in_user_mode: Option<bool>,
    /// The innermost first; empty if none were recorded.
    pub(super) frames: &'a [u64],
    /// The number of faults that it stands for.
    pub(super) period: Option<u64>,
}

/// perf's event that a fault comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    PageFaults,
    Severity(Severity),
    Exception { in_user_mode: bool },
}

impl Source {
    /// The source of an event's name, which may end with modifiers (`page-faults:u`).
    pub(super) fn named(event: &str) -> Option<Self> {
        match event.split_once(':') {
            Some(("exceptions", name)) => match name {
                "page_fault_user" => Some(Self::Exception { in_user_mode: true }),
                "page_fault_kernel" => Some(Self::Exception { in_user_mode: false }),
                _ => None,
            },
            Some((name, _)) => Self::software(name),
            None => Self::software(event),
        }
    }

    fn software(name: &str) -> Option<Self> {
        match name {
            "page-faults" | "faults" => Some(Self::PageFaults),
            "minor-faults" => Some(Self::Severity(Severity::Minor)),
            "major-faults" => Some(Self::Severity(Severity::Major)),
            _ => None,
        }
    }

    /// Sources of one family report different faults; different families report the same ones.
    pub(super) fn family(self) -> Family {
        match self {
            Self::PageFaults => Family::PageFaults,
            Self::Severity(_) => Family::Severity,
            Self::Exception { .. } => Family::Exceptions,
        }
    }
}

/// Families in the order of their detail, the most detailed last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Family {
    PageFaults,
    Severity,
    Exceptions,
}

/// A system call that changes mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Mmap { address: u64, length: u64, protection: u32, flags: u32, offset_bytes: u64 },
    Munmap { address: u64, length: u64 },
    Mremap { address: u64, old_length: u64, new_length: u64, flags: u32 },
    Madvise { address: u64, length: u64, advice: u32 },
    Brk,
}

/// A tracepoint of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Edge {
    Enter(Name),
    Leave,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Name {
    Mmap,
    Munmap,
    Mremap,
    Madvise,
    Brk,
}

impl Edge {
    /// The tracepoint of an event's name.
    pub(super) fn named(event: &str) -> Option<Self> {
        let event = event.strip_prefix("syscalls:sys_")?;
        let (edge, call) = event.split_once('_')?;
        let name = match call.split(':').next()? {
            "mmap" => Name::Mmap,
            "munmap" => Name::Munmap,
            "mremap" => Name::Mremap,
            "madvise" => Name::Madvise,
            "brk" => Name::Brk,
            _ => return None,
        };
        match edge {
            "enter" => Some(Self::Enter(name)),
            "exit" => Some(Self::Leave),
            _ => None,
        }
    }
}

impl Name {
    /// The call with these arguments.
    pub(super) fn call(self, argument: impl Fn(usize) -> u64) -> Call {
        let (address, length) = (argument(0), argument(1));
        match self {
            Self::Mmap => Call::Mmap {
                address,
                length,
                protection: argument(2) as u32,
                flags: argument(3) as u32,
                offset_bytes: argument(5),
            },
            Self::Munmap => Call::Munmap { address, length },
            Self::Mremap => Call::Mremap {
                address,
                old_length: length,
                new_length: argument(2),
                flags: argument(3) as u32,
            },
            Self::Madvise => Call::Madvise { address, length, advice: argument(2) as u32 },
            Self::Brk => Call::Brk,
        }
    }
}
