//! What holds for every program that the simulation writes.

use super::*;

#[test]
fn few_writes_at_random_move_nothing() {
    // 4,000 requests a second, 20 % of them writes, for a save of two seconds: some 15 pages in a chunk.
    let mut arena = Simulation::new(500, SECOND / 4_000, at_random(500));
    arena.fork(2 * SECOND);
    arena.run_until(4 * SECOND);
    assert_eq!(arena.moves(), 0);
    assert_eq!(arena.map.private(), 0, "thawed after the child's end");
}

#[test]
fn writes_by_zipf_with_pauses_move_only_chunks_above_the_threshold() {
    let mut arena = Simulation::new(500, SECOND / 40_000, by_zipf(500));
    let hot = settings::pages(moving::HOT_BYTES);
    for save in 0..5 {
        arena.moved.clear();
        arena.fork(2 * SECOND);
        arena.run_until(arena.child_until_ns);
        assert!(!arena.moved.is_empty() && arena.moves() < 10, "save {save}: {:?}", arena.moved);
        let is_hot = |(chunk, private): &(usize, u64)| *chunk < 5 && *private >= hot;
        assert!(arena.moved.iter().all(is_hot), "save {save}: {:?}", arena.moved);
        // The program rests.
        arena.write_every_ns = 0;
        arena.run_until(arena.now_ns.get() + 4 * SECOND);
        assert_eq!(arena.map.private(), 0, "save {save}");
        arena.write_every_ns = SECOND / 40_000;
        arena.written_until_ns = arena.now_ns.get();
    }
}

#[test]
fn hot_neighbours_are_no_run() {
    // Four chunks beside one another that are written everywhere, and none behind them.
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (100 + random.below(4), random.below(pages())));
    let mut arena = Simulation::new(500, SECOND / 20_000, writes);
    arena.fork(5 * SECOND);
    arena.run_until(6 * SECOND);
    assert_eq!(arena.moves(), 4, "these, and no chunk behind them");
}

/// Runs for so long; returns the time after which chunk 7 has moved.
fn moved_after_ns(arena: &mut Simulation, ns: u64) -> u64 {
    let began_ns = arena.now_ns.get();
    arena.run_until(began_ns + ns);
    arena.first_ns(|task| matches!(task, Task::Move(7, _))).unwrap() - began_ns
}

#[test]
fn a_chunk_that_is_written_much_moves_soon() {
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (7, random.below(pages())));
    let mut arena = Simulation::new(2_000, SECOND / 50_000, writes);
    arena.fork(10 * SECOND);
    let moved_ns = moved_after_ns(&mut arena, SECOND);
    assert!(moved_ns < 100 * MILLISECOND, "{:?}", Duration::from_nanos(moved_ns));
}

#[test]
fn a_look_that_waits_for_its_processor_does_not_put_off_the_next() {
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (7, random.below(pages())));
    let mut arena = Simulation::new(500, SECOND / 1_000, writes);
    arena.preempted_ns = 20 * MILLISECOND;
    arena.fork(10 * SECOND);
    let moved_ns = moved_after_ns(&mut arena, 10 * SECOND);
    // Half of the chunk's pages are written after 0.36 s.
    assert!(moved_ns < 600 * MILLISECOND, "{:?}", Duration::from_nanos(moved_ns));
}

#[test]
fn a_run_of_writes_finds_the_chunks_ahead_of_it_moved() {
    // A page in 5 us: a chunk in 2.5 ms, a little more than a move takes.
    let mut arena = Simulation::new(400, 5 * MICROSECOND, in_order(400, 0));
    arena.fork(10 * SECOND);
    arena.run_until(arena.now_ns.get() + SECOND);
    let written = SECOND / (5 * MICROSECOND);
    assert!(arena.faults * 4 < written, "{} of {written} pages were copied", arena.faults);
}

#[test]
fn all_is_live_a_while_after_the_last_child() {
    for (chunks, write_every_ns) in [(4, 0), (500, 0), (500, SECOND / 20_000), (4_000, 50_000)] {
        let mut arena = Simulation::new(chunks, write_every_ns, at_random(chunks));
        for _ in 0..3 {
            arena.fork(SECOND / 2);
            let end_ns = arena.child_until_ns;
            arena.run_until(end_ns + 6 * SECOND);
            let live_ns =
                arena.done.iter().rev().find(|(_, task)| matches!(task, Task::Finish { .. }));
            let live_ns = live_ns.expect("it ends").0 - end_ns;
            assert!(live_ns < 5 * SECOND, "{:?}", Duration::from_nanos(live_ns));
            assert_eq!(arena.map.private(), 0);
        }
    }
}

