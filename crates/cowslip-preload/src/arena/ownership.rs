//! Inherited arenas: a child takes one over once no other process has any of it.

use crate::arena::setup_state::{self, is_closed};
use crate::arena::{kernel_access, registry, service};
use crate::rt::fork_state::has_parent;
use crate::rt::log::say;

/// Called in a child: it has no arena of its own yet.
pub(crate) fn begin_child() {
    service::begin_child();
    kernel_access::begin_child();
    setup_state::begin_child(registry::begin_child());
}

/// Takes over the arenas that no other process has any of; the youngest gives new memory from now on. Returns true if
/// there was one.
pub(crate) fn adopt_one() -> bool {
    let adopted = adopt_all();
    if let Some(index) = adopted {
        registry::set_own(index);
    }
    adopted.is_some()
}

/// Takes over the arenas that it can, once the parent, which may still give them up, is gone. Returns the youngest.
pub(crate) fn adopt_all() -> Option<usize> {
    if has_parent() || is_closed() { None } else { adopt() }
}

/// Takes over the arenas that it can, and returns the index of the youngest.
fn adopt() -> Option<usize> {
    let mut youngest = None;
    for (index, arena) in registry::all().enumerate().filter(|(_, arena)| arena.raw().is_reader()) {
        match arena.raw().adopt() {
            Ok(true) => {
                say!("owner of the arena at {} now, as nobody else has any of it", arena.range());
                youngest = Some(index);
            }
            Ok(false) => {}
            Err(error) => say!("{error}"),
        }
    }
    youngest
}
