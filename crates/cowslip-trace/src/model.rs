//! The content of a trace: a header, events in the order of time, call stacks, and totals.
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

/// A time that every clock can represent.
const LAST_SECOND: u64 = u32::MAX as u64;

/// An event in a thread of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The time, in nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The process: the id of its first thread.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The kind of event, with its data.
    pub what: EventKind,
}

/// The kind of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// A page fault was served.
    Fault(Fault),
    /// Memory was mapped, and replaced any earlier mapping.
    Map(Map),
    /// Memory was unmapped.
    Unmap {
        /// Whole pages.
        range: VirtRange,
    },
    /// `mremap(2)` succeeded.
    Remap {
        /// The old place. It stays mapped if `kept` is set.
        from: VirtRange,
        /// The new place of its content.
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
    /// The process or thread of the event created another.
    Fork {
        /// The new process: the event's own for a new thread.
        child_pid: u32,
        /// The new thread.
        child_tid: u32,
    },
    /// Another program took over the process: none of its memory is left.
    Exec {
        /// The new thread name.
        name: Arc<str>,
    },
    /// The thread got a name.
    Name {
        /// Its new name.
        name: Arc<str>,
    },
    /// The thread ended; the last one's exit ends the process.
    Exit,
    /// Events between the one before and this are missing.
    Lost {
        /// Their number.
        count: u64,
    },
    /// The recording ended, and programs went on. The event's process and thread are 0.
    Detach,
}

impl EventKind {
    /// The addresses of the event, except that of a fault.
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
    /// The touched address.
    pub address: u64,
    /// The instruction that touched it; it is in the kernel for copies to and from user memory.
    pub ip: u64,
    /// Major if the fault had to wait for a device.
    pub severity: Option<Severity>,
    /// The kind of access.
    pub access: Option<Access>,
    /// True if a page was present and did not permit the access.
    pub was_present: Option<bool>,
    /// True if the program itself touched it, false if the kernel did for it.
    pub in_user_mode: Option<bool>,
    /// True if a huge page came.
    pub huge: Option<bool>,
    /// The time from the fault to its end.
    pub latency_ns: Option<u32>,
    /// The call stack, the innermost frame first.
    pub stack: Option<StackId>,
}

impl Fault {
    /// A fault with known addresses only.
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

/// Tells if a fault had to wait for a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It did not.
    Minor,
    /// It did.
    Major,
}

/// The kind of an access.
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
    /// `MAP_` bits, as far as known.
    pub flags: u32,
    /// The offset in the file at which it begins.
    pub offset_bytes: u64,
    /// The file's number on its device; 0 if there is none, or if it is unknown. Files in memory can have
    /// equal names.
    pub inode: u64,
    /// The file's path, or the kernel's name in brackets; `None` for anonymous memory.
    pub name: Option<Arc<str>>,
    /// True if it existed before the trace began.
    pub is_old: bool,
    /// The call stack that mapped it.
    pub stack: Option<StackId>,
}

/// A thread on a processor, at a moment that a clock chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tick {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The instruction.
    pub ip: u64,
    /// False in the kernel, which worked for the thread.
    pub in_user_mode: bool,
    /// The call stack of the program, the innermost frame first.
    pub stack: Option<StackId>,
}

/// The beginning or the end of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SystemCall {
    /// The time, in nanoseconds of the trace's clock.
    pub time_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The call's number if it begins, `None` if it ends.
    pub number: Option<u64>,
}

/// A call stack of a trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StackId(pub NonZeroU32);

/// The destination of a recorder's or an importer's events, which come in the order of time.
pub trait Sink {
    /// The id of a call stack: instruction addresses, the innermost first.
    fn stack(&mut self, frames: &[u64]) -> io::Result<StackId>;

    /// Takes the next event.
    fn event(&mut self, event: &Event) -> io::Result<()>;

    /// Takes a sample of the time that threads spend on processors. Only recordings of time have them, and a trace does not
    /// keep them.
    fn tick(&mut self, _tick: &Tick) -> io::Result<()> {
        Ok(())
    }

    /// Takes the beginning or the end of a system call. Only recordings of calls have them, and a trace does not keep them.
    fn system_call(&mut self, _call: &SystemCall) -> io::Result<()> {
        Ok(())
    }
}

