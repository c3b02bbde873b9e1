//! Views at many instants, and rolling back to each of them, compared with a model.

mod support;

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ArenaSlice, ErrorKind, Footprint, Frozen, MOST_VIEWS};
use support::{
    Counters, PATIENCE, Scatter, Watchdog, Writers, alone, eventually, fork_child, scaled, skip,
    status_of,
};

/// The bytes that the arena's files hold.
fn held_bytes(arena: &Arena) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let pid = std::process::id() as i32;
    Footprint::measure(pid, &smaps, &arena.metrics()).held_bytes
}

const CHUNKS: usize = 9;
const WORDS: usize = CHUNKS * CHUNK_BYTES / 8;

struct World {
    arena: Arena,
    words: ArenaSlice<u64>,
    model: Vec<u64>,
    views: Vec<(Frozen, Vec<u64>)>,
    random: Scatter,
}

impl World {
    fn new(seed: u64) -> Option<Self> {
        let arena = Arena::new(ByteCount::mib(4 * 2 * CHUNKS as u64)).unwrap();
        if !arena.raw().start_service() {
            skip("userfaultfd", "one view at a time");
            return None;
        }
        let mut words = arena.slice::<u64>(WORDS).unwrap();
        words.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64);
        let model = words.to_vec();
        Some(Self { arena, words, model, views: Vec::new(), random: Scatter(seed) })
    }

    fn below(&mut self, end: usize) -> usize {
        (self.random.next() % end as u64) as usize
    }

    fn write(&mut self) {
        let count = [1, 40, 3000][self.below(3)];
        let first = self.below(WORDS);
        let is_run = self.below(2) == 0;
        for i in 0..count {
            let at = if is_run { (first + 97 * i) % WORDS } else { self.below(WORDS) };
            let word = self.random.next();
            (self.words[at], self.model[at]) = (word, word);
        }
    }

    #[allow(unsafe_code)]
    fn discard(&mut self) {
        let page_words = page_size_bytes() / 8;
        let len = [1, 3, 512, 1024][self.below(4)];
        let first = self.below(WORDS / page_words - len);
        let (from, to) = (first * page_words, (first + len) * page_words);
        let start = self.words.range().start;
        // SAFETY: only this thread uses the slice.
        unsafe { self.arena.discard(VirtRange::new(start + from * 8, (to - from) * 8)) }.unwrap();
        self.model[from..to].fill(0);
    }

    fn freeze(&mut self) {
        let view = self.arena.freeze().unwrap();
        self.views.push((view, self.model.clone()));
    }

    #[allow(unsafe_code)]
    fn roll_back(&mut self) {
        if self.views.is_empty() {
            return;
        }
        let place = self.below(self.views.len());
        // SAFETY: only this thread uses the arena.
        unsafe { self.arena.roll_back(&self.views[place].0) }.unwrap();
        self.model.clone_from(&self.views[place].1);
    }

    /// Checks the present content, and one view.
    fn glance(&mut self) {
        assert!(*self.words == self.model, "what is there now");
        if !self.views.is_empty() {
            let place = self.below(self.views.len());
            let (view, then) = &self.views[place];
            assert!(view.slice(&self.words) == then, "view {place} of {}", self.views.len());
        }
    }

    fn check(&self) {
        assert!(*self.words == self.model, "what is there now");
        for (i, (view, then)) in self.views.iter().enumerate() {
            assert!(view.slice(&self.words) == then, "view {i} of {}", self.views.len());
        }
    }
}

#[test]
fn views_of_many_instants_show_each_its_own_and_the_arena_goes_back_to_any() {
    let _alone = alone();
    let _watchdog = Watchdog::start("views of many instants");
    for seed in 0..scaled(8) as u64 {
        let Some(mut world) = World::new(seed * 7919 + 1) else { return };
        for _ in 0..scaled(60) {
            match world.below(10) {
                0..4 => world.write(),
                4 => world.discard(),
                5 | 6 if world.views.len() < 12 => world.freeze(),
                7 => world.roll_back(),
                8 if !world.views.is_empty() => {
                    let place = world.below(world.views.len());
                    world.views.swap_remove(place);
                }
                _ => {}
            }
            world.glance();
        }
        world.check();
        world.views.clear();
        assert!(world.arena.wait_live(PATIENCE));
        world.check();
        let most = 2 * (CHUNKS * CHUNK_BYTES) as u64;
        eventually("without a view little is held", || held_bytes(&world.arena) <= most);
    }
}

