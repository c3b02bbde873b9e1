//! Thaw: private copies go back into the file, chunk by chunk, while threads write.
//!
//! ```text
//!   nobody reads the base ──▶ next chunk or run ──▶ thawed ([`chunk`]) ──▶ … ──▶ all live
//!        ▲ look again later          ▲ failed: stays frozen, tried again later
//! ```
//! This file decides what comes next; [`chunk`] thaws a chunk. Runs of clean chunks go in one step; a chunk with
//! private pages goes alone, so that a writer waits for one chunk's copies at most, and a part of them if they are
//! many.

pub(crate) mod clean;
mod consolidate;
mod last_thread;
mod moving;
pub(crate) mod rest;
pub(crate) mod serve;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cowslip_sys::error::{During, Error, Result};
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::units::page_size_bytes;
use cowslip_sys::{Errno, process};

use crate::arena::chunk::{self, Thawing, at_once, private_pages, thaw_alone};
use crate::arena::copy_count::copied_bytes;
use crate::arena::grow;
use crate::arena::inheritance::youngest_read;
use crate::arena::residency;
use crate::arena::state::{Chunk, Event, Hold, Shared, State};
use crate::mapping::backing_file::{CLOSED, Pages};
use crate::memory::backoff::backoff;
use crate::memory::step::Step;
use crate::service::{Look, RUN_CHUNKS, Service, Window};

/// The most borrowed chunks that are filled before they become live. Each is held twice meanwhile.
const FILLED_CHUNKS: usize = 8;
/// Bytes of an old view that are unmapped in one step.
pub(super) const VIEW_STEP_BYTES: usize = 32 << 20;
/// From this many old views on, they are unmapped though a fork is being finished: each holds address space and
/// mappings.
const MANY_VIEWS: usize = 4;
const READERS_FIRST_LOOK_NS: u64 = 2_000_000;
const READERS_LAST_LOOK_NS: u64 = 250_000_000;
/// Longest wait of a fork for a thaw, while memory is short.
const LONGEST_BEFORE_FORK_NS: u64 = 50_000_000;
/// The longest pause between looks for readers while memory is short.
const READERS_LOOK_WHEN_SHORT_NS: u64 = 10_000_000;
/// The least time that a program stays frozen after its last child's end. It still has to wait for that child, and
/// another fork at once finds the arena ready.
const LINGER_NS: u64 = 20_000_000;
const LINGER_MOST_NS: u64 = 1_000_000_000;
/// It also stays frozen for the time of this many thaws: a program that forks just too seldom spends a fifth of a
/// processor on thaws that its next fork undoes.
const LINGER_THAWS: u64 = 4;
/// Unless it has copied more than one in this many of its used pages: the copies cost memory, and each fork copies
/// their page tables.
const PRIVATE_SHARE: u64 = 8;
const RETRY_FIRST_NS: u64 = 20_000_000;
const RETRY_LAST_NS: u64 = 5_000_000_000;

/// Does one small piece of background work.
pub(crate) fn step(shared: &Shared, state: &mut State) -> Step {
    let quiet_ns = state.quiet_until_ns.saturating_sub(process::now_ns());
    let is_short = is_short_of_memory(shared, state, Look::Thorough);
    if quiet_ns > 0 && !is_short && state.retired_views.len() < MANY_VIEWS {
        return Step::Later(Duration::from_nanos(quiet_ns));
    }
    if unmap_retired(state) {
        return Step::Again;
    }
    let round_ns = residency::begin_round(shared, state);
    let thawed = thaw_step(shared, state, is_short);
    // Memory that a thaw or a huge page is about to replace need not be mapped before that.
    let step = match thawed {
        Step::Again => return Step::Again,
        step => step.or_sooner(grow::tend(shared, state)),
    };
    if matches!(step, Step::Again) || (!is_short && residency::map_some(shared, state)) {
        return Step::Again;
    }
    match round_ns {
        Some(round_ns) => step.or_sooner(Step::Later(Duration::from_nanos(round_ns))),
        None => step,
    }
}

/// True if memory is too short for copies to linger.
fn is_short_of_memory(shared: &Shared, state: &State, look: Look) -> bool {
    // The hugetlb pool has set aside what copies need.
    if state.not_live() == 0 || shared.pages == Pages::Hugetlb {
        return false;
    }
    let used_bytes = shared.counters.used_bytes.load(Relaxed);
    let limited = shared.copy_limit.was_reached();
    shared.service(state).is_some_and(|service| service.gauge.is_short(used_bytes, look, limited))
}

