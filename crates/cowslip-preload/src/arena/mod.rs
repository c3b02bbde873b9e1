//! The arenas of this process: made at need, taken over, and left by memory that an arena does not suit.

pub(crate) mod child_limits;
pub(crate) mod detach;
pub(crate) mod registry;
pub(crate) mod report;
pub(crate) mod setup;
pub(crate) mod wipe_rendezvous;
