//! `cowslip promote` on programs that know the content of every byte of their memory.
//!
//! The oracles are the kernel's sums (`smaps_rollup`) and the program itself: it counts its wrong words, while one of
//! its threads writes.

mod advise;
mod command;
mod daemon;
mod explain;
mod group;
mod hostile;
mod lazily_freed;
mod limits;
mod measure;
mod once;
mod page_size;
mod scarce;
mod service;
mod shmem;
mod slice;
#[path = "../support/mod.rs"]
mod support;
mod target;
mod text;
mod top;
mod user;
