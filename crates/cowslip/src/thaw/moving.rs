//! Moves hot chunks out of frozen memory while others read it.
//!
//! ```text
//!   threads fault ──▶ a look at all frozen chunks ──▶ many copies in one ──▶ moved to a file without readers
//!     ▲ 1 to 20 ms      a thirtieth of the time,        a run of writes ──▶ so are the chunks ahead of it, first
//!                       less while it finds nothing         ▲ 0.1 ms, while it goes on
//! ```
//! A first write to a frozen page copies 4 KiB, and a thaw copies them back. A chunk that was moved is live: its writes cost
//! nothing, the thaw has nothing to do, and the next freeze moves it by its page table. Its memory is held twice until the
//! last reader ends, as `fork(2)` with hugetlb pages would have it from the first write on.
//!
//! Faults reveal first writes; the process' number of private pages does not: it falls when another arena thaws, which
//! would hide writes to this one.

use std::time::Duration;

use cowslip_sys::units::{CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{Errno, process, usage};

use crate::arena::chunk::{Pace, Thawing, thaw_alone};
use crate::arena::copy_count::is_limit_near;
use crate::arena::state::{Chunk, Shared, State};
use crate::mapping::backing_file::Pages;
use crate::memory::backoff::backoff;
use crate::memory::moving::{Front, Moving};
use crate::memory::step::Step;
use crate::service::Service;

/// A move costs as much as this many first writes and their thaw: 180 where the host keeps free pages, up to 380 where
/// it takes them.
const HOT_PAGES: u16 = 256;
/// Private pages at the beginning of a chunk, one after the other, that a run of writes has begun. As many at random
/// places are no run.
const BEGUN_PAGES: u64 = 8;
/// New copies, one after the other, that make a chunk the possible front of a run.
const FRONT_PAGES: u16 = 32;
/// Private pages of a chunk that a run has passed: it is too late to save the copies.
const PASSED_PAGES: u64 = 256;
const MOST_FRONTS: usize = 8;
const MOST_AHEAD: usize = 16;
/// Time for which a run of writes is known.
const KNOWN_NS: u64 = 5_000_000_000;
const FIRST_LOOK_NS: u64 = 1_000_000;
const LAST_LOOK_NS: u64 = 20_000_000;
/// After fewer faults than this there is no look.
const WORTH_A_LOOK: u64 = 64;
/// The pause after a look is this many times as long, and doubles each time that a look finds nothing to move.
const REST: u64 = 30;
const MOST_DOUBLINGS: u32 = 3;
/// The most borders between runs of moved chunks and of others: each run is a mapping, which the next freeze moves.
const MOST_BORDERS: usize = 128;

/// Moves one chunk, or looks for chunks to move. Called while others read frozen memory.
pub(super) fn step(shared: &Shared, state: &mut State, is_short: bool) -> Step {
    let Some(service) = shared.service(state) else { return Step::Idle };
    if let Some(partial) = state.map.next_run(0, 1, |chunk| chunk == Chunk::Partial) {
        return complete_partial(shared, state, &service, partial.start);
    }
    let has_any = state.map.count(Chunk::Frozen) + state.map.count(Chunk::Borrowed) > 0;
    if is_short {
        // The chunks may no longer be written when there is memory again.
        state.moving.clear();
    }
    if is_short || shared.pages == Pages::Hugetlb || !has_any {
        return Step::Idle;
    }
    let (chunk, is_ahead) = match next(shared, state, &service, process::now_ns()) {
        Ok(Some(next)) => next,
        Ok(None) => {
            let chunks = shared.chunks_of(shared.range).len();
            return state.moving.next_step(chunks, process::now_ns());
        }
        Err(errno) => return failed(shared, state, errno),
    };
    if let Err(errno) = move_one(shared, state, &service, chunk, is_ahead) {
        return failed(shared, state, errno);
    }
    shared.wake_if_live(state);
    if is_ahead {
        state.moving.pursue(process::now_ns());
    }
    Step::Again
}

/// The chunk to move now, if any, and true if a run of writes is about to come to it.
fn next(
    shared: &Shared,
    state: &mut State,
    service: &Service,
    now_ns: u64,
) -> Result<Option<(usize, bool)>, Errno> {
    let is_due = now_ns >= state.moving.not_before_ns;
    if state.moving.ahead.is_empty() && (is_due || state.moving.pursues(now_ns)) {
        go_ahead(shared, state, service, now_ns)?;
    }
    if is_due && state.moving.ahead.is_empty() && state.moving.wanted.is_empty() {
        look(shared, state, service, now_ns)?;
    }
    let Moving { ahead, wanted, .. } = &mut state.moving;
    let is_ahead = !ahead.is_empty();
    Ok(ahead.pop_front().or_else(|| wanted.pop_front()).map(|chunk| (chunk, is_ahead)))
}

/// Finishes an operation that failed half-way: a move, or a freeze or a thaw without a fork after it. Its file has no
/// readers.
fn complete_partial(shared: &Shared, state: &mut State, service: &Service, chunk: usize) -> Step {
    let left_ns = state.moving.not_before_ns.saturating_sub(process::now_ns());
    if left_ns > 0 {
        return Step::Later(Duration::from_nanos(left_ns));
    }
    let thawed = thaw_alone(shared, state, chunk, service);
    service.window.close();
    match thawed {
        Ok(()) => Step::Again,
        Err(errno) => failed(shared, state, errno),
    }
}

/// Notes a failed move: the chunk stays frozen and exact, and is tried again later.
fn failed(shared: &Shared, state: &mut State, errno: Errno) -> Step {
    use std::sync::atomic::Ordering::Relaxed;
    shared.counters.failed_moves.fetch_add(1, Relaxed);
    shared.counters.last_move_errno.store(errno.raw_os_error() as u64, Relaxed);
    state.moving.clear();
    // The chunks must be found again though nothing more is written to them.
    state.moving.faults = None;
    let delay = backoff(&mut state.moving.delay_ns, LAST_LOOK_NS, 5_000_000_000);
    state.moving.not_before_ns = process::now_ns() + delay.as_nanos() as u64;
    Step::Later(delay)
}

/// Finds chunks to move, and says when to look again.
fn look(shared: &Shared, state: &mut State, service: &Service, now_ns: u64) -> Result<(), Errno> {
    // Where the kernel does not report faults, every look takes place when it is due.
    let faults = usage::faults().ok();
    let grown = faults.zip(state.moving.faults).map(|(now, before)| now.saturating_sub(before));
    if grown.is_some_and(|faults| faults < WORTH_A_LOOK) {
        let delay = backoff(&mut state.moving.delay_ns, FIRST_LOOK_NS, LAST_LOOK_NS);
        state.moving.not_before_ns = now_ns + delay.as_nanos() as u64;
        return Ok(());
    }
    (state.moving.faults, state.moving.delay_ns) = (faults, 0);
    let before = std::mem::take(&mut state.moving.counts);
    let (counts, in_order) = count(shared, state, service)?;
    choose(shared, state, (&before, &counts), &in_order, now_ns);
    state.moving.counts = counts;
    let found = !state.moving.wanted.is_empty();
    state.moving.in_vain = if found { 0 } else { state.moving.in_vain.saturating_add(1) };
    let rest = REST << state.moving.in_vain.min(MOST_DOUBLINGS);
    let end_ns = process::now_ns();
    state.moving.not_before_ns = end_ns + ((end_ns - now_ns) * rest).max(FIRST_LOOK_NS);
    Ok(())
}

/// Queues the chunks ahead of runs that go on, twice as many each time.
fn go_ahead(
    shared: &Shared,
    state: &mut State,
    service: &Service,
    now_ns: u64,
) -> Result<(), Errno> {
    if now_ns >= state.moving.pursued_until_ns.saturating_add(KNOWN_NS) {
        state.moving.fronts.clear();
    }
    let mut fronts = std::mem::take(&mut state.moving.fronts);
    let mut i = 0;
    while let Some(front) = fronts.get_mut(i) {
        if go_on(shared, state, service, front)? {
            i += 1;
        } else {
            fronts.remove(i);
        }
    }
    state.moving.fronts = fronts;
    Ok(())
}

/// Queues the chunks ahead of a run if it has begun the first. False if the run cannot go on.
fn go_on(
    shared: &Shared,
    state: &mut State,
    service: &Service,
    front: &mut Front,
) -> Result<bool, Errno> {
    let end = shared.chunks_of(shared.range).end;
    let is_frozen =
        |state: &State, chunk: usize| chunk < end && state.chunk(chunk) == Chunk::Frozen;
    let last = front.next + MOST_AHEAD;
    while front.next < last {
        if !is_frozen(state, front.next) {
            return Ok(false);
        }
        let range = shared.chunk_range(front.next, 1);
        let Some(pages) = pages_of_run(range, service)? else { return Ok(true) };
        if pages < PASSED_PAGES {
            break;
        }
        state.moving.wanted.push_back(front.next);
        front.next += 1;
    }
    if front.next == last {
        // The next step goes over the rest.
        return Ok(true);
    }
    let reached = (front.next..end).take(front.ahead);
    let reached: Vec<usize> = reached.take_while(|&chunk| is_frozen(state, chunk)).collect();
    front.next += reached.len();
    state.moving.ahead.extend(reached);
    front.ahead = (front.ahead * 2).min(MOST_AHEAD);
    Ok(true)
}

/// Private pages of a chunk that a run of writes has begun: in order from its beginning, and most of
/// its private pages are the run's. `None` if no run has come to it.
fn pages_of_run(chunk: VirtRange, service: &Service) -> Result<Option<u64>, Errno> {
    let begun = VirtRange::new(chunk.start, BEGUN_PAGES as usize * page_size_bytes());
    if service.scanner.count_private(begun, BEGUN_PAGES)? < BEGUN_PAGES {
        return Ok(None);
    }
    let mut first = None;
    let all = service.scanner.private_runs(chunk, |run| _ = first.get_or_insert(run))?;
    let in_order = first.map_or(0, |run| (run.len / page_size_bytes()) as u64);
    Ok((2 * in_order >= all).then_some(all))
}

/// True if a chunk is moved when it is written much.
fn is_movable(chunk: Chunk) -> bool {
    matches!(chunk, Chunk::Frozen | Chunk::Borrowed)
}

/// Private pages of each chunk that could be moved, and the chunks in which enough of them follow one
/// another for the front of a run.
fn count(
    shared: &Shared,
    state: &State,
    service: &Service,
) -> Result<(Vec<u16>, Vec<usize>), Errno> {
    let mut counts = vec![0; shared.range.len / CHUNK_BYTES];
    let mut in_order = Vec::new();
    for run in state.map.runs(is_movable) {
        for (piece, _) in state.pieces(shared.chunk_range(run.start, run.len())) {
            service.scanner.private_runs(piece, |run| {
                for (chunk, part) in shared.by_chunk(run) {
                    let pages = (part.len / page_size_bytes()) as u16;
                    counts[chunk] += pages;
                    if pages >= FRONT_PAGES && in_order.last() != Some(&chunk) {
                        in_order.push(chunk);
                    }
                }
            })?;
        }
    }
    Ok((counts, in_order))
}

/// Chooses chunks to move by their private pages, at the look before and now, and by those in order.
fn choose(
    shared: &Shared,
    state: &mut State,
    (before, counts): (&[u16], &[u16]),
    in_order: &[usize],
    now_ns: u64,
) {
    let grown =
        |chunk: usize| counts[chunk].saturating_sub(before.get(chunk).copied().unwrap_or(0));
    let mut is_live = vec![false; counts.len() + 1];
    let mut borders = 0;
    for run in state.map.runs(|chunk| chunk == Chunk::Live) {
        for used in state.vma_map.used_within(shared.chunk_range(run.start, run.len())) {
            is_live[shared.chunks_of(used)].fill(true);
            borders += 2;
        }
    }
    let mut is_pursued = false;
    let Moving { wanted, fronts, .. } = &mut state.moving;
    for chunk in 0..counts.len() {
        if counts[chunk] < FRONT_PAGES || !is_movable(state.map.get(chunk)) {
            continue;
        }
        let is_ahead_cold = counts.get(chunk + 1) == Some(&0);
        let is_run = grown(chunk) >= FRONT_PAGES && in_order.binary_search(&chunk).is_ok();
        let is_front = is_run && is_ahead_cold;
        let is_hot = counts[chunk] >= HOT_PAGES;
        let neighbours =
            usize::from(chunk > 0 && is_live[chunk - 1]) + usize::from(is_live[chunk + 1]);
        if is_hot && (neighbours > 0 || borders < MOST_BORDERS) {
            wanted.push_back(chunk);
            is_live[chunk] = true;
            borders = (borders + 2).saturating_sub(2 * neighbours);
        }
        if is_front && fronts.iter().all(|front| front.next != chunk + 1) {
            if fronts.len() == MOST_FRONTS {
                // The oldest has most likely come to its end.
                fronts.remove(0);
            }
            fronts.push(Front { next: chunk + 1, ahead: 2 });
            is_pursued = true;
        }
    }
    if is_pursued {
        state.moving.pursue(now_ns);
    }
}

fn move_one(
    shared: &Shared,
    state: &mut State,
    service: &Service,
    chunk: usize,
    is_ahead: bool,
) -> Result<(), Errno> {
    let range = shared.chunk_range(chunk, 1);
    let stays = |state: &State| {
        !is_movable(state.chunk(chunk))
            || state.has_left(range)
            || state.is_small(chunk)
            || state.vma_map.is_unused(range)
            || is_limit_near(shared, state)
            || state.ask_before_thaw.is_some_and(|asks| asks())
    };
    if stays(state) {
        return Ok(());
    }
    let pages = service.scanner.count_private(range, PASSED_PAGES)?;
    let pace = if is_ahead && pages < PASSED_PAGES { Pace::Held } else { Pace::of(pages) };
    let thawing = Thawing::new(shared, service);
    let moved = match state.chunk(chunk) {
        // Its place in the arena's own file has no readers.
        Chunk::Borrowed if pace == Pace::Gently => thawing.thaw_gently(state, chunk),
        Chunk::Borrowed => thawing.thaw(state, chunk..chunk + 1),
        _ => {
            let target = shared.target(state)?;
            thawing.move_out(state, chunk, target, pace)
        }
    };
    service.window.close();
    moved
}
