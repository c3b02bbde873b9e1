//! The way back to a view together with the memory that was handed out then: as in a program all of whose memory goes back.

mod support;

use cowslip::raw::Usage;
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, Frozen, Prot};
use cowslip_sys::procfs;
use support::{Scatter, Watchdog, alone, scaled, skip};

/// Memory that a program has: its place, its protection, and the word at the start of each page.
#[derive(Clone, PartialEq, Debug)]
struct Memory {
    range: VirtRange,
    prot: Prot,
    words: Vec<u64>,
}

struct World {
    arena: Arena,
    memory: Vec<Memory>,
    views: Vec<(Frozen, Vec<Memory>)>,
    random: Scatter,
}

fn pages(range: VirtRange) -> impl Iterator<Item = *mut u64> {
    (range.start..range.end()).step_by(page_size_bytes()).map(|page| page as *mut u64)
}

#[allow(unsafe_code)]
impl World {
    fn below(&mut self, end: usize) -> usize {
        (self.random.next() % end as u64) as usize
    }

    fn any(&mut self) -> Option<usize> {
        (!self.memory.is_empty()).then(|| self.below(self.memory.len()))
    }

    fn allocate(&mut self) {
        let pages = [1, 3, 100, 512, 1300][self.below(5)];
        let bytes = ByteCount((pages * page_size_bytes()) as u64);
        let Ok(range) = self.arena.allocate(bytes, Prot::RW) else { return };
        self.memory.push(Memory { range, prot: Prot::RW, words: vec![0; pages] });
    }

    fn write(&mut self) {
        let Some(place) = self.any() else { return };
        let seed = self.random.next();
        let memory = &mut self.memory[place];
        if memory.prot != Prot::RW {
            return;
        }
        for (i, (page, word)) in pages(memory.range).zip(&mut memory.words).enumerate() {
            if (seed >> (i % 64)) & 1 == 0 {
                *word = seed ^ i as u64;
                // SAFETY: in memory that was handed out, of this thread alone.
                unsafe { page.write(*word) };
            }
        }
    }

    fn release(&mut self) {
        let Some(place) = self.any() else { return };
        let memory = self.memory.swap_remove(place);
        let is_hole = self.below(2) == 0;
        // SAFETY: it is no longer in use.
        unsafe {
            match is_hole {
                true => self.arena.raw().unmap(memory.range).unwrap(),
                false => self.arena.release(memory.range).unwrap(),
            }
        }
    }

    fn protect(&mut self) {
        let Some(place) = self.any() else { return };
        let memory = &mut self.memory[place];
        memory.prot = if memory.prot == Prot::RW { Prot::READ } else { Prot::RW };
        // SAFETY: there is no reference into it.
        unsafe { self.arena.protect(memory.range, memory.prot) }.unwrap();
    }

    fn freeze(&mut self) {
        self.views.push((self.arena.freeze().unwrap(), self.memory.clone()));
    }

    fn roll_back(&mut self) {
        if self.views.is_empty() {
            return;
        }
        let place = self.below(self.views.len());
        let (view, then) = &self.views[place];
        // SAFETY: this thread is the only one that uses the arena, and forgets memory of later.
        unsafe { self.arena.raw().roll_back_handed_out(view) }.unwrap();
        self.memory.clone_from(then);
    }

    /// Compares the arena and the kernel's mappings with what the program has.
    fn check(&self) {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut used: Vec<_> =
            self.memory.iter().map(|memory| (memory.range, memory.prot)).collect();
        used.sort_by_key(|(range, _)| range.start);
        for Memory { range, prot, words } in &self.memory {
            // SAFETY: as above; it can be read.
            let found: Vec<u64> = pages(*range).map(|page| unsafe { page.read() }).collect();
            assert_eq!(&found, words, "{range}");
            let meets = |mapping: &procfs::Mapping<'_>| !mapping.range.intersect(*range).is_empty();
            for mapping in procfs::mappings(&maps).filter(meets) {
                assert_eq!(mapping.protection, prot.bits(), "{range}");
            }
        }
        let parts = self.arena.raw().parts(self.arena.range());
        let total = |ranges: &mut dyn Iterator<Item = usize>| ranges.sum::<usize>();
        let of_arena = parts.iter().filter(|(_, usage, _)| *usage == Usage::Used);
        assert_eq!(
            total(&mut of_arena.map(|(range, ..)| range.len)),
            total(&mut used.iter().map(|(range, _)| range.len))
        );
        assert!(used.is_sorted_by(|(one, _), (next, _)| one.end() <= next.start));
    }
}

#[test]
fn memory_given_back_since_is_there_again_and_newer_memory_is_gone() {
    let _alone = alone();
    let _watchdog = Watchdog::start("memory handed out then");
    for seed in 0..scaled(8) as u64 {
        let arena = Arena::new(ByteCount((40 * CHUNK_BYTES) as u64)).unwrap();
        if !arena.raw().start_service() {
            return skip("userfaultfd", "one view at a time");
        }
        let random = Scatter(seed * 7919 + 1);
        let mut world = World { arena, memory: Vec::new(), views: Vec::new(), random };
        for _ in 0..scaled(120) {
            match world.below(9) {
                0 | 1 => world.allocate(),
                2 | 3 => world.write(),
                4 => world.release(),
                5 => world.protect(),
                6 if world.views.len() < 5 => world.freeze(),
                7 => world.roll_back(),
                8 if world.below(3) == 0 && !world.views.is_empty() => {
                    let place = world.below(world.views.len());
                    drop(world.views.swap_remove(place));
                }
                _ => world.check(),
            }
        }
        world.check();
    }
}

#[test]
#[allow(unsafe_code)]
fn memory_whose_place_is_taken_is_not_handed_out_again() {
    let _alone = alone();
    let arena = Arena::new(ByteCount((8 * CHUNK_BYTES) as u64)).unwrap();
    if !arena.raw().start_service() {
        return skip("userfaultfd", "one view at a time");
    }
    let bytes = ByteCount(CHUNK_BYTES as u64);
    let [kept, gone] = [(); 2].map(|()| arena.allocate(bytes, Prot::RW).unwrap());
    let word = kept.start as *mut u64;
    // SAFETY: memory that was handed out; the second is not used any more.
    unsafe {
        word.write(1);
        let view = arena.freeze().unwrap();
        word.write(2);
        arena.raw().unmap(gone).unwrap();
        cowslip_sys::memory::reserve_at(gone).unwrap();
        let error = arena.raw().roll_back_handed_out(&view).unwrap_err();
        assert_eq!(error.kind(), cowslip::ErrorKind::Busy);
        assert_eq!(word.read(), 2, "the arena is as before");
        assert_eq!(arena.raw().parts(kept)[0].1, Usage::Used);
        cowslip_sys::memory::unmap(gone).unwrap();
    }
}
