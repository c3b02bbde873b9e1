//! Deduplication of threads that are seen through two sets of events.
//!
//! A thread that is created while its process is attached to may inherit the events of its creator, and then
//! also be listed and given its own. Therefore each thread is believed through only one attached thread:
//! itself, or the one through which its creation was seen first.

use std::collections::HashMap;

use cowslip_sys::perf::{Record, Stamp};

/// The attached thread through which each thread is believed. It is empty, and costs nothing, if no thread
/// was created while the process was attached to.
#[derive(Debug, Default)]
pub(super) struct Dedup {
    owners: HashMap<u32, Owner>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    thread: u32,
    has_ended: bool,
}

impl Dedup {
    /// Each of `threads`, attached in this order, is believed through itself.
    pub(super) fn own(&mut self, threads: &[i32]) {
        for (number, tid) in threads.iter().enumerate() {
            self.own_one(*tid, number as u32);
        }
    }

    pub(super) fn own_one(&mut self, tid: i32, thread: u32) {
        self.owners.insert(tid.unsigned_abs(), Owner { thread, has_ended: false });
    }

    /// True if a record from the attached thread `thread` is not a duplicate.
    pub(super) fn believes(&mut self, thread: u32, stamp: &Stamp, record: &Record<'_>) -> bool {
        if self.owners.is_empty() {
            return true;
        }
        match *record {
            Record::Fork { tid, .. } => {
                if self.owners.get(&tid).is_some_and(|owner| !owner.has_ended) {
                    return false;
                }
                self.owners.insert(tid, Owner { thread, has_ended: false });
                true
            }
            Record::Exit { tid, .. } => match self.owners.get_mut(&tid) {
                Some(owner) if owner.thread == thread && !owner.has_ended => {
                    owner.has_ended = true;
                    true
                }
                Some(_) => false,
                None => true,
            },
            Record::Lost(_) | Record::Throttled | Record::Other(_) => true,
            _ => self.owners.get(&stamp.tid).is_none_or(|owner| owner.thread == thread),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(dedup: &mut Dedup, thread: u32, tid: u32) -> bool {
        let stamp = Stamp { tid, ..Stamp::default() };
        dedup.believes(thread, &stamp, &Record::Name { is_exec: false, name: b"" })
    }

    #[test]
    fn each_thread_is_believed_once() {
        let mut dedup = Dedup::default();
        assert!(name(&mut dedup, 5, 100), "nothing is contested");
        dedup.own(&[100, 101]);
        assert!(name(&mut dedup, 0, 100) && name(&mut dedup, 1, 101));
        assert!(!name(&mut dedup, 0, 101), "inherited from the first");

        let stamp = Stamp { tid: 101, ..Stamp::default() };
        let (made, gone) =
            (Record::Fork { pid: 100, tid: 102 }, Record::Exit { pid: 100, tid: 102 });
        for _ in 0..2 {
            assert!(dedup.believes(1, &stamp, &made) && !dedup.believes(0, &stamp, &made));
            assert!(name(&mut dedup, 1, 102) && !name(&mut dedup, 0, 102));
            assert!(!dedup.believes(0, &stamp, &gone) && dedup.believes(1, &stamp, &gone));
            assert!(!dedup.believes(1, &stamp, &gone));
        }
    }
}
