//! The reasons for which memory leaves an arena.

use std::fmt;

/// Reasons for which memory leaves an arena and becomes the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[non_exhaustive]
pub enum Departure {
    /// The program asked for a state that a freeze would undo: `mlock(2)`, `MADV_DONTFORK`, protection keys,
    /// `mseal(2)`.
    Advice,
    /// A file opened with `O_DIRECT` is read into it (`open(2)`), or one of a file system that pins the target of its
    /// reads.
    DirectIo,
    /// Its pages are, or may be, known to a ring: `io_uring(7)`, `io_setup(2)`, `AF_XDP`.
    Ring,
    /// A futex in it is found by where its page lies, not by its address (`futex(2)`).
    SharedFutex,
    /// The program handles its page faults (`userfaultfd(2)`).
    Userfaultfd,
    /// A limit of the process counts private memory and not an arena's (`getrlimit(2)`).
    Limit,
    /// It is cut into so many protections that a freeze would take longer than a fork.
    Fragmented,
    /// The freeze that a fork needs was refused.
    Refused,
    /// It is read or written as a file, which may do what its protection forbids (`proc_pid_mem(5)`).
    ProcMem,
    /// The program is about to restrict its system calls (`seccomp(2)`).
    Filter,
    /// Code that is not watched may fork: a namespace of its own was loaded (`dlmopen(3)`).
    Namespace,
    /// It could be frozen but never thawed: no service thread can start, for lack of userfaultfd or
    /// of `/proc/self/pagemap`, or under a limit of tasks.
    NoThaw,
    /// A thread, or a process that shares it, has a table of descriptors of its own (`unshare(2)`, `clone(2)`).
    Descriptors,
    /// The kernel or a device reads its pages after the call that named them (`vmsplice(2)`,
    /// `MSG_ZEROCOPY`).
    Lent,
    /// It was made executable: a debugger writes to it against its protection (`ptrace(2)`).
    Code,
}

impl Departure {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Advice,
        Self::DirectIo,
        Self::Ring,
        Self::SharedFutex,
        Self::Userfaultfd,
        Self::Limit,
        Self::Fragmented,
        Self::Refused,
        Self::ProcMem,
        Self::Filter,
        Self::Namespace,
        Self::NoThaw,
        Self::Descriptors,
        Self::Lent,
        Self::Code,
    ];

    /// The reasons that [`Metrics::left_for`](crate::Metrics::left_for) names.
    pub fn of_metrics(left_for: u64) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |why| left_for & why.bit() != 0)
    }

    pub(crate) fn bit(self) -> u64 {
        1 << self as u8
    }
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Advice => "locked, sealed, kept from children or keyed",
            Self::DirectIo => "target of O_DIRECT reads, or of a file system that pins like them",
            Self::Ring => "within reach of io_uring, AIO or AF_XDP",
            Self::SharedFutex => {
                "holds a futex that is shared or written by the kernel, or a thread's stack"
            }
            Self::Userfaultfd => "registered with the program's own userfaultfd",
            Self::Limit => "counted by a resource limit",
            Self::Fragmented => "cut into too many protections",
            Self::Refused => "could not be frozen",
            Self::ProcMem => "read or written through /proc/PID/mem",
            Self::Filter => "the program is about to filter its system calls",
            Self::Namespace => "the program loads libraries into a namespace of their own",
            Self::NoThaw => "no service thread could thaw it",
            Self::Descriptors => "used with descriptors that are not the process' own",
            Self::Lent => "lent to a reader by vmsplice or MSG_ZEROCOPY",
            Self::Code => "made executable",
        })
    }
}
