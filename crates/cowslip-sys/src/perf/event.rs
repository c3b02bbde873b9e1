#![allow(unsafe_code)]
//! Events: opening, starting, counting and waiting for them.
//!
//! # Safety
//! The calls here read the structures passed to them, which the bindings took from the kernel's headers, and change
//! only the event of the given descriptor.

use core::time::Duration;
use std::ffi::CString;
use std::os::fd::FromRawFd;

use perf_event_open_sys::{self as sys, bindings};

use crate::failpoints::{self, Op};
use crate::{AsFd, AsRawFd, BorrowedFd, Errno, OwnedFd, Result};

/// The counted occurrences.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Page faults, as they begin.
    PageFaults,
    /// Page faults that read nothing from a device, counted as they end.
    MinorFaults,
    /// Page faults that read from a device, counted as they end.
    MajorFaults,
    /// Nanoseconds on a processor, by a timer of the kernel.
    Clock,
    /// Instructions of the processor; `ENOENT` where it does not count them, as in most virtual machines.
    Instructions,
    /// A place in the kernel's code, by its number.
    Tracepoint(u32),
}

/// The form in which the callers of the program are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callers {
    /// At most this many frames, which the kernel finds by frame pointers.
    FramePointers(u16),
    /// Registers, and this many bytes of the stack (a multiple of 8), for a reader that knows the program's files. On
    /// processors other than x86-64 `EOPNOTSUPP`.
    Copy(u16),
}

/// The settings of an event: its occurrences, and how they are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The counted occurrences.
    pub kind: Kind,
    /// One of this many occurrences is reported; 0: they are only counted.
    pub period: u64,
    /// Adds the program's callers.
    pub callers: Option<Callers>,
    /// Includes occurrences in the kernel on behalf of the program.
    pub in_kernel: bool,
    /// Includes processes that the thread makes, besides threads.
    pub in_children: bool,
    /// Reports new mappings, threads, processes and names as well.
    pub follows: bool,
    /// Starts when the thread executes another program.
    pub starts_at_exec: bool,
}

/// The counts of an event.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Count {
    /// Occurrences, reported or not.
    pub value: u64,
    /// Reports that found no room in the ring; `None` before Linux 6.0.
    pub lost: Option<u64>,
}

impl Attributes {
    fn raw(&self) -> bindings::perf_event_attr {
        let mut raw = bindings::perf_event_attr {
            size: size_of::<bindings::perf_event_attr>() as u32,
            clockid: libc::CLOCK_MONOTONIC,
            sample_type: (bindings::PERF_SAMPLE_IDENTIFIER
                | bindings::PERF_SAMPLE_IP
                | bindings::PERF_SAMPLE_TID
                | bindings::PERF_SAMPLE_TIME
                | bindings::PERF_SAMPLE_ADDR)
                .into(),
            read_format: bindings::PERF_FORMAT_LOST.into(),
            ..Default::default()
        };
        let software = |count: bindings::perf_sw_ids| (bindings::PERF_TYPE_SOFTWARE, count.into());
        (raw.type_, raw.config) = match self.kind {
            Kind::PageFaults => software(bindings::PERF_COUNT_SW_PAGE_FAULTS),
            Kind::MinorFaults => software(bindings::PERF_COUNT_SW_PAGE_FAULTS_MIN),
            Kind::MajorFaults => software(bindings::PERF_COUNT_SW_PAGE_FAULTS_MAJ),
            Kind::Clock => software(bindings::PERF_COUNT_SW_CPU_CLOCK),
            Kind::Instructions => {
                (bindings::PERF_TYPE_HARDWARE, bindings::PERF_COUNT_HW_INSTRUCTIONS.into())
            }
            Kind::Tracepoint(id) => {
                raw.sample_type |= u64::from(bindings::PERF_SAMPLE_RAW);
                (bindings::PERF_TYPE_TRACEPOINT, id.into())
            }
        };
        raw.__bindgen_anon_1.sample_period = self.period;
        match self.callers {
            Some(Callers::FramePointers(frames)) => {
                raw.sample_type |= u64::from(bindings::PERF_SAMPLE_CALLCHAIN);
                raw.sample_max_stack = frames;
                raw.set_exclude_callchain_kernel(1);
            }
            Some(Callers::Copy(bytes)) => {
                raw.sample_type |=
                    u64::from(bindings::PERF_SAMPLE_REGS_USER | bindings::PERF_SAMPLE_STACK_USER);
                raw.sample_regs_user = super::record::REGISTERS;
                raw.sample_stack_user = bytes.into();
            }
            None => {}
        }
        raw.set_disabled(self.starts_at_exec.into());
        raw.set_inherit(1);
        raw.set_inherit_thread((!self.in_children).into());
        // A waiter is woken when the ring is half full, not by each record.
        raw.set_watermark(1);
        raw.set_sample_id_all(1);
        raw.set_use_clockid(1);
        raw.set_exclude_hv(1);
        raw.set_exclude_kernel((!self.in_kernel).into());
        raw.set_enable_on_exec(self.starts_at_exec.into());
        for set in [
            bindings::perf_event_attr::set_mmap,
            bindings::perf_event_attr::set_mmap2,
            bindings::perf_event_attr::set_mmap_data,
            bindings::perf_event_attr::set_comm,
            bindings::perf_event_attr::set_comm_exec,
            bindings::perf_event_attr::set_task,
        ] {
            set(&mut raw, self.follows.into());
        }
        raw
    }
}

const ANY_CPU: i32 = -1;