/// Facts known before the first event.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// The beginning of the trace, in seconds since 1970.
    pub began_unix_seconds: u64,
    /// The same in nanoseconds; 0 if the source told only the second.
    pub began_unix_ns: u64,
    /// The clock of `time_ns`: `monotonic`, `perf` or another's name.
    pub clock: String,
    /// The command traced, or that of the process attached to.
    pub command: Vec<String>,
    /// The programs recorded, if they are more than a command or processes: a control group, or the machine.
    pub subject: Option<String>,
    /// The processes attached to.
    pub attached_pids: Vec<u32>,
    /// One in this many faults was recorded.
    pub sampling_period: u64,
    /// The sources of the events (`page-faults`, `syscalls:sys_enter_mmap`, `import:perf.data` …).
    pub sources: Vec<String>,
    /// Events that are therefore missing, each a sentence with the command that records them.
    pub unseen: Vec<String>,
    /// The machine and its settings.
    pub machine: Machine,
    /// Variables of the program's environment that change its memory (`MALLOC_*`, `GLIBC_TUNABLES`,
    /// `LD_PRELOAD` …).
    pub environment: BTreeMap<String, String>,
    /// The program's allocator, as far as its libraries show.
    pub allocator: Option<String>,
    /// The cost of a minor fault of a base page on this machine, measured when the trace was made.
    pub base_fault_ns: Option<f64>,
    /// The cost of a fault of a huge page on this machine, measured when the trace was made.
    pub huge_fault_ns: Option<f64>,
}

impl Header {
    /// The programs recorded, in a few words.
    pub fn title(&self) -> String {
        self.subject.clone().unwrap_or_else(|| self.command.join(" "))
    }

    /// The beginning of the trace: a younger file did not exist then. If only the second is known, its end.
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

/// The machine on which a trace was made.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// `uname -r`
    pub kernel_release: String,
    /// `uname -v`
    pub kernel_version: String,
    /// `uname -m`
    pub architecture: String,
    /// The kernel's configuration of memory management, where it can be read.
    pub kernel_config: BTreeMap<String, String>,
    /// Settings of transparent huge pages, by their path below `transparent_hugepage/`.
    pub thp: BTreeMap<String, String>,
    /// Other settings of memory (`vm.*` and the like).
    pub sysctl: BTreeMap<String, String>,
    /// The processor.
    pub cpu_model: String,
    /// The number of processors online.
    pub cpus: u32,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// Bytes in a base page.
    pub page_bytes: u64,
}

impl Machine {
    /// Bytes in a base page; 4096 if the source told no valid size.
    pub fn base_page_bytes(&self) -> u64 {
        match self.page_bytes {
            bytes @ 4096..=65536 if bytes.is_power_of_two() => bytes,
            _ => 4096,
        }
    }
}

/// Facts known after the last event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Events in the trace.
    pub events: u64,
    /// Page faults among them.
    pub faults: u64,
    /// Events that are missing because there was no room for them.
    pub lost: u64,
    /// The first event's time.
    pub first_ns: u64,
    /// The last event's time.
    pub last_ns: u64,
}

/// Latencies of all recorded programs' faults, counted by the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Latencies {
    /// The shortest latency first, for one kind after the other.
    pub buckets: Vec<LatencyBucket>,
    /// At most this many faults, also of other programs, found no room in the histogram.
    pub uncounted: u64,
}

/// Faults of one kind that took more than half of a time, up to that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// True if the program itself touched the memory, false if the kernel did for it.
    pub in_user_mode: bool,
    /// Minor or major.
    pub severity: Severity,
    /// The time.
    pub up_to_ns: u64,
    /// The number of faults.
    pub faults: u64,
}

impl LatencyBucket {
    fn kind(&self) -> (bool, bool) {
        (!self.in_user_mode, self.severity == Severity::Major)
    }
}

impl Latencies {
    /// Adds the faults of `bucket` to those of the same kind and time.
    #[cfg(feature = "record")]
    pub(crate) fn add(&mut self, bucket: LatencyBucket) {
        let key = |bucket: &LatencyBucket| (bucket.kind(), bucket.up_to_ns);
        match self.buckets.binary_search_by_key(&key(&bucket), key) {
            Ok(at) => self.buckets[at].faults += bucket.faults,
            Err(at) => self.buckets.insert(at, bucket),
        }
    }

    /// The buckets of each kind that has faults.
    pub fn by_kind(&self) -> impl Iterator<Item = &[LatencyBucket]> {
        self.buckets.chunk_by(|one, other| one.kind() == other.kind())
    }
}

/// A whole trace in memory.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trace {
    /// The header.
    pub header: Header,
    /// The events, in the order of time.
    pub events: Vec<Event>,
    /// The frames of [`StackId`] 1, 2, …: instruction addresses, the innermost first.
    pub stacks: Vec<Box<[u64]>>,
    /// The totals.
    pub totals: Totals,
    /// The kernel's histogram, if it was recorded.
    pub latencies: Option<Latencies>,
    /// The end is missing: the recorder was killed, or the file was cut.
    pub is_cut_short: bool,
}

impl Trace {
    /// The frames of a stack; empty for one that is not in this trace.
    pub fn frames(&self, stack: StackId) -> &[u64] {
        self.stacks.get(stack.0.get() as usize - 1).map_or(&[], |frames| frames)
    }
}