/// The next piece of a thaw.
fn thaw_step(shared: &Shared, state: &mut State, is_short: bool) -> Step {
    if state.hold().is_some() {
        return Step::Idle;
    }
    if state.not_live() == 0 && !state.files.has_vacated() {
        return clean::look(shared, state).or_sooner(consolidate::step(shared, state));
    }
    let others = youngest_read(shared, state);
    shared.release_unread(state, others);
    let read = others.max(state.generations.youngest_view());
    let now = process::now_ns();
    if state.generations.take_ended() {
        state.thaw.delay_ns = 0;
        if std::mem::take(&mut state.thaw.forked) {
            let few_thaws_ns = state.thaw.last_busy_ns * LINGER_THAWS;
            state.thaw.not_before_ns = now + LINGER_NS;
            state.thaw.linger_until_ns = now + few_thaws_ns.min(LINGER_MOST_NS);
        }
    }
    let stays_borrowed = is_short || state.keeps_borrowed;
    if state.next_unread(0, 1, read, |chunk| can_thaw(chunk, stays_borrowed)).is_none() {
        // All that is left has readers.
        state.thaw.end_round();
        if state.not_live() == 0 && !state.files.has_vacated() {
            finish(shared, state, process::now_ns());
            return Step::Again;
        }
        // Before the moves, which may go on for as long as the child reads.
        let service = shared.service(state);
        let room = || service.as_ref().map_or(u64::MAX, |service| service.gauge.room_bytes());
        let count = |most| copied_bytes(shared, state, most);
        let soon = shared.copy_limit.keep(shared.range, &shared.counters, room, count);
        let moved = moving::step(shared, state, is_short);
        if matches!(moved, Step::Again) {
            return moved;
        }
        let last_ns = if is_short { READERS_LOOK_WHEN_SHORT_NS } else { READERS_LAST_LOOK_NS };
        let delay = backoff(&mut state.thaw.delay_ns, READERS_FIRST_LOOK_NS, last_ns);
        let step = Step::Later(soon.map_or(delay, |soon| soon.min(delay)));
        return step.or_sooner(moved);
    }
    // After a failure it waits all the same.
    let lingers = state.thaw.delay_ns == 0;
    if now < state.thaw.not_before_ns && !(is_short && lingers) {
        return Step::Later(Duration::from_nanos(state.thaw.not_before_ns - now));
    }
    let left_ns = state.thaw.linger_until_ns.saturating_sub(now);
    if left_ns > 0 && !is_short && !has_copied_much(shared) {
        return Step::Later(Duration::from_nanos(left_ns.min(LINGER_NS)));
    }
    if state.thaw.began_ns.is_none() && state.ask_before_thaw.is_some_and(|asks| asks()) {
        return Step::Later(Duration::from_nanos(RETRY_LAST_NS));
    }
    let began_ns = *state.thaw.began_ns.get_or_insert(now);
    let thawed = thaw_next(shared, state, read);
    state.thaw.busy_ns += process::now_ns() - now;
    match thawed {
        Ok(()) => {}
        Err(errno) => {
            shared.counters.failed_thaw_chunks.fetch_add(1, Relaxed);
            shared.counters.last_thaw_errno.store(errno.raw_os_error() as u64, Relaxed);
            let delay = backoff(&mut state.thaw.delay_ns, RETRY_FIRST_NS, RETRY_LAST_NS);
            state.thaw.not_before_ns = process::now_ns() + delay.as_nanos() as u64;
            return Step::Later(delay);
        }
    }
    state.thaw.delay_ns = 0;
    if state.not_live() > 0 {
        return Step::Again;
    }
    finish(shared, state, began_ns);
    Step::Again
}

/// Unmaps a part of a view that was dropped. True if there was one.
fn unmap_retired(state: &mut State) -> bool {
    let Some(view) = state.retired_views.last_mut() else { return false };
    drop(view.split_front(view.len.min(VIEW_STEP_BYTES)));
    if view.is_empty() {
        state.retired_views.pop();
    }
    true
}

/// True if the process has so many private pages that staying frozen is expensive.
fn has_copied_much(shared: &Shared) -> bool {
    let used_pages = shared.counters.used_bytes.load(Relaxed) / page_size_bytes() as u64;
    process::anonymous_pages().is_some_and(|pages| pages > used_pages / PRIVATE_SHARE)
}

