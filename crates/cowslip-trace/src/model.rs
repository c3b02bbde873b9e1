//! What a trace holds: a header, events in the order of time, call stacks, and totals.
//!
//! `None` always means that the source did not tell, never "no".
//!
//! ```
//! use cowslip_trace::model::{Access, Event, Fault, EventKind};
//! let fault = Fault { access: Some(Access::Write), ..Fault::at(0x7f00_0020_0000, 0x40_1000) };
//! let event = Event { time_ns: 1_000, pid: 7, tid: 7, what: EventKind::Fault(fault) };
//! assert!(matches!(event.what, EventKind::Fault(fault) if fault.huge.is_none()));
//! ```

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cowslip_sys::units::VirtRange;
use serde::{Deserialize, Serialize};

/// A time that every clock can tell.
const LAST_SECOND: u64 = u32::MAX as u64;

/// Something that happened, in a thread of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// When, in nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The process: the id of its first thread.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// What it was.
    pub what: EventKind,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A page fault was served.
    Fault(Fault),
    /// Memory was mapped, over whatever was there.
    Map(Map),
    /// Memory was unmapped.
    Unmap {
        /// Whole pages.
        range: VirtRange,
    },
    /// `mremap(2)` succeeded.
    Remap {
        /// What was there before. It stays mapped if `kept` is set.
        from: VirtRange,
        /// Where its content is now.
        to: VirtRange,
        /// `MREMAP_DONTUNMAP`: `from` is still mapped, empty.
        kept: bool,
    },
    /// `madvise(2)` succeeded.
    Advise {
        /// Whole pages.
        range: VirtRange,
        /// The `MADV_` number.
        advice: u32,
    },
    /// The program break is now at `end` (`brk(2)`).
    Break {
        /// One past the heap's last byte.
        end: u64,
    },
    /// The process or thread of the event made another.
    Fork {
        /// The new one's process: the event's own if it is a thread.
        child_pid: u32,
        /// The new one's thread.
        child_tid: u32,
    },
    /// Another program took the process over: nothing of its memory is left.
    Exec {
        /// The new thread name.
        name: Arc<str>,
    },
    /// The thread was named.
    Name {
        /// Its new name.
        name: Arc<str>,
    },
    /// The thread ended; the process did if it was the last one.
    Exit,
    /// Events between the one before and this are missing.
    Lost {
        /// How many.
        count: u64,
    },
}

impl EventKind {
    /// The addresses it is about, other than that of a fault.
    pub fn ranges(&self) -> impl Iterator<Item = VirtRange> {
        let (first, second) = match self {
            Self::Map(map) => (Some(map.range), None),
            Self::Unmap { range } | Self::Advise { range, .. } => (Some(*range), None),
            Self::Remap { from, to, .. } => (Some(*from), Some(*to)),
            Self::Break { end } => (Some(VirtRange::new(*end as usize, 0)), None),
            _ => (None, None),
        };
        first.into_iter().chain(second)
    }
}

/// A page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The address that was touched.
    pub address: u64,
    /// The instruction that touched it; in the kernel for its copies to and from user memory.
    pub ip: u64,
    /// Whether something had to be read.
    pub severity: Option<Severity>,
    /// How it was touched.
    pub access: Option<Access>,
    /// Whether a page was there, and did not permit it.
    pub was_present: Option<bool>,
    /// Whether the program touched it itself, not the kernel for it.
    pub in_user_mode: Option<bool>,
    /// Whether a huge page was the answer.
    pub huge: Option<bool>,
    /// From the fault to its end.
    pub latency_ns: Option<u32>,
    /// Who called, the innermost frame first.
    pub stack: Option<StackId>,
}

impl Fault {
    /// A fault of which only the addresses are known.
    pub const fn at(address: u64, ip: u64) -> Self {
        Self {
            address,
            ip,
            severity: None,
            access: None,
            was_present: None,
            in_user_mode: None,
            huge: None,
            latency_ns: None,
            stack: None,
        }
    }
}

/// Whether a fault had to wait for a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It had not.
    Minor,
    /// It had.
    Major,
}

/// How memory was touched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It was read.
    Read,
    /// It was written.
    Write,
    /// It was to be executed.
    Execute,
}

/// A new mapping.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Map {
    /// Whole pages.
    pub range: VirtRange,
    /// `PROT_` bits.
    pub protection: u32,
    /// `MAP_` bits, as far as they are known.
    pub flags: u32,
    /// Where in the file it begins.
    pub offset_bytes: u64,
    /// The file's number on its device; 0: there is none, or it was not told. Files in memory have equal names.
    pub inode: u64,
    /// The file's path, or the kernel's name in brackets; `None`: anonymous.
    pub name: Option<Arc<str>>,
    /// Whether it was there before the trace began.
    pub is_old: bool,
    /// Who mapped it.
    pub stack: Option<StackId>,
}

