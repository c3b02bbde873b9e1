//! Is there memory left for copies to linger?
//!
//! A thaw is put off after a fork, since the next one may come soon. Meanwhile each first write to a page makes a copy, and
//! those that are there stay. That is a good bargain as long as there is room: near the limit of a control group, or with
//! little memory left on the machine, a program is killed that would live natively, where a child's end gives everything
//! back at once. So there a thaw begins at once, and does not rest.
//!
//! A thaw itself needs no memory: a page that was copied goes back to the page of the file that it was copied from.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cowslip_sys::cgroup::Group;
use cowslip_sys::{process, procfs};

/// What is looked at is looked at so often.
const LOOK_NS: u64 = 5_000_000;
/// A process may be moved to another group.
const FIND_GROUP_NS: u64 = 1_000_000_000;
/// More than several threads copy until the next look, and while the thaw catches up.
const ENOUGH_BYTES: u64 = 256 << 20;

/// Whether copies must not linger: there is less room than those of the next fork may come to, which freezes all that is in
/// use, copies too.
fn is_short(room_bytes: u64, used_bytes: u64) -> bool {
    room_bytes < used_bytes.min(ENOUGH_BYTES)
}

/// The last look.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    seen: Mutex<Seen>,
    was_short: AtomicBool,
}

#[derive(Debug, Default)]
struct Seen {
    group: Option<Group>,
    group_found_ns: u64,
    room_bytes: u64,
    looked_ns: u64,
}

impl Gauge {
    /// Whether a thaw is to begin at once, in a program that uses so much. The answer may be some milliseconds old.
    pub(crate) fn is_short(&self, used_bytes: u64) -> bool {
        let Ok(mut seen) = self.seen.try_lock() else { return false };
        let now_ns = process::now_ns();
        if seen.looked_ns == 0 || now_ns.saturating_sub(seen.looked_ns) >= LOOK_NS {
            seen.look(now_ns);
        }
        let is_short = is_short(seen.room_bytes, used_bytes);
        self.was_short.store(is_short, Relaxed);
        is_short
    }

    /// The last answer.
    pub(crate) fn was_short(&self) -> bool {
        self.was_short.load(Relaxed)
    }
}

impl Seen {
    fn look(&mut self, now_ns: u64) {
        if self.group_found_ns == 0 || now_ns - self.group_found_ns >= FIND_GROUP_NS {
            self.group = Group::of_this_process();
            self.group_found_ns = now_ns;
        }
        let of_group = self.group.as_ref().and_then(|group| group.room_bytes(ENOUGH_BYTES));
        let of_machine = procfs::available_bytes().ok().map(|(available, _)| available);
        // What cannot be read limits nothing.
        self.room_bytes = of_group.into_iter().chain(of_machine).min().unwrap_or(u64::MAX);
        self.looked_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn copies_linger_while_there_is_room_for_all_of_them() {
        assert!(!is_short(57 * MIB, 56 * MIB));
        assert!(is_short(55 * MIB, 56 * MIB));
        assert!(!is_short(0, 0), "nothing is in use");
    }

    #[test]
    fn a_large_program_is_not_short_of_memory_because_it_is_large() {
        assert!(!is_short(300 * MIB, 100 << 30));
        assert!(is_short(200 * MIB, 100 << 30));
    }

    #[test]
    fn what_was_seen_is_believed_for_a_while() {
        let mut seen = Seen::default();
        seen.look(1_000_000_000_000);
        assert!(seen.room_bytes > 0);
        let gauge = Gauge::default();
        // Later than now: the look is young for as long as this test takes.
        gauge.seen.lock().unwrap().looked_ns = u64::MAX;
        let is_short = || gauge.is_short(4096);
        assert!(is_short(), "no room at all, a moment ago");
        gauge.seen.lock().unwrap().looked_ns = 1;
        let left = procfs::available_bytes().unwrap().0;
        assert!(left < ENOUGH_BYTES || !is_short(), "{left} bytes are left");
    }
}