fn finish(shared: &Shared, state: &mut State, began_ns: u64) {
    // For the next freeze, which makes one itself if this fails.
    let _ = state.generations.begin();
    state.thaw.end_round();
    shared.copy_limit.forget_reached();
    state.thaw.clean_from = 0;
    state.density.tending.hurry();
    shared.counters.thaws.fetch_add(1, Relaxed);
    shared.counters.last_thaw_ns.store(process::now_ns() - began_ns, Relaxed);
    shared.counters.frozen_chunks.store(0, Relaxed);
    shared.changed.notify_all();
}

fn thaw_next(shared: &Shared, state: &mut State, read: Option<u64>) -> Result<(), Errno> {
    let service = shared.service(state).ok_or(Errno::NODEV)?;
    thaw_run(shared, state, &service, read)
}

fn thaw_run(
    shared: &Shared,
    state: &mut State,
    service: &Service,
    read: Option<u64>,
) -> Result<(), Errno> {
    let tracks = state.tracking.is_on;
    let first = first_clean_when_short(shared, state, service, read)?.unwrap_or(0);
    let stays_borrowed = service.gauge.was_short() || state.keeps_borrowed;
    let wanted = |chunk| can_thaw(chunk, stays_borrowed);
    let Some(run) = state.next_unread(first, RUN_CHUNKS, read, wanted) else {
        return Ok(());
    };
    let first = run.start;
    let is_plain = |i| state.chunk(i).is_private_file();
    if !is_plain(first) {
        return thaw_alone(shared, state, first, service);
    }
    // If it is, the chunk moves to another file: one is enough for a step.
    let is_exposed = state.files.get(state.map.file(first)).is_exposed();
    let is_borrowed = state.chunk(first) == Chunk::Borrowed;
    if is_borrowed && !is_exposed && fill_one(shared, state, run.clone())? {
        return Ok(());
    }
    let thawing = Thawing::new(shared, service);
    let scanner = &service.scanner;
    let private = private_pages(shared, state, first, chunk::MANY_PAGES, scanner)?;
    let is_like_first = |i| match (tracks, is_borrowed) {
        (true, _) => state.chunk(i) == state.chunk(first),
        (false, true) => is_filled(state, i),
        (false, false) => state.chunk(i) != Chunk::Borrowed,
    };
    let is_one_file = |i| state.map.file(i) == state.map.file(first);
    let mut end = first + 1;
    while private == 0
        && !is_exposed
        && run.contains(&end)
        && is_plain(end)
        && is_one_file(end)
        && is_like_first(end)
        && private_pages(shared, state, end, 0, scanner)? == 0
    {
        end += 1;
    }
    if tracks && !is_exposed && private == 0 && state.chunk(first) == Chunk::Frozen {
        state.change_all(first..end, Event::Keep);
        return Ok(());
    }
    // hugetlbfs maps whole huge pages.
    if private > chunk::MANY_PAGES && shared.pages != Pages::Hugetlb {
        return thawing.thaw_gently(state, first);
    }
    thawing.thaw(state, first..end)
}

/// Copies the base of the first chunk of a borrowed run that needs it: copied chunks become live together, later.
fn fill_one(shared: &Shared, state: &State, run: std::ops::Range<usize>) -> Result<bool, Errno> {
    let mut borrowed = run.take(FILLED_CHUNKS).take_while(|&i| state.chunk(i) == Chunk::Borrowed);
    match borrowed.find(|&i| !is_filled(state, i)) {
        Some(chunk) => shared.fill_borrowed(state, chunk..chunk + 1).map(|()| true),
        None => Ok(false),
    }
}

fn is_filled(state: &State, chunk: usize) -> bool {
    let is_borrowed = state.chunk(chunk) == Chunk::Borrowed;
    is_borrowed && state.borrowed_base.as_ref().is_some_and(|it| it.filled().contains(&chunk))
}

/// True if a thaw takes such a chunk now. A borrowed chunk costs nothing, and its copy does.
fn can_thaw(chunk: Chunk, stays_borrowed: bool) -> bool {
    chunk.is_private() && !(stays_borrowed && chunk == Chunk::Borrowed)
}

/// While memory is short: the next chunk without a private page. Its thaw takes no time, and live memory makes no
/// copies. Chunks with copies to give back come after these.
fn first_clean_when_short(
    shared: &Shared,
    state: &mut State,
    service: &Service,
    read: Option<u64>,
) -> Result<Option<usize>, Errno> {
    if !service.gauge.was_short() {
        return Ok(None);
    }
    let is_wanted = |chunk: Chunk| chunk.is_private_file() && can_thaw(chunk, true);
    let next = |state: &State| state.next_unread(state.thaw.clean_from, 1, read, is_wanted);
    while let Some(run) = next(state) {
        let chunk = run.start;
        if private_pages(shared, state, chunk, 0, &service.scanner)? == 0 {
            return Ok(Some(chunk));
        }
        state.thaw.clean_from = chunk + 1;
    }
    Ok(None)
}

