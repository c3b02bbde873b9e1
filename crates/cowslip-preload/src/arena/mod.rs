//! The arenas of this process: made at need, taken over, and left by memory that an arena does not suit.

pub(crate) mod child_limits;
pub(crate) mod detach;
pub(crate) mod kernel_access;
pub(crate) mod mapping;
pub(crate) mod memory_limits;
pub(crate) mod ownership;
pub(crate) mod ranges;
pub(crate) mod registry;
pub(crate) mod report;
pub(crate) mod service;
pub(crate) mod setup;
pub(crate) mod setup_state;
pub(crate) mod wipe_rendezvous;