#[test]
fn a_program_that_forks_often_stays_frozen_between_forks() {
    let mut arena = Simulation::new(500, SECOND / 4_000, at_random(500));
    // The first thaw tells what one costs: some 60 ms.
    arena.fork(SECOND);
    arena.run_until(4 * SECOND);
    assert_eq!(arena.map.private(), 0);
    arena.done.clear();
    for _ in 0..50 {
        arena.fork(10 * MILLISECOND);
        // Longer than the least time of lingering.
        arena.run_until(arena.child_until_ns + 60 * MILLISECOND);
    }
    assert_eq!(arena.count_done(|task| matches!(task, Task::Thaw(..))), 0);
    // One that has copied much does not linger.
    for chunk in 0..500 {
        arena.private[chunk][..80].fill(true);
        arena.counts[chunk] = 80;
    }
    arena.fork(10 * MILLISECOND);
    arena.run_until(arena.child_until_ns + 60 * MILLISECOND);
    assert!(arena.count_done(|task| matches!(task, Task::Thaw(..))) > 0);
}

#[test]
fn short_memory_ends_the_lingering() {
    let thaw_begins = |is_short| {
        let mut arena = Simulation::new(500, SECOND / 4_000, at_random(500));
        // The last thaw was dear, so that this one would linger.
        arena.fork(SECOND);
        arena.run_until(4 * SECOND);
        arena.done.clear();
        arena.fork(SECOND);
        arena.is_short = is_short;
        let end_ns = arena.child_until_ns;
        arena.run_until(end_ns + 3 * SECOND);
        arena.first_ns(|task| matches!(task, Task::Thaw(..))).unwrap() - end_ns
    };
    let (short_ns, long_ns) = (thaw_begins(true), thaw_begins(false));
    assert!(short_ns < 2 * MILLISECOND, "{short_ns}");
    assert!(long_ns > 3 * settings::thaw::LINGER_NS, "{long_ns}");
}

#[test]
fn a_thaw_ends_at_once_though_a_fork_is_being_finished() {
    let mut arena = Simulation::new(50, SECOND / 4_000, at_random(50));
    arena.is_short = true;
    for _ in 0..20 {
        arena.fork(2 * MILLISECOND);
        arena.run_until(arena.now_ns.get() + 5 * MILLISECOND);
        let done = arena.count_done(|task| matches!(task, Task::Finish { .. }));
        let thawed = arena.map.private() == 0;
        assert!(!thawed || done > 0 && arena.plan.thaw.finish_now(&arena).is_none());
    }
    assert!(arena.count_done(|task| matches!(task, Task::Finish { .. })) > 5);
}

#[test]
fn clean_chunks_that_are_written_become_live_soon_and_others_stay() {
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (10 + random.below(5), random.below(pages())));
    let mut arena = Simulation::new(500, 0, writes);
    arena.tracks = true;
    arena.fork(SECOND);
    arena.run_until(4 * SECOND);
    assert_eq!(arena.map.count(Chunk::Clean), 500);
    (arena.write_every_ns, arena.written_until_ns) = (MILLISECOND, arena.now_ns.get());
    arena.run_until(arena.now_ns.get() + SECOND);
    assert_eq!(arena.map.count(Chunk::Clean), 495);
    assert_eq!(arena.map.next_run(0, 500, |chunk| chunk == Chunk::Live), Some(10..15));
}

#[test]
fn short_memory_moves_nothing() {
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (7, random.below(pages())));
    let mut arena = Simulation::new(100, SECOND / 50_000, writes);
    arena.is_short = true;
    arena.fork(SECOND);
    arena.run_until(arena.child_until_ns);
    assert_eq!(arena.moves(), 0);
}

#[test]
fn nothing_starves_beside_a_child_that_reads_for_ever() {
    // It writes to another chunk every millisecond, so that there is always one to move.
    let mut random = Random(88172645463325252);
    let mut written = 0;
    let writes = Box::new(move || {
        written += 1;
        (3 + written / 500 % 10_000, random.below(pages()))
    });
    let mut arena = Simulation::new(10_100, 2 * MICROSECOND, writes);
    arena.fork(u64::MAX / 2);
    arena.old_views = 3;
    *arena.dense.borrow_mut() = vec![0, 1, 2];
    arena.unmapped = 5;
    // They are live, as they were given out after the fork.
    arena.map.apply(0..3, Event::Move).unwrap();
    arena.run_until(arena.now_ns.get() + 5 * SECOND);
    assert!(arena.moves() > 500, "{}", arena.moves());
    assert_eq!((arena.old_views, arena.unmapped), (0, 0));
    assert!(arena.dense.borrow().is_empty(), "{:?}", arena.dense);
}

