//! Single decisions: the task that follows from given facts.

use super::super::settings::{clean, consolidate, thaw};
use super::super::task::{Decision, many_pages};
use super::*;

/// A program that neither writes nor forks.
fn at_rest(chunks: usize) -> Simulation {
    Simulation::new(chunks, 0, at_random(chunks))
}

/// Frozen for a child that has ended, and past the time in which the next fork may follow.
fn unread(chunks: usize) -> Simulation {
    let mut arena = at_rest(chunks);
    arena.fork(0);
    // The end is noted by the first look.
    while !matches!(decide(&mut arena), Task::Wait(_)) || !arena.has_ended {
        pass(&mut arena, thaw::QUIET_AFTER_FORK_NS);
    }
    pass(&mut arena, thaw::LINGER_NS);
    arena
}

/// Frozen for a child that reads for ever.
fn read(chunks: usize) -> Simulation {
    let mut arena = at_rest(chunks);
    arena.fork(u64::MAX / 2);
    pass(&mut arena, thaw::QUIET_AFTER_FORK_NS);
    arena
}

fn pass(arena: &mut Simulation, ns: u64) {
    arena.spend(ns);
    arena.written_until_ns = arena.now_ns.get();
}

fn decide(arena: &mut Simulation) -> Task {
    let mut plan = std::mem::take(&mut arena.plan);
    let task = next(arena, &mut plan);
    arena.plan = plan;
    task
}

/// Decides and notes the outcome, with a time of its own.
fn note(arena: &mut Simulation, task: &Task, outcome: Result<bool, Errno>, took_ns: u64) {
    let now_ns = arena.now_ns.get();
    arena.plan.note(task, outcome, took_ns, now_ns);
}

fn copy(arena: &mut Simulation, chunk: usize, pages: Range<usize>) {
    for page in pages {
        if !std::mem::replace(&mut arena.private[chunk][page], true) {
            arena.counts[chunk] += 1;
            arena.faults += 1;
        }
    }
}

/// Puts chunks into a state that only other parts of an arena reach.
fn apply(arena: &mut Simulation, run: Range<usize>, events: &[Event]) {
    for event in events {
        arena.map.apply(run.clone(), *event).unwrap();
    }
}

fn wait_ns(task: &Task) -> u64 {
    let Task::Wait(pause) = task else { panic!("{task:?}") };
    pause.as_nanos() as u64
}

#[test]
fn of_two_decisions_work_comes_first_and_then_the_sooner() {
    let work = || Decision::Do(Task::Map);
    assert_eq!(Decision::After(1).or_sooner(work()), work());
    assert_eq!(work().or_sooner(Decision::Do(Task::LookOn)), work());
    assert_eq!(Decision::After(2).or_sooner(Decision::After(1)), Decision::After(1));
    assert_eq!(Decision::Nothing.or_sooner(Decision::After(1)), Decision::After(1));
    assert_eq!(Decision::Nothing.or_sooner(Decision::Nothing), Decision::Nothing);
}

#[test]
fn a_live_arena_has_nothing_to_do() {
    assert_eq!(decide(&mut at_rest(100)), Task::Idle);
}

#[test]
fn old_views_go_before_a_thaw() {
    let mut arena = unread(100);
    arena.old_views = 1;
    assert_eq!(decide(&mut arena), Task::UnmapView);
}

#[test]
fn many_old_views_go_though_a_fork_is_being_finished() {
    let mut arena = at_rest(100);
    arena.fork(SECOND);
    arena.old_views = thaw::MANY_VIEWS - 1;
    assert!(wait_ns(&decide(&mut arena)) <= thaw::QUIET_AFTER_FORK_NS);
    arena.old_views += 1;
    assert_eq!(decide(&mut arena), Task::UnmapView);
}

#[test]
fn unmapped_memory_is_mapped_last_and_not_while_memory_is_short() {
    let mut arena = unread(100);
    arena.unmapped = 1;
    assert!(matches!(decide(&mut arena), Task::Thaw(..)));
    arena = read(100);
    arena.unmapped = 1;
    assert_eq!(decide(&mut arena), Task::Map);
    arena.is_short = true;
    assert_ne!(decide(&mut arena), Task::Map);
}