/// The programs that an event is of.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// A thread (0: this one), and the threads and processes that it creates from then on.
    Thread(i32),
    /// All threads of the control group with this directory, and of those below it.
    ControlGroup(BorrowedFd<'a>),
    /// All threads.
    Machine,
}

/// An event of some programs on one processor.
#[derive(Debug)]
pub struct Event {
    file: OwnedFd,
    tells_lost: bool,
}

impl Event {
    /// Opens it for the programs of `scope` on the processor `cpu`. It counts and reports at once, or from when the thread
    /// executes another program.
    ///
    /// # Errors
    /// See [`Refusal`](super::Refusal).
    pub fn open(attributes: &Attributes, scope: Scope<'_>, cpu: u32) -> Result<Self> {
        Self::open_at(attributes, scope, i32::try_from(cpu).map_err(|_| Errno::INVAL)?)
    }

    /// Opens it to count on whatever processor the thread runs.
    ///
    /// # Errors
    /// See [`Refusal`](super::Refusal).
    pub fn open_anywhere(attributes: &Attributes, thread: i32) -> Result<Self> {
        Self::open_at(attributes, Scope::Thread(thread), ANY_CPU)
    }

    fn open_at(attributes: &Attributes, scope: Scope<'_>, cpu: i32) -> Result<Self> {
        failpoints::check(Op::PerfOpen)?;
        if matches!(attributes.callers, Some(Callers::Copy(_))) && !cfg!(target_arch = "x86_64") {
            return Err(Errno::OPNOTSUPP);
        }
        let mut raw = attributes.raw();
        match open(&mut raw, scope, cpu) {
            Ok(file) => Ok(Self { file, tells_lost: true }),
            // Before Linux 6.0 the kernel does not count lost records.
            Err(Errno::INVAL) => {
                raw.read_format = 0;
                open(&mut raw, scope, cpu).map(|file| Self { file, tells_lost: false })
            }
            Err(errno) => Err(errno),
        }
    }

    /// The number in its records.
    pub fn id(&self) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the kernel writes one u64 through the pointer.
        answer(unsafe { sys::ioctls::ID(self.file.as_raw_fd(), &mut id) })?;
        Ok(id)
    }

    /// Stops counting and reporting.
    pub fn stop(&self) -> Result<()> {
        // SAFETY: takes no pointer.
        answer(unsafe { sys::ioctls::DISABLE(self.file.as_raw_fd(), 0) })
    }

    /// Sends its records to the ring of `other`, an event of the same processor.
    pub fn share_ring_of(&self, other: &Self) -> Result<()> {
        failpoints::check(Op::PerfSetOutput)?;
        // SAFETY: takes a descriptor.
        answer(unsafe {
            sys::ioctls::SET_OUTPUT(self.file.as_raw_fd(), other.file.as_raw_fd() as _)
        })
    }

    /// Reports only occurrences of a tracepoint that match `filter` (`order >= 9`).
    pub fn filter(&self, filter: &str) -> Result<()> {
        let filter = CString::new(filter).map_err(|_| Errno::INVAL)?;
        // SAFETY: the kernel reads a string that ends with a zero.
        answer(unsafe {
            sys::ioctls::SET_FILTER(self.file.as_raw_fd(), filter.as_ptr().cast_mut())
        })
    }

    /// The counts so far, over all its threads and processes.
    pub fn count(&self) -> Result<Count> {
        let mut bytes = [0u8; 16];
        let wanted = if self.tells_lost { 16 } else { 8 };
        let read =
            rustix::io::retry_on_intr(|| rustix::io::read(&self.file, &mut bytes[..wanted]))?;
        if read != wanted {
            return Err(Errno::IO);
        }
        let [value, lost] = [0, 8].map(|at| {
            u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes are eight"))
        });
        Ok(Count { value, lost: self.tells_lost.then_some(lost) })
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open(raw: &mut bindings::perf_event_attr, scope: Scope<'_>, cpu: i32) -> Result<OwnedFd> {
    let (who, flags) = match scope {
        Scope::Thread(thread) => (thread, 0),
        Scope::ControlGroup(directory) => (directory.as_raw_fd(), bindings::PERF_FLAG_PID_CGROUP),
        Scope::Machine => (-1, 0),
    };
    let flags = (bindings::PERF_FLAG_FD_CLOEXEC | flags).into();
    // SAFETY: the kernel reads `size` bytes of the structure, and writes its `size` if it refuses.
    let file = unsafe { sys::perf_event_open(raw, who, cpu, -1, flags) };
    if file < 0 {
        return Err(crate::errno::last());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

fn answer(answer: libc::c_int) -> Result<()> {
    if answer < 0 { Err(crate::errno::last()) } else { Ok(()) }
}

/// The state of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ready {
    /// It can be read; for an event, its ring holds enough.
    pub has_data: bool,
    /// It has ended; for an event, its thread and all that thread's descendants have.
    pub has_ended: bool,
}

/// Waits until one of `fds` has something to report, a signal arrives, or `most` has passed.
pub fn poll(fds: &[BorrowedFd<'_>], most: Duration, answers: &mut Vec<Ready>) -> Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let mut polled: Vec<_> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    answers.clear();
    match rustix::event::poll(&mut polled, Some(&most)) {
        Ok(_) => {}
        Err(Errno::INTR) => polled.iter_mut().for_each(PollFd::clear_revents),
        Err(errno) => return Err(errno),
    }
    answers.extend(polled.iter().map(|poll_fd| Ready {
        has_data: poll_fd.revents().contains(PollFlags::IN),
        has_ended: poll_fd.revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL),
    }));
    Ok(())
}
