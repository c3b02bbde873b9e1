//! Observations and actions as plain values: the policy and the record know nothing else.

mod action;
mod advice;
mod coverage;
mod gain;
mod heat_source;
mod limit;
mod observation;
mod process_id;
mod region;
mod settings;
mod system;

pub use action::{Action, ActionOutcome, Effect};
pub use advice::{Advice, Recommendation, SizeAdvice};
pub use coverage::{Coverage, percent};
pub use gain::{GainState, Measurement, Unclear, UnitOfWork, Verdict};
pub(crate) use gain::{Pair, Spent};
pub use heat_source::HeatSource;
pub use limit::Limit;
pub(crate) use limit::{added_bytes, kept_bytes, needed_bytes};
pub use observation::{HugeSource, LazyFreeSource, Look, ProcessLook};
pub use process_id::ProcessId;
pub use region::{REGION_PAGES, Region, RegionKind};
pub use settings::Settings;
pub use system::{ORDERS, System};