#[test]
fn looks_for_readers_grow_rare_and_less_so_while_memory_is_short() {
    for (is_short, delays) in [(false, thaw::READERS), (true, thaw::READERS_WHEN_SHORT)] {
        let mut arena = read(100);
        arena.is_short = is_short;
        // Without a service thread nothing moves, and readers alone are looked for.
        arena.case.has_no_service = true;
        let mut plan = std::mem::take(&mut arena.plan);
        let pauses = [(); 10].map(|()| plan.thaw.next(&mut arena, &mut plan.moving));
        assert_eq!(pauses[0], Decision::After(delays.first_ns));
        assert_eq!(pauses[1], Decision::After(2 * delays.first_ns));
        assert_eq!(pauses[9], Decision::After(delays.last_ns));
    }
}

#[test]
fn the_next_fork_is_waited_for_after_a_child_and_not_after_a_view() {
    let mut arena = at_rest(100);
    arena.fork(0);
    pass(&mut arena, thaw::QUIET_AFTER_FORK_NS);
    let pause_ns = wait_ns(&decide(&mut arena));
    assert!((1..=thaw::LINGER_NS).contains(&pause_ns), "{pause_ns}");
    pass(&mut arena, thaw::LINGER_NS);
    assert!(matches!(decide(&mut arena), Task::Thaw(..)));
    let mut viewed = at_rest(100);
    viewed.fork(0);
    viewed.plan.thaw = Default::default();
    pass(&mut viewed, thaw::QUIET_AFTER_FORK_NS);
    assert!(matches!(decide(&mut viewed), Task::Thaw(..)));
}

#[test]
fn the_wait_grows_with_the_last_thaw_up_to_a_bound_and_ends_with_many_copies() {
    let lingers_ns = |busy_ns, copies| {
        let mut arena = at_rest(100);
        arena.plan.thaw.add_work(busy_ns);
        arena.plan.thaw.finish();
        arena.fork(0);
        pass(&mut arena, thaw::QUIET_AFTER_FORK_NS);
        (0..copies).for_each(|chunk| copy(&mut arena, chunk, 0..pages()));
        let began_ns = arena.now_ns.get();
        while let Task::Wait(pause) = decide(&mut arena) {
            pass(&mut arena, pause.as_nanos() as u64);
        }
        arena.now_ns.get() - began_ns
    };
    let some_ns = lingers_ns(50 * MILLISECOND, 0);
    let wanted_ns = 50 * MILLISECOND * thaw::LINGER_THAWS;
    assert!((wanted_ns..wanted_ns + MILLISECOND).contains(&some_ns), "{some_ns}");
    let longest_ns = lingers_ns(SECOND, 0);
    let wanted_ns = thaw::LINGER_MOST_NS;
    assert!((wanted_ns..wanted_ns + MILLISECOND).contains(&longest_ns), "{longest_ns}");
    let most = 100 / thaw::PRIVATE_SHARE as usize;
    assert!(lingers_ns(SECOND, most) > SECOND / 2);
    assert!(lingers_ns(SECOND, most + 1) < 2 * thaw::LINGER_NS);
}

#[test]
fn neighbours_with_few_copies_are_thawed_together() {
    let mut arena = unread(100);
    assert_eq!(decide(&mut arena), Task::Thaw(0..thaw::RUN_CHUNKS, Pace::AtOnce));
    let together = settings::pages(thaw::TOGETHER_BYTES) as usize;
    copy(&mut arena, 3, 0..together);
    assert_eq!(decide(&mut arena), Task::Thaw(0..thaw::RUN_CHUNKS, Pace::AtOnce));
    copy(&mut arena, 5, 0..1);
    assert_eq!(decide(&mut arena), Task::Thaw(0..5, Pace::AtOnce));
}

