//! Limits of the process (`getrlimit(2)`) under which it cannot have an arena.

use cowslip::units::ByteCount;
use cowslip_sys::process::MemoryLimit;

use crate::rt::config::config;

/// Returns true if a limit of this kind rules an arena out.
pub(crate) fn rules_out(kind: MemoryLimit, limit: Option<ByteCount>) -> bool {
    limit.is_some_and(|limit| kind != MemoryLimit::FileSize || limit <= config().capacity)
}

/// The limit under which this process cannot have an arena, if there is one.
pub(crate) fn in_force() -> Option<MemoryLimit> {
    MemoryLimit::ALL.into_iter().find(|&kind| rules_out(kind, kind.current()))
}
