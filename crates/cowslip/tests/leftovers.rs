//! Arenas, views, templates and restored arenas leave no mapping, descriptor or thread when they
//! end.

mod support;

use std::fs;

use cowslip::units::ByteCount;
use cowslip::{Arena, Place};
use support::{PATIENCE, Watchdog, eventually};

const ROUNDS: usize = 60;

#[derive(Debug)]
struct Held {
    mappings: usize,
    descriptors: usize,
    threads: usize,
}

fn held() -> Held {
    let entries = |path: &str| fs::read_dir(path).unwrap().count();
    Held {
        mappings: fs::read_to_string("/proc/self/maps").unwrap().lines().count(),
        descriptors: entries("/proc/self/fd"),
        threads: entries("/proc/self/task"),
    }
}

fn use_all_and_drop() {
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut words = arena.slice::<u64>(1 << 19).unwrap();
    words.fill(1);
    let template = arena.freeze().unwrap().into_template().unwrap();
    let builder = template.arena_builder(Place::Anywhere).unwrap();
    let restored = template.restore(builder).unwrap();
    let clone = template.map(Place::Anywhere).unwrap();
    words.fill(2);
    assert!(restored.wait_live(PATIENCE));
    drop((clone, restored, template));
    assert!(arena.wait_live(PATIENCE));
}

#[test]
fn what_ends_leaves_nothing() {
    let _watchdog = Watchdog::start("arenas that come and go");
    // The first rounds create the things that are kept for later ones.
    (0..3).for_each(|_| use_all_and_drop());
    let before = held();
    (0..ROUNDS).for_each(|_| use_all_and_drop());
    eventually(&format!("as little is held as {before:?}"), || {
        let now = held();
        // The allocator's mappings come and go.
        now.mappings < before.mappings + ROUNDS / 4
            && now.descriptors <= before.descriptors
            && now.threads <= before.threads
    });
}
