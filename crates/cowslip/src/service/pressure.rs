//! Decides whether there is memory left for copies to linger.
//!
//! A thaw is put off after a fork, since the next one may come soon. Meanwhile each first write to a page makes a copy,
//! and copies that are there stay. That is a good bargain while there is room: near the limit of a control group, or
//! with little memory left on the machine, a program is killed that would live natively, where a child's end gives
//! everything back at once. A thaw therefore begins at once there, and does not rest.
//!
//! A thaw itself needs no memory: a page that was copied goes back to the page of the file that it was copied from.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cowslip_sys::cgroup::Group;
use cowslip_sys::{process, procfs};

use crate::plan::settings::pressure::{ENOUGH_BYTES, FIND_GROUP_NS, LONGEST_LOOK_NS, LOOK_NS};

/// True if copies must not linger: there is less room than the copies of the next fork may take, which freezes all
/// memory in use, copies too.
fn is_short(room_bytes: u64, used_bytes: u64) -> bool {
    room_bytes < used_bytes.min(ENOUGH_BYTES)
}

/// The time that a look is believed.
fn lasts_ns(room_bytes: u64) -> u64 {
    (room_bytes / ENOUGH_BYTES).saturating_mul(LOOK_NS).clamp(LOOK_NS, LONGEST_LOOK_NS)
}

/// The last look.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    seen: Mutex<Seen>,
    was_short: AtomicBool,
}

#[derive(Debug, Default)]
struct Seen {
    /// The group of this process, if it or one above it has a limit below the machine's memory.
    group: Option<Group>,
    group_found_ns: u64,
    /// The group's room, and the free memory of the machine, when the group's files were read.
    of_group: Option<u64>,
    free_bytes: u64,
    group_read_ns: u64,
    room_bytes: u64,
    looked_ns: u64,
}

/// The time that a look may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// Some hundred microseconds, now and then: the service thread's.
    Thorough,
    /// A call: a fork's. It takes limits, and the room below them, as the service thread found them, unless the room
    /// may be used up by now.
    Quick,
}

impl Gauge {
    /// True if a thaw must begin at once, in a program that uses `used_bytes`. The answer may be some milliseconds old.
    /// Copies that are `limited`, and came to the limit, must not linger either.
    pub(crate) fn is_short(&self, used_bytes: u64, look: Look, limited: bool) -> bool {
        if limited {
            self.was_short.store(true, Relaxed);
            return true;
        }
        let Ok(mut seen) = self.seen.try_lock() else { return false };
        let now_ns = process::now_ns();
        let is_old = now_ns.saturating_sub(seen.looked_ns) >= lasts_ns(seen.room_bytes);
        if seen.looked_ns == 0 || is_old {
            seen.look(now_ns, look, used_bytes, process::free_memory().0);
        }
        let is_short = is_short(seen.room_bytes, used_bytes);
        self.was_short.store(is_short, Relaxed);
        is_short
    }

    /// The room that is left now, in the group and on the machine, with what the kernel can take back from files.
    pub(crate) fn room_bytes(&self) -> u64 {
        let Ok(mut seen) = self.seen.try_lock() else { return u64::MAX };
        seen.find_group(process::now_ns());
        let of_group = seen.group.as_ref().and_then(|group| group.room_bytes(u64::MAX));
        let of_machine = procfs::available_bytes().ok().map(|(available, _)| available);
        of_group.into_iter().chain(of_machine).min().unwrap_or(u64::MAX)
    }

    /// Notes that nothing is frozen: no memory can run short by copies.
    pub(crate) fn set_ample(&self) {
        self.was_short.store(false, Relaxed);
    }

    /// The last answer.
    pub(crate) fn was_short(&self) -> bool {
        self.was_short.load(Relaxed)
    }
}

impl Seen {
    fn look(&mut self, now_ns: u64, look: Look, used_bytes: u64, free_bytes: u64) {
        if look == Look::Thorough {
            self.find_group(now_ns);
        }
        let of_group = match look {
            Look::Quick if !self.may_be_short(now_ns, used_bytes, free_bytes) => {
                self.of_group.map(|room| room.saturating_sub(self.taken_since(free_bytes)))
            }
            _ => self.read_group(now_ns, free_bytes),
        };
        let of_machine = if free_bytes >= ENOUGH_BYTES {
            Some(free_bytes)
        } else {
            procfs::available_bytes().ok().map(|(available, _)| available)
        };
        // A value that cannot be read limits nothing.
        self.room_bytes = of_group.into_iter().chain(of_machine).min().unwrap_or(u64::MAX);
        self.looked_ns = now_ns;
    }

    /// Looks for a group with a limit, unless it did so a moment ago.
    fn find_group(&mut self, now_ns: u64) {
        let is_old = now_ns.saturating_sub(self.group_found_ns) >= FIND_GROUP_NS;
        if self.group_found_ns == 0 || is_old {
            let total_bytes = process::memory_and_swap().0;
            let limits = |group: &Group| group.is_limited_below(total_bytes);
            self.group = Group::of_this_process().filter(limits);
            self.group_found_ns = now_ns;
        }
    }

    fn read_group(&mut self, now_ns: u64, free_bytes: u64) -> Option<u64> {
        self.group_read_ns = now_ns;
        self.of_group = self.group.as_ref().and_then(|group| group.room_bytes(ENOUGH_BYTES));
        self.free_bytes = free_bytes;
        self.of_group
    }

