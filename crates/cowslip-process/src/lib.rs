//! Holds a running process, with all its threads, at one instant, while it goes on.
//!
//! ```text
//!         look (no pause)              instant (a fork and some ms)             afterwards
//!  PID ─▶ threads, files, memory,  ─▶ stop all threads · registers       ─▶ holder: a stopped child with the
//!         what a copy would lack      · descriptors · fork · go on          memory, and every thread's state
//! ```
//! The process need not know Cowslip. [`look`] names what a copy of it would lack before anything is touched.
//! [`Plan::hold`] seizes its threads (`ptrace(2)`), and has one of them fork. The child, the *holder*, never runs: its
//! memory is that of the instant, for as long as it is needed.
//!
//! [`Holder::branch`] starts copies of the instant, which run with all threads. A [`Mark`] takes the program itself back to it.
//!
//! If this process ends at any moment, also by `kill -9`, the program goes on: `inject.rs` says how.
//!
//! ```no_run
//! let plan = cowslip_process::look(4711)?;
//! for lack in plan.lacks() {
//!     eprintln!("{lack}");
//! }
//! let holder = plan.hold()?;
//! println!("{} threads, held for {:?}", holder.threads().len(), holder.pause());
//! # Ok::<(), cowslip_sys::error::Error>(())
//! ```

mod branch;
mod connections;
mod descriptors;
mod hold;
mod inject;
mod kept;
mod lend;
mod library;
mod loaded;
mod look;
mod queues;
mod rollback;
mod secrets;
mod shared;
mod stop;
mod things;
mod thread;
mod timers;
mod trial;

pub use branch::{Copy, CopyOptions, PrivateFolders};
pub use descriptors::DescriptorState;
pub use hold::Holder;
pub use inject::AlternateStack;
pub use lend::Loan;
pub use look::{Lack, Plan, look};
pub use rollback::{Mark, RolledBack};
pub use things::{Fate, THINGS, Thing};
pub use thread::ThreadState;
pub use timers::{PosixTimer, Timers};
pub use trial::trial;
