//! The preload library: a program's large memory in an arena, its `fork()` a freeze and a fork.
//!
//! `cowslip run -- PROGRAM` loads it with `LD_PRELOAD`. It runs inside a program that does not know it, so every line
//! here follows these rules:
//!
//! 1. **On any doubt, pass through**: a request that is not certainly ours goes to the kernel unchanged.
//! 2. **No memory of the program**: allocations come from `rt::alloc`, which maps its own. The caller may be the
//!    program's allocator, with its locks held.
//! 3. **Kernel by system call**: the libc functions replaced here are never called from here.
//! 4. **Before main**: the first call may come from another library's constructor, or from the
//!    allocator's initialisation. Everything is set up at the first call that needs it.
//! 5. **Signals are blocked while a lock of ours is held**, so that a handler may call us.
//! 6. **In a child** of fork only the forking thread exists, and no lock is left held: `hooks::atfork`.
//! 7. `errno` is touched only to report a failure.
//!
//! # Rooms
//! - `rt`: memory, symbols, settings and the log. It knows no arena.
//! - `arena`: the arenas of this process: set-up, ownership, ranges, and memory that leaves.
//! - `hooks`: a file for each call or family of calls that is replaced.
//! - `branch`: the copies of `cowslip branch`.
//! - `init`: the constructor and the destructor.
//!
//! `docs/cowslip-run.md` has the rules for programs.

#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the functions are libc's, documented there")]

mod arena;
mod branch;
mod hooks;
mod init;
mod rt;

#[global_allocator]
static ALLOCATOR: rt::alloc::OwnAllocator = rt::alloc::OwnAllocator;
