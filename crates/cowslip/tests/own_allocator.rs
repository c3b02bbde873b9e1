//! A program with a global allocator that takes its memory from an arena.
#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cowslip::units::ByteCount;
use cowslip::{Arena, ErrorKind, Prot, fork};
use support::{PATIENCE, Watchdog};

/// Allocates one block after the other in the arena, and never gives any back; 0 and 0 before there is one.
struct Bump {
    next: AtomicUsize,
    end: AtomicUsize,
}

#[global_allocator]
static BUMP: Bump = Bump { next: AtomicUsize::new(0), end: AtomicUsize::new(0) };

impl Bump {
    fn set(&self, next: usize, end: usize) {
        self.next.store(next, Relaxed);
        self.end.store(end, Relaxed);
    }
}

// SAFETY: blocks of the arena are allocated once each, aligned; all others are the system's.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let end = self.end.load(Relaxed);
        let taken = self.next.fetch_update(Relaxed, Relaxed, |next| {
            let start = next.next_multiple_of(layout.align());
            (start + layout.size() <= end).then_some(start + layout.size())
        });
        match taken {
            Ok(next) => next.next_multiple_of(layout.align()) as *mut u8,
            // SAFETY: as the caller promised.
            Err(_) => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let arena = ARENA[0].load(Relaxed)..ARENA[1].load(Relaxed);
        if !arena.contains(&(block as usize)) {
            // SAFETY: as the caller promised; the block is not from the arena.
            unsafe { System.dealloc(block, layout) };
        }
    }
}

static ARENA: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

#[test]
fn a_freeze_of_what_it_would_allocate_in_is_refused_and_hangs_nobody() {
    let _watchdog = Watchdog::start("an allocator in an arena");
    // Its allocations outlive the test.
    let arena: &'static Arena = Box::leak(Box::new(Arena::new(ByteCount::mib(64)).unwrap()));
    let space = arena.allocate(ByteCount::mib(32), Prot::RW).unwrap();
    ARENA[0].store(space.start, Relaxed);
    ARENA[1].store(space.end(), Relaxed);
    BUMP.set(space.start, space.end());
    if arena.raw().start_service() {
        for _ in 0..5 {
            assert_eq!(arena.freeze().unwrap_err().kind(), ErrorKind::Usage);
            // SAFETY: no child is made.
            assert_eq!(unsafe { fork(&[arena]) }.unwrap_err().kind(), ErrorKind::Usage);
        }
        let error = arena.freeze().unwrap_err().to_string();
        assert!(error.contains("allocator"), "{error}");
    }
    // An arena that the allocator does not use.
    let other = Arena::new(ByteCount::mib(64)).unwrap();
    let mut slice = other.slice::<u64>(1000).unwrap();
    slice.fill(7);
    let view = other.freeze().unwrap();
    slice.fill(8);
    assert!(view.slice(&slice).iter().all(|&word| word == 7));
    drop(view);
    assert!(other.wait_live(PATIENCE) || !other.raw().has_service());
    BUMP.set(0, 0);
}
