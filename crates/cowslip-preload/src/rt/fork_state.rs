//! The process that this library runs in, its parent, and the fork in progress.
//!
//! Statics that each fork writes, here and in other modules, lie in the section `cowslip_fork_data`: a process and its
//! child then copy one page for all of them after the fork.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use cowslip_sys::process;

/// The process that this one was forked from; 0 in the first.
#[unsafe(link_section = "cowslip_fork_data")]
static PARENT: AtomicI32 = AtomicI32::new(0);

/// The process that these arenas belong to. Another one that shares this memory has its own descriptors.
#[unsafe(link_section = "cowslip_fork_data")]
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The process that forks; set before each fork.
#[unsafe(link_section = "cowslip_fork_data")]
static FORKER: AtomicI32 = AtomicI32::new(0);

/// Called before a fork, which may still fail.
pub(crate) fn note_fork() {
    FORKER.store(process::pid(), Ordering::Relaxed);
}

/// Handle of the thread that is between the prepare and the parent or child handler of a fork. It holds the arenas'
/// locks, and other handlers of the program run on it meanwhile. Its copy in the child has the same handle.
#[unsafe(link_section = "cowslip_fork_data")]
static FORKING: AtomicUsize = AtomicUsize::new(0);

/// The number of arenas that this thread has locked.
#[unsafe(link_section = "cowslip_fork_data")]
static LOCKED: AtomicUsize = AtomicUsize::new(0);

/// Records that this thread has locked this number of arenas and is about to fork.
pub(crate) fn begin_fork(arenas: usize) {
    LOCKED.store(arenas, Ordering::Relaxed);
    FORKING.store(process::thread_handle(), Ordering::Relaxed);
}

/// Ends [`begin_fork`].
pub(crate) fn end_fork() {
    FORKING.store(0, Ordering::Relaxed);
}

/// Returns true if this thread is forking, or is the copy of such a thread in the child.
pub(crate) fn is_forking_here() -> bool {
    let forking = FORKING.load(Ordering::Relaxed);
    forking != 0 && forking == process::thread_handle()
}

/// Returns true if a thread of this process is forking, and holds the arenas' locks.
pub(crate) fn is_any_forking() -> bool {
    FORKING.load(Ordering::Relaxed) != 0
}

/// The number of arenas that the forking thread has locked; 0 if this is another thread.
pub(crate) fn locked() -> usize {
    if is_forking_here() { LOCKED.load(Ordering::Relaxed) } else { 0 }
}

/// Records the process that the arenas belong to, at the first use of this library.
pub(crate) fn begin() {
    PROCESS.store(process::pid(), Ordering::Relaxed);
}

/// Called in a child, after [`locked`] was read.
pub(crate) fn begin_child() {
    PARENT.store(FORKER.load(Ordering::Relaxed), Ordering::Relaxed);
    PROCESS.store(process::pid(), Ordering::Relaxed);
    end_fork();
}

/// Called in a child that is copied into namespaces: its copies have the number of the program `process`, and no parent
/// that knows these arenas.
pub(crate) fn stand_for(process: i32) {
    PARENT.store(0, Ordering::Relaxed);
    PROCESS.store(process, Ordering::Relaxed);
}

/// Returns false in a process that shares the memory of another (`vfork(2)`), or that an unseen fork made.
pub(crate) fn is_own_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == process::pid()
}

/// Returns true if the process that forked this one still lives, even if it runs another program by now.
pub(crate) fn has_parent() -> bool {
    let parent = PARENT.load(Ordering::Relaxed);
    parent != 0 && parent == process::parent_pid()
}

/// This process shares its table of descriptors with its parent.
#[unsafe(link_section = "cowslip_fork_data")]
static IS_SHARING: AtomicBool = AtomicBool::new(false);

pub(crate) fn shares_descriptors() -> bool {
    IS_SHARING.load(Ordering::Relaxed)
}

/// Called in a child, once.
pub(crate) fn set_shares_descriptors(shares: bool) {
    IS_SHARING.store(shares, Ordering::Relaxed);
}