#[test]
fn a_chunk_with_many_copies_is_thawed_alone_and_in_parts() {
    let mut arena = unread(100);
    copy(&mut arena, 0, 0..many_pages() as usize);
    assert_eq!(decide(&mut arena), Task::Thaw(0..1, Pace::AtOnce));
    copy(&mut arena, 0, 0..many_pages() as usize + 1);
    assert_eq!(decide(&mut arena), Task::Thaw(0..1, Pace::Gently));
    arena.case.is_hugetlb = true;
    assert_eq!(decide(&mut arena), Task::Thaw(0..1, Pace::AtOnce), "whole huge pages");
}

#[test]
fn chunks_of_different_files_are_not_thawed_together() {
    let mut arena = unread(100);
    arena.map.set_file(4..100, 1);
    assert_eq!(decide(&mut arena), Task::Thaw(0..4, Pace::AtOnce));
}

#[test]
fn an_exposed_chunk_moves_alone() {
    let mut arena = unread(100);
    arena.case.exposed = Some(0);
    assert_eq!(decide(&mut arena), Task::Thaw(0..1, Pace::AtOnce));
}

#[test]
fn a_dropped_chunk_is_thawed_alone() {
    let mut arena = unread(100);
    apply(&mut arena, 0..2, &[Event::Drop]);
    assert_eq!(decide(&mut arena), Task::Thaw(0..1, Pace::AtOnce));
}

#[test]
fn memory_that_a_device_may_know_is_not_thawed_yet() {
    let mut arena = unread(100);
    arena.case.is_pinned = true;
    assert!(wait_ns(&decide(&mut arena)) <= thaw::RETRY.last_ns);
    arena.case.is_pinned = false;
    assert!(matches!(decide(&mut arena), Task::Thaw(..)));
}

#[test]
fn chunks_without_a_copy_stay_where_changes_are_tracked() {
    let mut arena = unread(100);
    arena.tracks = true;
    assert_eq!(decide(&mut arena), Task::Keep(0..thaw::RUN_CHUNKS));
    copy(&mut arena, 2, 0..1);
    assert_eq!(decide(&mut arena), Task::Keep(0..2));
    copy(&mut arena, 0, 0..1);
    assert_eq!(decide(&mut arena), Task::Thaw(0..1, Pace::AtOnce));
}

#[test]
fn chunks_that_a_thaw_takes_no_time_for_come_first_while_memory_is_short() {
    let mut arena = unread(100);
    (0..7).for_each(|chunk| copy(&mut arena, chunk, 0..1));
    arena.is_short = true;
    let Task::Thaw(run, _) = decide(&mut arena) else { panic!() };
    assert_eq!(run.start, 7);
}

#[test]
fn borrowed_chunks_are_copied_then_thawed_or_stay() {
    let mut arena = at_rest(100);
    apply(&mut arena, 0..4, &[Event::Borrow]);
    // Borrowed after the fork of a child that reads for ever.
    (0..4).for_each(|chunk| arena.map.set_since(chunk, 1));
    arena.child_until_ns = u64::MAX;
    assert_eq!(decide(&mut arena), Task::Fill(0));
    arena.case.filled = vec![0, 1];
    assert_eq!(decide(&mut arena), Task::Fill(2));
    arena.case.filled = (0..4).collect();
    assert_eq!(decide(&mut arena), Task::Thaw(0..4, Pace::AtOnce));
    arena.case.keeps_borrowed = true;
    assert!(!matches!(decide(&mut arena), Task::Fill(_) | Task::Thaw(..)));
    arena.case.keeps_borrowed = false;
    arena.is_short = true;
    assert!(!matches!(decide(&mut arena), Task::Fill(_) | Task::Thaw(..)));
}

#[test]
fn nothing_moves_without_a_service_thread_nor_in_hugetlbfs() {
    let hot = settings::pages(moving::HOT_BYTES) as usize;
    for (has_no_service, is_hugetlb) in [(true, false), (false, true), (false, false)] {
        let mut arena = read(100);
        copy(&mut arena, 7, 0..hot);
        arena.case = Case { has_no_service, is_hugetlb, ..Case::default() };
        let moves = matches!(decide(&mut arena), Task::Move(7, _));
        assert_eq!(moves, !has_no_service && !is_hugetlb);
    }
}