/// A call stack of a trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StackId(pub NonZeroU32);

/// Where a recorder or an importer puts events; they come in the order of time.
pub trait Sink {
    /// The id of a call stack: instruction addresses, the innermost first.
    fn stack(&mut self, frames: &[u64]) -> io::Result<StackId>;

    /// Takes the next event.
    fn event(&mut self, event: &Event) -> io::Result<()>;
}

/// What is known before the first event.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// When the trace began, in seconds since 1970.
    pub began_unix_seconds: u64,
    /// The same in nanoseconds; 0: the source told the second only.
    pub began_unix_ns: u64,
    /// The clock of `time_ns`: `monotonic`, `perf` or another's name.
    pub clock: String,
    /// The command traced, or that of the process attached to.
    pub command: Vec<String>,
    /// The processes attached to.
    pub attached_pids: Vec<u32>,
    /// Of so many faults one was recorded.
    pub sampling_period: u64,
    /// What the events come from (`page-faults`, `syscalls:sys_enter_mmap`, `import:perf.data` …).
    pub sources: Vec<String>,
    /// What could therefore not be seen, each a sentence with the command that mends it.
    pub unseen: Vec<String>,
    /// The machine and its settings.
    pub machine: Machine,
    /// Variables of the program's environment that change its memory (`MALLOC_*`, `GLIBC_TUNABLES`,
    /// `LD_PRELOAD` …).
    pub environment: BTreeMap<String, String>,
    /// The program's allocator, as far as its libraries tell.
    pub allocator: Option<String>,
    /// What a minor fault of a base page costs here, measured when the trace was made.
    pub base_fault_ns: Option<f64>,
    /// What the fault of a huge page costs here, measured when the trace was made.
    pub huge_fault_ns: Option<f64>,
}

impl Header {
    /// When the trace began: what is younger was not there yet. Where only the second is known, its end.
    pub fn began(&self) -> SystemTime {
        UNIX_EPOCH
            + match self.began_unix_ns {
                0 => {
                    Duration::from_secs(self.began_unix_seconds.saturating_add(1).min(LAST_SECOND))
                }
                nanoseconds => Duration::from_nanos(nanoseconds),
            }
    }
}

/// The machine a trace was made on.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// `uname -r`
    pub kernel_release: String,
    /// `uname -v`
    pub kernel_version: String,
    /// `uname -m`
    pub architecture: String,
    /// The kernel's configuration where it can be read, memory management's part of it.
    pub kernel_config: BTreeMap<String, String>,
    /// Settings of transparent huge pages, by their path below `transparent_hugepage/`.
    pub thp: BTreeMap<String, String>,
    /// Other settings of memory (`vm.*` and the like).
    pub sysctl: BTreeMap<String, String>,
    /// The processor.
    pub cpu_model: String,
    /// How many of them are online.
    pub cpus: u32,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// Bytes in a base page.
    pub page_bytes: u64,
}

impl Machine {
    /// Bytes in a base page; 4096 if the source told no size that exists.
    pub fn base_page_bytes(&self) -> u64 {
        match self.page_bytes {
            bytes @ 4096..=65536 if bytes.is_power_of_two() => bytes,
            _ => 4096,
        }
    }
}

/// What is known after the last event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Events in the trace.
    pub events: u64,
    /// Page faults among them.
    pub faults: u64,
    /// Events that are missing: there was no room for them.
    pub lost: u64,
    /// The first event's time.
    pub first_ns: u64,
    /// The last event's time.
    pub last_ns: u64,
}

/// A whole trace in memory.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trace {
    /// What was known before the first event.
    pub header: Header,
    /// In the order of time.
    pub events: Vec<Event>,
    /// The frames of [`StackId`] 1, 2, …: instruction addresses, the innermost first.
    pub stacks: Vec<Box<[u64]>>,
    /// What was counted.
    pub totals: Totals,
    /// The end is missing: the recorder was killed, or the file was cut.
    pub is_cut_short: bool,
}

impl Trace {
    /// The frames of a stack; empty for one that is not in this trace.
    pub fn frames(&self, stack: StackId) -> &[u64] {
        self.stacks.get(stack.0.get() as usize - 1).map_or(&[], |frames| frames)
    }
}