/// While memory is short: thaws all that can be thawed before it is frozen again. Otherwise each copy that is there now
/// would be made once more, and the first would stay until the child has ended.
pub(super) fn before_fork(shared: &Shared, state: &mut State) {
    if !is_short_of_memory(shared, state, Look::Quick) {
        return;
    }
    // The thaw can wait, and this thread must not wait for itself.
    let Ok(_blocked) = chunk::enter(shared.range) else { return };
    let deadline_ns = process::now_ns() + LONGEST_BEFORE_FORK_NS;
    while state.not_live() > 0
        && process::now_ns() < deadline_ns
        && matches!(step(shared, state), Step::Again)
    {}
    if let Some(service) = shared.service(state) {
        service.window.close();
    }
}

/// Makes chunks live that a failed operation left between two states: a child would lack a part of them. Their base has
/// no readers, as there was no fork since.
pub(crate) fn complete_partial(shared: &Shared, state: &mut State) -> Result<()> {
    let partial: Vec<_> = state.map.runs(|chunk| chunk == Chunk::Partial).flatten().collect();
    for chunk in partial {
        at_once(shared, state, chunk).map_err(|errno| {
            let error = Error::from_errno("make memory live again after a failure", errno)
                .on(shared.chunk_range(chunk, 1));
            match errno {
                Errno::NODEV => nothing_holds_off(error),
                _ => error.advise("try again"),
            }
        })?;
    }
    Ok(())
}

/// Copies all borrowed memory into the arena's own file, in this thread, while others run. A held arena stays as it is,
/// and so does that of a child that reads its parent's. True if the service thread has to do a part of it, as this
/// thread's stack is there.
pub(crate) fn end_borrowing(shared: &Shared) -> Result<bool> {
    let mut from = 0;
    let mut is_left = false;
    loop {
        // Other threads may have the arena between two chunks.
        let mut state = shared.lock();
        let can = state.hold().is_none() && state.generations.view_count() == 0;
        let next = state.map.next_run(from, 1, |chunk| chunk == Chunk::Borrowed);
        let Some(one) = next.filter(|_| can) else { return Ok(is_left) };
        from = one.end;
        let range = shared.chunk_range(one.start, 1);
        if chunk::contains_current_stack(range) {
            is_left = true;
            state.keeps_borrowed = false;
            shared.notify(&state);
            continue;
        }
        at_once(shared, &mut state, one.start).map_err(|errno| still_borrowed(errno).on(range))?;
    }
}

/// The error where there is no userfaultfd. In Rust, [`Arena::thaw_exclusive`](crate::Arena::thaw_exclusive) does without it;
/// C and Python have nothing of the kind.
fn nothing_holds_off(error: Error) -> Error {
    error.because("nothing holds writers off").advise(
        "try again, or make the arena with userfaultfd: `cowslip doctor` says what that needs",
    )
}

fn still_borrowed(errno: Errno) -> Error {
    let error = Error::from_errno("copy memory that is borrowed from a template", errno);
    match errno {
        Errno::BADF => error.because(CLOSED),
        Errno::NODEV => nothing_holds_off(error),
        _ => error
            .because("it is borrowed still, and as it was")
            .advise("try again when there is memory for a copy"),
    }
}

/// Thaws everything in this thread, while no thread writes.
pub(crate) fn unattended(shared: &Shared, state: &mut State) -> Result<()> {
    const OPERATION: &str = "thaw";
    let is_held = state.hold().is_some_and(|hold| hold != Hold::Paused);
    let is_viewed = state.generations.view_count() > 0;
    if is_held || is_viewed || youngest_read(shared, state).is_some() {
        return Err(Error::from_errno(OPERATION, Errno::BUSY).because(
            "a view, a child or a template still reads the frozen memory, or it is held for I/O",
        ));
    }
    let scanner = Scanner::open().during(OPERATION)?;
    let window = Window::reserve().during(OPERATION)?;
    let thawing = Thawing { shared, guard: None, scanner: &scanner, window: &window };
    let began_ns = process::now_ns();
    while let Some(run) = state.map.next_run(0, 1, Chunk::is_private) {
        let range = shared.chunk_range(run.start, 1);
        thawing.thaw(state, run).map_err(|errno| Error::from_errno(OPERATION, errno).on(range))?;
    }
    finish(shared, state, began_ns);
    Ok(())
}
