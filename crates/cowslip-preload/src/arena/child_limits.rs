//! Limits that the user set on the processor time and the memory of the program's children.

use core::sync::atomic::{AtomicBool, Ordering};

use cowslip::Arena;
use cowslip_sys::scheduling;

use crate::rt::config::config;
use crate::rt::log::say;

/// Added to the niceness of children that should give way, where they cannot have a share of their own.
const NICENESS: u8 = 10;

static CHILDREN_ARE_NICE: AtomicBool = AtomicBool::new(false);

/// Has children give way to the program; by niceness where a share is denied.
pub(crate) fn limit_cpu_share(arena: &Arena) {
    let Some(percent) = config().child_share_percent else { return };
    match arena.set_child_cpu_share(Some(percent)) {
        Ok(()) => say!("children give way, and get {percent} % of a processor"),
        Err(error) => {
            say!("{error}; children are nicer by {NICENESS} instead");
            CHILDREN_ARE_NICE.store(true, Ordering::Relaxed);
        }
    }
}

/// Limits the memory that children may cost.
pub(crate) fn limit_memory(arena: &Arena) {
    let Some(most) = config().child_memory else { return };
    arena
        .raw()
        .on_child_ended(|pid| say!("child {pid} is ended: too many private copies because of it"));
    arena.raw().limit_copies_for_children(Some(most));
    say!("children may cost {most} of private copies");
}

/// Applies the niceness, in a child.
pub(crate) fn apply_niceness() {
    if CHILDREN_ARE_NICE.load(Ordering::Relaxed) {
        scheduling::give_way(NICENESS);
    }
}
