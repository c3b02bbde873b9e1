//! Huge pages for running programs, by how much of them is used: Ingens from user space.
//!
//! Ingens (Kwon et al., OSDI '16) patches the kernel: base pages at faults, then promotion in the background
//! where a region of 2 MiB is nearly full, and a fair share of huge pages for each process. This crate does
//! the same from user space, in three parts:
//!
//! * [`Target`] **observes**: the pages of each region ([`Region`]), by `PAGEMAP_SCAN` and, for pages shared
//!   after a fork, bit 56 of `/proc/PID/pagemap`.
//! * [`Policy`] **decides**: a pure function of the looks, with a [`Reason`] for every region.
//! * [`Promoter::act`] **acts**: `process_madvise(MADV_COLLAPSE)`, or `MADV_COLD` on one base page, which splits a
//!   huge page. Neither changes content.
//!
//! A program runs them as a [`session`](session::Session): a [`plan`](plan::Plan) selects the processes and
//! the settings, an [`Operator`](session::Operator) is told of events, [`daemon`] runs until it is ended, and
//! [`metrics`] reports the results.
//!
//! `cowslip promote` is its command; `docs/promote.md` describes settings, budgets and metrics.

pub mod daemon;
pub mod metrics;
pub mod plan;
pub mod session;

mod crash_state;
mod file_text;
mod heat;
mod huge_page_reserve;
mod khugepaged;
mod model;
mod page_size;
mod policy;
mod promoter;
mod reclaim;
mod record;
mod replay;
mod target;
mod work;

pub use cowslip::{Error, ErrorKind, Result};
pub use heat::{ProbedHeatSource, end_left_watching, probe_heat_sources};
pub use khugepaged::{ManagedThp, Restored, interference};
pub use model::{
    Action, ActionOutcome, Advice, Coverage, Effect, GainState, HeatSource, HugeSource,
    LazyFreeSource, Limit, Look, Measurement, ORDERS, ProcessId, ProcessLook, REGION_PAGES,
    Recommendation, Region, RegionKind, Settings, SizeAdvice, System, Unclear, UnitOfWork, Verdict,
    percent,
};
pub use page_size::{SizeChange, SizeChoice};
pub use policy::{Decision, Policy, Reason};
pub use promoter::{Promoter, RemovedTarget};
pub use reclaim::ReclaimAnswer;
pub use record::{Event, Recorder, SCHEMA, read_record};
pub use replay::{Counts, Replay, Round, replay};
pub use target::Target;
pub use work::WorkSource;