#[test]
fn a_chunk_between_two_states_is_completed_before_any_move() {
    let mut arena = read(100);
    copy(&mut arena, 7, 0..pages());
    apply(&mut arena, 20..21, &[Event::Break]);
    apply(&mut arena, 30..31, &[Event::Break]);
    assert_eq!(decide(&mut arena), Task::Complete(20));
    note(&mut arena, &Task::Complete(20), Err(Errno::NOMEM), 0);
    assert!(wait_ns(&decide(&mut arena)) <= moving::RETRY.first_ns);
    pass(&mut arena, moving::RETRY.first_ns);
    assert_eq!(decide(&mut arena), Task::Complete(30), "others first");
}

#[test]
fn a_chunk_below_the_threshold_stays_and_one_above_it_moves() {
    let hot = settings::pages(moving::HOT_BYTES) as usize;
    // Every other page: in order they might be the front of a run.
    for (copies, moves) in [(hot - 1, false), (hot, true)] {
        let mut arena = read(100);
        (0..pages()).step_by(2).take(copies).for_each(|at| copy(&mut arena, 7, at..at + 1));
        (1..pages()).step_by(2).take(copies.saturating_sub(pages() / 2)).for_each(|at| {
            copy(&mut arena, 7, at..at + 1);
        });
        assert_eq!(matches!(decide(&mut arena), Task::Move(7, _)), moves, "{copies}");
    }
}

#[test]
fn a_look_finds_few_faults_worth_it_after_a_while() {
    let mut arena = read(100);
    while !matches!(decide(&mut arena), Task::Wait(_)) {}
    let looked_ns = arena.looked_ns.get();
    pass(&mut arena, SECOND);
    copy(&mut arena, 7, 0..1);
    let began_ns = arena.now_ns.get();
    while arena.looked_ns.get() == looked_ns {
        if let Task::Wait(pause) = decide(&mut arena) {
            pass(&mut arena, pause.as_nanos() as u64);
        }
    }
    let waited_ns = arena.now_ns.get() - began_ns;
    let enough_ns = moving::FEW_FAULTS_NS + 2 * moving::LOOK.last_ns;
    assert!((moving::FEW_FAULTS_NS..=enough_ns).contains(&waited_ns), "{waited_ns}");
}

#[test]
fn a_clean_chunk_that_was_written_becomes_live_and_looks_grow_rare() {
    let mut arena = unread(100);
    apply(&mut arena, 0..100, &[Event::Keep]);
    arena.plan.thaw.finish();
    copy(&mut arena, 80, 0..1);
    let mut tasks = Vec::new();
    while !matches!(tasks.last(), Some(Task::ThawClean(..))) {
        assert!(tasks.len() < 10, "{tasks:?}");
        tasks.push(decide(&mut arena));
    }
    assert_eq!(tasks.last(), Some(&Task::ThawClean(80, Pace::AtOnce)));
    arena.make_live(80..81, Event::Thaw);
    let mut pauses = Vec::new();
    while pauses.len() < 6 {
        if let Task::Wait(pause) = decide(&mut arena) {
            pauses.push(pause.as_nanos() as u64);
            pass(&mut arena, pause.as_nanos() as u64);
        }
    }
    assert_eq!(pauses[..2], [clean::LOOK.first_ns, 2 * clean::LOOK.first_ns]);
    assert_eq!(pauses[5], clean::LOOK.last_ns);
}

#[test]
fn several_files_become_one_with_rests() {
    let mut arena = at_rest(100);
    arena.case.has_several_files = true;
    assert_eq!(wait_ns(&decide(&mut arena)), consolidate::RETRY.first_ns);
    pass(&mut arena, consolidate::RETRY.first_ns);
    let task = decide(&mut arena);
    assert_eq!(task, Task::Consolidate { from: 0 });
    arena.plan.consolidate.pass_to(9);
    note(&mut arena, &task, Ok(true), MILLISECOND);
    assert_eq!(wait_ns(&decide(&mut arena)), consolidate::REST * MILLISECOND);
    pass(&mut arena, consolidate::REST * MILLISECOND);
    assert_eq!(decide(&mut arena), Task::Consolidate { from: 9 });
    note(&mut arena, &task, Ok(false), MILLISECOND);
    assert_eq!(wait_ns(&decide(&mut arena)), consolidate::RETRY.first_ns);
    pass(&mut arena, consolidate::RETRY.first_ns);
    assert_eq!(decide(&mut arena), Task::Consolidate { from: 0 }, "a new round");
}