/// Less while others want the processors, and not in one go: each copy of 2 MiB is in the way of the program.
#[test]
fn huge_pages_are_made_with_a_share_of_a_processor() {
    for (is_crowded, rest) in [(true, density::REST), (false, density::REST_WHEN_FREE)] {
        let mut arena = Simulation::new(1_000, 0, at_random(1));
        arena.is_crowded = is_crowded;
        *arena.dense.borrow_mut() = (0..1_000).collect();
        let began_ns = arena.now_ns.get();
        arena.run_until(began_ns + 100 * SECOND);
        assert!(arena.dense.borrow().is_empty(), "{} are left", arena.dense.borrow().len());
        let ends = arena.done.iter().filter(|(_, task)| matches!(task, Task::Collapse(_)));
        let ends: Vec<u64> = ends.map(|(ns, _)| *ns).collect();
        let pauses = ends.windows(2).map(|pair| pair[1] - pair[0]);
        let whole_ns = (WARM_NS + COLLAPSE_NS) * (rest + 1);
        assert!(pauses.min() >= Some(whole_ns), "{is_crowded}");
        let took_ns = ends.last().unwrap() - began_ns;
        assert!(took_ns < 1_100 * whole_ns, "{is_crowded}: {took_ns}");
    }
}

#[test]
fn the_borders_between_moved_chunks_and_others_are_few() {
    // Every other chunk is hot.
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (2 * random.below(500), random.below(pages())));
    let mut arena = Simulation::new(1_000, MICROSECOND, writes);
    arena.fork(30 * SECOND);
    arena.run_until(arena.now_ns.get() + 5 * SECOND);
    let runs = arena.live_runs().len();
    assert!(runs > 8 && 2 * runs <= moving::MOST_BORDERS, "{runs} runs of moved chunks");
}

#[test]
fn work_that_the_kernel_refuses_is_tried_again_and_takes_no_processor() {
    for refused in [Work::Thaw, Work::Move] {
        let mut random = Random(88172645463325252);
        let writes = Box::new(move || (7, random.below(pages())));
        let mut arena = Simulation::new(100, SECOND / 50_000, writes);
        arena.refused = Some(refused);
        arena.fork(if refused == Work::Move { u64::MAX / 2 } else { SECOND });
        arena.run_until(arena.now_ns.get() + 60 * SECOND);
        let tries = arena.count_done(|task| task.work() == Some(refused));
        assert!((5..60).contains(&tries), "{refused:?}: {tries} times");
        arena.refused = None;
        arena.child_until_ns = arena.now_ns.get();
        arena.run_until(arena.now_ns.get() + 20 * SECOND);
        assert_eq!(arena.map.private(), 0, "{refused:?}");
    }
}

#[test]
fn a_chunk_that_cannot_move_does_not_keep_others_from_it() {
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (2 * random.below(5), random.below(pages())));
    let mut arena = Simulation::new(100, SECOND / 50_000, writes);
    arena.immovable = Some(0);
    arena.fork(u64::MAX / 2);
    arena.run_until(arena.now_ns.get() + 3 * SECOND);
    let mut moved: Vec<_> = arena.moved.iter().map(|(chunk, _)| *chunk).collect();
    moved.sort_unstable();
    assert_eq!(moved, [2, 4, 6, 8]);
}

#[test]
fn the_last_few_writes_to_a_hot_chunk_are_seen() {
    let hot_pages = settings::pages(moving::HOT_BYTES) as usize;
    // Every second page; the last forty come after a pause, in which the others are counted.
    for last in [10, 40] {
        let mut page = 0;
        let writes = Box::new(move || {
            page = (page + 2) % pages();
            (3, page)
        });
        let mut arena = Simulation::new(100, SECOND / 10_000, writes);
        arena.fork(u64::MAX / 2);
        for (pages, moves) in [(hot_pages - last, 0), (last, 1)] {
            arena.write_every_ns = SECOND / 10_000;
            arena.written_until_ns = arena.now_ns.get();
            arena.run_until(arena.now_ns.get() + pages as u64 * SECOND / 10_000);
            arena.write();
            arena.write_every_ns = 0;
            arena.run_until(arena.now_ns.get() + SECOND);
            assert_eq!(arena.moves(), moves, "{last}");
        }
    }
}

#[test]
fn a_chunk_that_cannot_be_thawed_does_not_keep_others_from_it() {
    let mut arena = Simulation::new(100, SECOND / 4_000, at_random(100));
    arena.immovable = Some(7);
    arena.fork(SECOND);
    arena.run_until(arena.now_ns.get() + 10 * SECOND);
    let frozen: Vec<usize> = arena.map.runs(Chunk::is_private).flatten().collect();
    assert_eq!(frozen, [7]);
    let tries = arena.count_done(|task| matches!(task, Task::Thaw(run, _) if run.start == 7));
    assert!((5..50).contains(&tries), "{tries}");
    arena.immovable = None;
    arena.run_until(arena.now_ns.get() + 10 * SECOND);
    assert_eq!(arena.map.private(), 0);
}