    /// The most that the group can have taken since its files were read: the loss of free memory on the machine.
    fn taken_since(&self, free_bytes: u64) -> u64 {
        self.free_bytes.saturating_sub(free_bytes)
    }

    /// True if the group may have come near its limit since its files were read. Once the kernel takes memory back from
    /// files, free memory no longer falls by what the group takes: the answer is therefore true whenever little is
    /// free, and after a while.
    fn may_be_short(&self, now_ns: u64, used_bytes: u64, free_bytes: u64) -> bool {
        let Some(room) = self.of_group else { return false };
        let left = room.saturating_sub(self.taken_since(free_bytes));
        let is_old = now_ns.saturating_sub(self.group_read_ns) >= LONGEST_LOOK_NS;
        is_old || free_bytes < ENOUGH_BYTES || is_short(left, used_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

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
    fn a_look_lasts_until_what_was_left_may_be_used_up() {
        assert_eq!(lasts_ns(0), LOOK_NS);
        assert_eq!(lasts_ns(2 * ENOUGH_BYTES), 2 * LOOK_NS);
        assert_eq!(lasts_ns(u64::MAX), LONGEST_LOOK_NS);
    }

    const FREE: u64 = 4 << 30;

    #[test]
    fn a_fork_opens_no_files_to_find_a_limit() {
        let mut seen = Seen::default();
        let look = |seen: &mut Seen, now_ns, look| seen.look(now_ns, look, 100 * MIB, FREE);
        look(&mut seen, FIND_GROUP_NS, Look::Quick);
        assert_eq!((seen.group_found_ns, seen.looked_ns), (0, FIND_GROUP_NS));
        look(&mut seen, FIND_GROUP_NS + 1, Look::Thorough);
        assert_eq!(seen.group_found_ns, FIND_GROUP_NS + 1);
        // A second later it is looked for again, and not by a fork.
        look(&mut seen, 3 * FIND_GROUP_NS, Look::Quick);
        assert_eq!(seen.group_found_ns, FIND_GROUP_NS + 1);
        look(&mut seen, 3 * FIND_GROUP_NS, Look::Thorough);
        assert_eq!(seen.group_found_ns, 3 * FIND_GROUP_NS);
    }

    /// A group with a limit, which changes between looks: an answer that has not changed was not read.
    #[test]
    fn a_fork_opens_no_files_of_a_group_that_has_room() {
        let folder = std::env::temp_dir().join(format!("cowslip-pressure-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let set_left =
            |bytes: u64| fs::write(folder.join("memory.max"), bytes.to_string()).unwrap();
        fs::write(folder.join("memory.current"), "0").unwrap();
        set_left(1000 * MIB);
        let mounts = format!("9 1 0:9 / {} rw - cgroup2 cgroup rw\n", folder.display());
        let group = cowslip_sys::cgroup::locate("0::/\n", &mounts);
        let mut seen = Seen { group, group_found_ns: 1, ..Seen::default() };
        let now_ns = Cell::new(2);
        let mut room_mib = |look, free| {
            seen.look(now_ns.get(), look, 300 * MIB, free);
            seen.room_bytes / MIB
        };
        assert_eq!(room_mib(Look::Thorough, FREE), 1000);
        set_left(500 * MIB);
        assert_eq!(room_mib(Look::Quick, FREE), 1000, "no file was read");
        assert_eq!(room_mib(Look::Quick, FREE + MIB), 1000);
        now_ns.set(1 + LONGEST_LOOK_NS);
        assert_eq!(room_mib(Look::Quick, FREE - 700 * MIB), 300, "the group may have taken that");
        assert_eq!(room_mib(Look::Quick, FREE - 800 * MIB), 500, "so little that it was read");
        set_left(100 * MIB);
        assert_eq!(room_mib(Look::Quick, FREE - 800 * MIB), 500);
        assert_eq!(room_mib(Look::Quick, ENOUGH_BYTES - 1).min(100), 100, "files make way for it");
        set_left(1000 * MIB);
        assert_eq!(room_mib(Look::Quick, FREE), 1000, "it was short, and may not be any more");
        set_left(500 * MIB);
        now_ns.set(now_ns.get() + LONGEST_LOOK_NS);
        assert_eq!(room_mib(Look::Quick, FREE), 500, "the last look is too old");
        set_left(400 * MIB);
        assert_eq!(room_mib(Look::Thorough, FREE), 400);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_was_seen_is_believed_for_a_while() {
        let mut seen = Seen::default();
        seen.look(1_000_000_000_000, Look::Thorough, 0, FREE);
        assert!(seen.room_bytes > 0);
        let gauge = Gauge::default();
        // Later than now: the look is young for as long as this test takes.
        gauge.seen.lock().unwrap().looked_ns = u64::MAX;
        let is_short = || gauge.is_short(4096, Look::Thorough, false);
        assert!(is_short(), "no room at all, a moment ago");
        gauge.seen.lock().unwrap().looked_ns = 1;
        let left = procfs::available_bytes().unwrap().0;
        assert!(left < ENOUGH_BYTES || !is_short(), "{left} bytes are left");
    }
}
