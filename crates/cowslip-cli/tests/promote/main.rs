//! `cowslip promote` on programs that know what every byte of their memory should be.
//!
//! The oracles are the kernel's sums (`smaps_rollup`) and the program itself: it counts the words that are not
//! what they should be, a thread of it writing all the while.

mod daemon;
mod explain;
mod group;
mod hostile;
mod lazily_freed;
mod limits;
mod once;
mod scarce;
mod service;
#[path = "../support/mod.rs"]
mod support;
mod target;
mod top;
mod user;
