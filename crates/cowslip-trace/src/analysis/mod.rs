//! A trace summed up: by kind, mapping, stack, thread and time.

mod analyser;
mod calls;
mod frames;
mod profile;
mod rate;
mod result;
mod shape;

pub use crate::sums::Sums;
pub use analyser::Analyser;
pub use calls::{CallSums, Calls};
pub use frames::Frame;
pub use profile::{Profile, ProfiledStack};
pub use rate::Rate;
pub use result::{Analysis, Group, MappingIdentity, StackSums, ThreadSums};
pub use shape::Shape;
#[cfg(feature = "picture")]
pub(crate) use shape::is_arrival;
