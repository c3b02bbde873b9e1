//! The instant of a freeze: from shared to private.
//!
//! ```text
//!   [plan] ──▶ [take]: pages moved away, mapped privately ──▶ a [view], or what children get
//!                └─ without userfaultfd: one mapping over the other
//! ```
//!
//! Under each address the program sees the same content before and after: the pages of the file as they are at the
//! instant in which no thread can reach them. Views are reserved here and handed out when all is done.

mod plan;
mod private;
mod take;
mod view;
mod without_userfaultfd;

pub(crate) use plan::Snapshot;
pub(super) use plan::not_mapped;
pub(crate) use take::take;