#[test]
fn copies_are_counted_however_often_the_program_forks() {
    let mut arena = Simulation::new(100, SECOND / 4_000, at_random(100));
    let began_ns = arena.now_ns.get();
    arena.limit = Some((2 * MILLISECOND, began_ns));
    for i in 1..=200 {
        // Each comes while the one before it is being finished.
        arena.fork(3 * SECOND);
        arena.run_until(began_ns + i * settings::thaw::QUIET_AFTER_FORK_NS * 9 / 10);
    }
    assert!(arena.longest_unlimited_ns < 10 * MILLISECOND, "{}", arena.longest_unlimited_ns);
}

#[test]
fn collapses_that_the_kernel_refuses_become_rare() {
    let mut arena = Simulation::new(100, 0, at_random(100));
    arena.dense = RefCell::new((0..100).collect());
    arena.refuses_collapses = true;
    arena.run_until(arena.now_ns.get() + 100 * SECOND);
    let tries = arena.count_done(|task| matches!(task, Task::Collapse(_)));
    assert!((5..20).contains(&tries), "{tries}");
    arena.refuses_collapses = false;
    arena.run_until(arena.now_ns.get() + 40 * SECOND);
    assert!(arena.dense.borrow().is_empty());
}

#[test]
fn a_held_arena_stays_as_it_is() {
    let mut arena = Simulation::new(100, SECOND / 4_000, at_random(100));
    arena.fork(SECOND);
    arena.is_held = true;
    arena.run_until(arena.now_ns.get() + 5 * SECOND);
    assert_eq!(arena.map.private(), 100);
    arena.is_held = false;
    arena.run_until(arena.now_ns.get() + 5 * SECOND);
    assert_eq!(arena.map.private(), 0);
}

#[test]
fn nothing_is_done_while_a_fork_is_being_finished() {
    let mut arena = Simulation::new(100, 0, at_random(100));
    arena.fork(0);
    let began_ns = arena.now_ns.get();
    arena.old_views = 2;
    arena.run_until(began_ns + SECOND);
    let first_ns = arena.done[0].0;
    assert!(first_ns >= began_ns + settings::thaw::QUIET_AFTER_FORK_NS);
    assert!(!arena.plan.quiet.forks_often);
    arena.fork(0);
    arena.fork(0);
    assert!(arena.plan.quiet.forks_often);
}

#[test]
fn looks_take_a_small_part_of_the_time() {
    // Writes that never make a chunk hot: each look is in vain.
    let mut arena = Simulation::new(4_000, SECOND / 20_000, at_random(4_000));
    arena.fork(10 * SECOND);
    let began_ns = arena.now_ns.get();
    arena.run_until(began_ns + 9 * SECOND);
    let looked_ns = arena.looked_ns.get();
    assert!(looked_ns > 0 && looked_ns < 9 * SECOND / 100, "{looked_ns}");
    assert_eq!(arena.moves(), 0);
}

#[test]
fn a_look_that_a_host_makes_dear_does_not_put_off_the_next() {
    let mut random = Random(88172645463325252);
    let writes = Box::new(move || (7, random.below(pages())));
    let mut arena = Simulation::new(500, SECOND / 100, writes);
    arena.stolen_ns = 500 * MILLISECOND;
    arena.fork(100 * SECOND);
    let moved_ns = moved_after_ns(&mut arena, 60 * SECOND);
    // Enough of the chunk's pages are written after some seconds.
    assert!(moved_ns < 10 * SECOND, "{:?}", Duration::from_nanos(moved_ns));
}

#[test]
fn a_chunk_that_may_not_move_moves_once_it_may_though_nothing_more_is_written() {
    for is_short in [false, true] {
        let mut all_pages = (0..pages()).cycle();
        let writes = Box::new(move || (7, all_pages.next().unwrap()));
        let mut arena = Simulation::new(500, SECOND / 50_000, writes);
        arena.fork(30 * SECOND);
        (arena.case.keeps_places, arena.is_short) = (!is_short, is_short);
        arena.run_until(arena.now_ns.get() + SECOND);
        assert_eq!(arena.moves(), 0);
        arena.write_every_ns = 0;
        (arena.case.keeps_places, arena.is_short) = (false, false);
        arena.run_until(arena.now_ns.get() + 5 * SECOND);
        assert_eq!(arena.moves(), 1, "short: {is_short}");
        assert!(arena.looked_ns.get() < SECOND / 10, "{}", arena.looked_ns.get());
    }
}
