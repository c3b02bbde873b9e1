//! The functions of libc that this library replaces: a file for each call or family.
//!
//! # Safety
//! Every function is a libc function: its caller keeps to that function's contract, and gets the same answer
//! as from the kernel, in other memory. Ranges that are unmapped or changed are the program's.

pub(crate) mod atfork;
pub(crate) mod clone;
pub(crate) mod credentials;
pub(crate) mod descriptors;
pub(crate) mod direct_io;
pub(crate) mod dlmopen;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod heap;
pub(crate) mod io_uring;
pub(crate) mod lent_pages;
pub(crate) mod libaio;
pub(crate) mod madvise;
pub(crate) mod mincore;
pub(crate) mod mlock;
pub(crate) mod mmap;
pub(crate) mod mprotect;
pub(crate) mod mremap;
pub(crate) mod munmap;
pub(crate) mod open;
pub(crate) mod posix_aio;
pub(crate) mod prctl;
pub(crate) mod proc_mem;
pub(crate) mod proc_stat;
pub(crate) mod pthread;
pub(crate) mod recvmsg;
pub(crate) mod rlimit;
pub(crate) mod seccomp;
pub(crate) mod shmat;
pub(crate) mod stdio;
pub(crate) mod syscall;
pub(crate) mod unshare;
pub(crate) mod userfaultfd;
pub(crate) mod xdp;
