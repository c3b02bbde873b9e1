//! The runtime below the hooks: memory, symbols, settings and the log. Nothing here knows an arena.

pub(crate) mod alloc;
pub(crate) mod config;
pub(crate) mod deferred_errno;
pub(crate) mod descriptor_kinds;
pub(crate) mod environment;
pub(crate) mod fork_state;
pub(crate) mod guard;
pub(crate) mod loaded_objects;
pub(crate) mod log;
pub(crate) mod next_symbol;
