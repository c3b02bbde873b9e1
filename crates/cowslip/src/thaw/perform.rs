//! Tasks, performed: see [`Task`].
//!
//! A task that fails leaves its chunks as they were, exact and tried again later.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cowslip_sys::Errno;

use super::consolidate;
use crate::arena::chunk::{Thawing, thaw_alone};
use crate::arena::state::{Chunk, Event, Shared, State};
use crate::arena::{grow, residency};
use crate::plan::settings::thaw::VIEW_STEP_BYTES;
use crate::plan::task::{Pace, Task, Work};
use crate::service::Service;
use crate::timing::Stopwatch;

/// The next step of the service thread, after a piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// There is more to do.
    Again,
    /// The next huge page must be warm: the thread warms it without the arena's lock.
    WarmPage,
    /// Nothing can be done before this has passed.
    Later(Duration),
    /// Nothing is to be done.
    Idle,
}

/// Performs a task, and notes its outcome in the plan. `None` if the next one follows at once.
pub(super) fn perform(shared: &Shared, state: &mut State, task: Task) -> Option<Step> {
    match task {
        Task::Idle => return Some(Step::Idle),
        Task::Wait(time) => return Some(Step::Later(time)),
        Task::WarmPage => return Some(Step::WarmPage),
        _ => {}
    }
    let watch = Stopwatch::start();
    let outcome = act(shared, state, &task);
    let took_ns = watch.elapsed_ns();
    state.plan.note(&task, outcome, took_ns, watch.began_ns() + took_ns);
    if let (Some(work), Err(errno)) = (task.work(), outcome) {
        count_failure(shared, work, errno);
        return None;
    }
    let has_thawed_all = task.work() == Some(Work::Thaw) && state.not_live() == 0;
    let is_looked_at = matches!(task, Task::QueueFrozen | Task::Consolidate { .. });
    (!has_thawed_all && !is_looked_at).then_some(Step::Again)
}

/// True if it did something. A task that the table of states does not allow changes nothing.
fn act(shared: &Shared, state: &mut State, task: &Task) -> Result<bool, Errno> {
    if let Some((chunks, event)) = task.event()
        && state.map.check(chunks, event).is_err()
    {
        return Err(Errno::INVAL);
    }
    match *task {
        Task::UnmapView => unmap_part(state),
        Task::QueueFrozen => {
            for run in state.map.runs(|chunk| chunk == Chunk::Frozen) {
                state.unmapped.add(shared.chunk_range(run.start, run.len()));
            }
        }
        Task::Finish { began_ns } => finish(shared, state, Stopwatch::started_at(began_ns)),
        Task::Fill(chunk) => shared.fill_borrowed(state, chunk..chunk + 1)?,
        Task::Keep(ref run) => state.change_all(run.clone(), Event::Keep),
        Task::Thaw(ref run, pace) => {
            let service = shared.service(state).ok_or(Errno::NODEV)?;
            thaw_at_pace(shared, state, &service, run.clone(), pace)?;
        }
        Task::Complete(chunk) => {
            serving(shared, state, |state, service| thaw_alone(shared, state, chunk, service))?;
        }
        Task::Move(chunk, pace) => {
            serving(shared, state, |state, service| move_out(shared, state, service, chunk, pace))?;
        }
        Task::ThawClean(chunk, pace) => serving(shared, state, |state, service| {
            thaw_at_pace(shared, state, service, chunk..chunk + 1, pace)
        })?,
        Task::Consolidate { from } => return consolidate::move_next(shared, state, from),
        Task::Split(chunk) => shared.trim(state, chunk)?,
        Task::Collapse(chunk) => return grow::make_huge(shared, state, chunk),
        Task::Map => residency::map_some(shared, state),
        Task::Failed(_, errno) => return Err(errno),
        Task::LookOn | Task::WarmPage | Task::Wait(_) | Task::Idle => {}
    }
    Ok(true)
}

/// Notes that all memory is live, after a thaw that began with the watch.
pub(super) fn finish(shared: &Shared, state: &mut State, watch: Stopwatch) {
    // For the next freeze, which makes one itself if this fails.
    let _ = state.generations.begin();
    state.plan.finish();
    shared.copy_limit.forget_reached();
    shared.counters.thaws.fetch_add(1, Relaxed);
    shared.counters.last_thaw_ns.store(watch.elapsed_ns(), Relaxed);
    shared.counters.frozen_chunks.store(0, Relaxed);
    shared.changed.notify_all();
}

fn count_failure(shared: &Shared, work: Work, errno: Errno) {
    let counters = &shared.counters;
    let (failed, last_errno) = match work {
        Work::Thaw | Work::Clean => (&counters.failed_thaw_chunks, &counters.last_thaw_errno),
        Work::Move => (&counters.failed_moves, &counters.last_move_errno),
    };
    failed.fetch_add(1, Relaxed);
    last_errno.store(errno.raw_os_error() as u64, Relaxed);
}

/// Unmaps a part of a view that was dropped.
fn unmap_part(state: &mut State) {
    let Some(view) = state.retired_views.last_mut() else { return };
    drop(view.split_front(view.len.min(VIEW_STEP_BYTES)));
    if view.is_empty() {
        state.retired_views.pop();
    }
}

fn move_out(
    shared: &Shared,
    state: &mut State,
    service: &Service,
    chunk: usize,
    pace: Pace,
) -> Result<(), Errno> {
    // Its place in the arena's own file has no readers.
    if state.chunk(chunk) == Chunk::Borrowed {
        return thaw_at_pace(shared, state, service, chunk..chunk + 1, pace);
    }
    let target = shared.target(state)?;
    Thawing::new(shared, service).move_out(state, chunk, target, pace)
}

/// Makes chunks live in their file: one, or several with few private pages.
pub(super) fn thaw_at_pace(
    shared: &Shared,
    state: &mut State,
    service: &Service,
    run: Range<usize>,
    pace: Pace,
) -> Result<(), Errno> {
    let thawing = Thawing::new(shared, service);
    match pace {
        Pace::Gently => thawing.thaw_gently(state, run.start),
        Pace::AtOnce | Pace::Held => thawing.thaw(state, run),
    }
}

/// Works with the service, and closes its window.
fn serving(
    shared: &Shared,
    state: &mut State,
    work: impl FnOnce(&mut State, &Service) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let service = shared.service(state).ok_or(Errno::NODEV)?;
    let worked = work(state, &service);
    service.window.close();
    worked
}

#[cfg(test)]
mod tests {
    use cowslip_sys::units::ByteCount;

    use super::*;
    use crate::arena::Arena;

    #[test]
    fn a_wrong_plan_changes_nothing() {
        let arena = Arena::new(ByteCount::mib(8)).unwrap();
        let mut words = arena.slice::<u64>(1 << 19).unwrap();
        words.fill(7);
        let shared = arena.shared();
        let mut state = shared.lock();
        let wrong = [
            Task::Keep(0..2),
            Task::Thaw(0..2, Pace::AtOnce),
            Task::Complete(1),
            Task::ThawClean(0, Pace::Gently),
        ];
        for task in wrong {
            assert_eq!(act(shared, &mut state, &task), Err(Errno::INVAL), "{task:?}");
        }
        assert_eq!(state.not_live(), 0);
        drop(state);
        assert!(words.iter().all(|&word| word == 7));
    }
}