#[test]
fn files_stay_several_where_a_device_may_know_them_and_while_something_is_frozen() {
    let mut arena = at_rest(100);
    arena.case = Case { has_several_files: true, is_pinned: true, ..Case::default() };
    assert_eq!(decide(&mut arena), Task::Idle);
    arena = read(100);
    arena.case.has_several_files = true;
    for _ in 0..10 {
        assert!(!matches!(decide(&mut arena), Task::Consolidate { .. }));
        pass(&mut arena, consolidate::RETRY.first_ns);
    }
}

/// An arena with two dense chunks of base pages, at the beginning of a round.
fn dense() -> Simulation {
    let mut arena = at_rest(100);
    arena.dense = RefCell::new(vec![4, 9]);
    let pause_ns = wait_ns(&decide(&mut arena));
    assert_eq!(pause_ns, density::ROUND.first_ns);
    pass(&mut arena, pause_ns);
    arena
}

#[test]
fn a_page_is_warmed_for_a_chunk_before_it_becomes_huge() {
    let mut arena = dense();
    assert_eq!(decide(&mut arena), Task::WarmPage);
    arena.plan.density.warmed(WARM_NS);
    assert_eq!(decide(&mut arena), Task::Collapse(4));
}

#[test]
fn a_chunk_of_which_much_was_given_back_is_split_and_not_made_huge() {
    let mut arena = dense();
    arena.case.split_due = Some(4);
    assert_eq!(decide(&mut arena), Task::Split(4));
}

#[test]
fn the_rest_after_a_huge_page_is_longer_while_threads_wait_for_a_processor() {
    for (is_crowded, rest) in [(true, density::REST), (false, density::REST_WHEN_FREE)] {
        let mut arena = dense();
        arena.is_crowded = is_crowded;
        decide(&mut arena);
        arena.plan.density.warmed(WARM_NS);
        let task = decide(&mut arena);
        note(&mut arena, &task, Ok(true), COLLAPSE_NS);
        assert_eq!(wait_ns(&decide(&mut arena)), (WARM_NS + COLLAPSE_NS) * rest);
    }
}

#[test]
fn nothing_becomes_huge_where_the_kernel_never_does_it_and_no_page_is_warmed_for_it() {
    let mut arena = dense();
    arena.plan.density.give_up();
    (0..10)
        .for_each(|_| assert!(!matches!(decide(&mut arena), Task::WarmPage | Task::Collapse(_))));
}

#[test]
fn copies_are_counted_only_while_there_may_be_some() {
    let mut arena = at_rest(100);
    arena.limit = Some((7, 0));
    assert_eq!(decide(&mut arena), Task::Idle);
    arena.fork(SECOND);
    assert_eq!(wait_ns(&decide(&mut arena)), 7);
}

#[test]
fn frozen_memory_is_queued_to_be_mapped_after_writes_that_have_ended() {
    let mut arena = read(100);
    let mut tasks = Vec::new();
    for round in 0..200 {
        if round == 50 {
            copy(&mut arena, 7, 0..3);
        }
        let task = decide(&mut arena);
        let pause_ns = if let Task::Wait(pause) = &task { pause.as_nanos() as u64 } else { 0 };
        pass(&mut arena, pause_ns.max(MILLISECOND));
        tasks.push(task);
    }
    let queued: Vec<_> =
        (0..tasks.len()).filter(|round| tasks[*round] == Task::QueueFrozen).collect();
    assert!(queued.len() == 1 && queued[0] >= 50, "{queued:?}");
}
