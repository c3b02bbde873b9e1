//! The only crate of Cowslip that makes system calls: typed, without policy.
//!
//! * [`memory`]: reserve, map, move, protect, advise. All of it `unsafe`: it changes what addresses
//!   mean.
//! * [`memfile`]: the files that hold memory (memfd, hugetlb, a detached tmpfs).
//! * [`handed_out`]: descriptors of these files for other processes, which may only read.
//! * [`hold_point`]: the words by which a program under `cowslip run` is held.
//! * [`uffd`]: userfaultfd, its ioctls as values, its events.
//! * [`pagemap`]: which pages of a range are private copies, and the state of the pages of another process
//!   (`PAGEMAP_SCAN`, or `/proc/PID/pagemap`).
//! * [`pageflags`]: the flags of page frames.
//! * [`target`]: another process: its files in `/proc`, its memory, advice about it.
//! * [`cgroup`]: the memory limits of control groups.
//! * [`procfs`]: the mappings, free memory, pressure and huge pages that `/proc` and `/sys` report.
//! * [`perf`]: the kernel's events of programs while they run (`perf_event_open(2)`).
//! * [`damon`]: samples which memory of processes is accessed.
//! * [`process`], [`thread`], [`reserved_fd`]: children, signals, a thread, descriptors that must survive the host
//!   program.
//! * [`outside`]: work that a stop of all threads does not interrupt.
//! * [`waiting`]: waits for descriptors, even under limits and filters.
//! * [`scheduling`]: when and where threads run.
//! * [`executable`]: which file a name means, and the kind of that program.
//! * [`suspended_child`]: a child that waits before it executes a program.
//! * [`fault_cost`], [`call_cost`]: the cost of a page fault, a system call and a context switch on this machine.
//! * [`usage`], [`taskstats`]: resources of a child or of this process, and the waits of threads that have ended.
//! * [`atomic_file`], [`regular`]: files that are written whole or not at all, and files that are read.
//! * [`cache`]: a file's part of the page cache.
//! * [`capabilities`]: the capabilities of this thread.
//! * [`thp_disable`]: huge pages of this process and its programs.
//! * [`terminal`]: its size and its keys.
//! * [`out_of_memory`]: ends a command when memory runs out.
//! * [`socket`], [`packets`]: descriptors passed to another process, and whole messages.
//! * [`shared_queue`]: bytes in a pipe of another process, and the peers of Unix sockets.
//! * [`supervision`]: copies of a program, and the process that answers for them.
//! * [`dynamic`]: functions of other libraries in this process.
//! * [`user_memory`]: reads the memory that a program's calls point to, before the kernel does.
//! * [`passthrough`]: the calls that a preload library passes on unchanged.
//! * [`error`], [`exit_code`]: the error that all crates return, with the operation, the range and some advice; the
//!   exit code of a command for it.
//! * [`failpoints`]: makes the n-th call of an operation fail, so that errno paths are tested, not hoped for.
//!
//! Calls go to the kernel directly (rustix' `linux_raw` backend or `passthrough::by_number`), never through the
//! libc functions that the preload library replaces.
//!
//! The calls' errors are [`Errno`] values. A call that a signal interrupts (`EINTR`) is repeated where that is safe;
//! after any other error it is not. Nothing here logs, or allocates in its steady state.
//!
//! Its interface may change in any release.

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("Cowslip is for Linux 6.1 and later on x86-64; it cannot be built for this target");

pub mod atomic_file;
pub mod cache;
pub mod call_cost;
pub mod capabilities;
pub mod cgroup;
pub mod damon;
pub mod dynamic;
pub mod errno;
pub mod error;
pub mod executable;
pub mod exit_code;
pub mod failpoints;
pub mod fault_cost;
pub mod handed_out;
pub mod hold_point;
pub mod memfile;
pub mod memory;
pub mod out_of_memory;
pub mod outside;
pub mod packets;
pub mod pageflags;
pub mod pagemap;
pub mod passthrough;
pub mod perf;
pub mod process;
pub mod procfs;
pub mod ptrace;
pub mod regular;
pub mod reserved_fd;
pub mod scheduling;
pub mod shared_queue;
pub mod socket;
pub mod started_with;
pub mod streaming;
pub mod supervision;
pub mod suspended_child;
pub mod target;
pub mod taskstats;
pub mod terminal;
pub mod thp_disable;
pub mod thread;
pub mod tmpfs;
pub mod uffd;
pub mod units;
pub mod usage;
pub mod user_memory;
pub mod waiting;

pub use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
pub use rustix::io::Errno;

/// The result of every wrapper: the value, or the kernel's error number.
pub type Result<T> = core::result::Result<T, Errno>;

/// The meaning of an error number, without asking libc: `strerror(3)` may allocate, and the caller may be an allocator.
pub fn reason(errno: Errno) -> &'static str {
    nix::errno::Errno::from_raw(errno.raw_os_error()).desc()
}