#[test]
fn no_update_is_lost_while_views_come_and_go() {
    let _alone = alone();
    let _watchdog = Watchdog::start("writers beside many views");
    let arena = Arena::new(ByteCount::mib(256)).unwrap();
    if !arena.raw().start_service() {
        skip("userfaultfd", "one view at a time");
        return;
    }
    let counters = Counters::new(&arena, ByteCount::mib(48));
    let writers = Writers::start(&counters, 3);
    let mut views: Vec<(Frozen, u64)> = Vec::new();
    let sum = |view: &Frozen| -> u64 { view.slice(counters.slice()).iter().sum() };
    let mut scatter = Scatter(5);
    for _ in 0..scaled(120) {
        let before = counters.sum();
        let view = arena.freeze().unwrap();
        let shown = sum(&view);
        assert!(shown >= before && shown <= counters.sum(), "{before} {shown}");
        views.push((view, shown));
        if views.len() > 6 {
            views.swap_remove((scatter.next() % 7) as usize);
        }
        for (view, shown) in &views {
            assert_eq!(sum(view), *shown);
        }
    }
    let written = writers.stop();
    assert_eq!(counters.sum(), written);
    drop(views);
    assert!(arena.wait_live(PATIENCE));
    assert_eq!(counters.sum(), written);
}

#[test]
fn children_and_views_of_different_instants_live_side_by_side() {
    let _alone = alone();
    let _watchdog = Watchdog::start("children and views");
    let Some(mut world) = World::new(77) else { return };
    for _ in 0..scaled(20) {
        world.write();
        world.freeze();
        world.write();
        let (mut near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let (words, model) = (&world.words, &world.model);
        let child = fork_child(&[&world.arena], || {
            let mut byte = [0];
            let told = std::io::Read::read_exact(&mut (&far), &mut byte).is_ok();
            told && **words == **model
        })
        .unwrap();
        world.write();
        world.freeze();
        world.discard();
        world.check();
        std::io::Write::write_all(&mut near, b"!").unwrap();
        assert_eq!(status_of(child), 0);
        let place = world.below(world.views.len());
        world.views.swap_remove(place);
        world.check();
    }
    world.views.clear();
    assert!(world.arena.wait_live(PATIENCE));
    world.check();
}

#[test]
fn there_may_be_so_many_views_and_the_next_is_refused() {
    let _alone = alone();
    let Some(mut world) = World::new(3) else { return };
    for _ in 0..MOST_VIEWS {
        world.write();
        world.freeze();
    }
    let error = world.arena.freeze().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("as many views as can be"), "{error}");
    world.check();
    world.views.remove(10);
    world.freeze();
    world.check();
}

#[test]
fn what_only_a_dropped_view_showed_is_given_back_while_others_live() {
    let _alone = alone();
    let Some(mut world) = World::new(9) else { return };
    world.freeze();
    let one = held_bytes(&world.arena);
    for _ in 0..4 {
        (0..WORDS).step_by(512).for_each(|i| world.words[i] += 1);
        world.model = world.words.to_vec();
        world.freeze();
    }
    let five = held_bytes(&world.arena);
    assert!(five > 4 * one, "{one} {five}");
    // Keeps the oldest and the youngest.
    world.views.drain(1..4);
    eventually("the memory of three views is given back", || held_bytes(&world.arena) <= 3 * one);
    world.check();
}

#[test]
#[allow(unsafe_code)]
fn what_was_handed_out_since_is_zero_and_what_was_given_back_stays_so() {
    let _alone = alone();
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let mut kept = arena.slice::<u64>(CHUNK_BYTES).unwrap();
    let gone = arena.slice::<u64>(CHUNK_BYTES).unwrap();
    kept.fill(1);
    let before = arena.freeze().unwrap();
    kept.fill(2);
    let place = gone.range();
    drop(gone);
    let mut newer = arena.slice::<u64>(CHUNK_BYTES).unwrap();
    let mut small = arena.slice::<u64>(10).unwrap();
    newer.fill(3);
    small.fill(3);
    // SAFETY: only this thread uses the arena.
    unsafe { arena.roll_back(&before) }.unwrap();
    assert!(kept.iter().all(|&word| word == 1));
    assert!(newer.iter().chain(small.iter()).all(|&word| word == 0));
    assert!(before.slice(&kept).iter().all(|&word| word == 1));
    drop(before);
    assert!(arena.wait_live(PATIENCE));
    let again = arena.slice::<u64>(CHUNK_BYTES).unwrap();
    assert!(again.iter().all(|&word| word == 0), "{}: {place}", again.range());
    let other = Arena::new(ByteCount::mib(4)).unwrap();
    let foreign = other.freeze().unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { arena.roll_back(&foreign) }.unwrap_err().kind(), ErrorKind::Usage);
}
