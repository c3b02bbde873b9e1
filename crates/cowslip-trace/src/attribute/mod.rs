//! Which mapping a fault lies in, and what it was for.

mod kind;
mod mapping;
mod place;

pub use kind::Kind;
pub use mapping::{Mapping, MappingId, Span};
pub use place::Place;

/// What is known of a fault besides what the event says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attribution {
    /// The mapping it lies in; `None` if nothing was mapped there, as far as the events say.
    pub mapping: Option<MappingId>,
    /// What it was for.
    pub kind: Kind,
}
