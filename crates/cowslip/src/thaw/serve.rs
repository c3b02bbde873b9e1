//! The service thread of an arena: it unmaps old views, and thaws.
//!
//! It never waits for the arena's lock (it tries), since the thread that holds it may wait for the end of this one; and it
//! never touches memory of an arena, since an access could wait for a freeze.
//! Starting a thread allocates through libc, which breaks both rules if the program's allocator lives in an
//! arena: [`ensure`] is therefore called without the lock and returns when the thread has reached its loop. The thread
//! allocates from this library's allocator: in a program under `cowslip run` that is one of its own
//! ([`alloc`](../../../cowslip-preload/src/rt/alloc.rs)); elsewhere a freeze refuses an allocator that lives in an arena
//! ([`crate::arena::own_memory`]). A caller that does not need the thread yet only [begins](begin) it; a freeze or a fork,
//! which calls [`ensure`], waits until it has reached its loop.
//!
//! The thread does not end while a call is left by which it can wait and one by which it can read. If there is none, or
//! it panics, it announces that first ([`Service::set_failed`]), and closes the userfaultfd: the kernel then releases
//! every thread that waits for its faults. Freezes are taken without userfaultfd, nothing is thawed, and the next
//! [`ensure`] starts another thread. It ends in the same way when it alone keeps the process from ending ([`LastThread`]).

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cowslip_sys::error::{During, Result};
use cowslip_sys::failpoints::{self, Op};
use cowslip_sys::procfs::own;
use cowslip_sys::thread::Thread;
use cowslip_sys::{AsFd, BorrowedFd, Errno, process, scheduling, waiting};

use crate::arena::child::Child;
use crate::arena::share;
use crate::arena::state::{Role, Shared, State};
use crate::plan::pace::rest;
use crate::plan::settings::children;
use crate::plan::settings::serve::{
    JOINED_NS, LOOK_AGAIN_NS, MOST_FALSE_ALARMS, NAP_NS, NO_PROGRESS_NS, SLICE_NS, STAY_AWAY_NS,
    WARM_ROOM_BYTES,
};
use crate::service::{Running, Service};
use crate::thaw::last_thread::LastThread;
use crate::thaw::rest::Rest;
use crate::thaw::{self, Step};
use crate::timing::{Deadline, Stopwatch};

const START: &str = "start the service thread of an arena";
const THIS_THREAD: i32 = 0;

const STACK_BYTES: usize = 256 << 10;

/// [`NAP_NS`]
const NAP: Duration = Duration::from_nanos(NAP_NS);

/// Starts the arena's service thread if there is none and userfaultfd is available and wanted. True if it runs now.
pub(crate) fn ensure(shared: &Shared) -> bool {
    let service = find_or_start(shared, true);
    if let Some(service) = &service {
        service.wait_started();
    }
    service.is_some()
}

/// Like [`ensure`], without waiting for the thread. True if it will run.
pub(crate) fn begin(shared: &Shared) -> bool {
    find_or_start(shared, false).is_some()
}

fn find_or_start(shared: &Shared, is_awaited: bool) -> Option<Arc<Service>> {
    let retired = {
        let _locked = shared.lock();
        shared.services.take_retired()
    };
    retired.into_iter().for_each(Running::stop);
    if shared.wants_userfaultfd && is_wanted(shared, &shared.lock()) {
        // Without the lock; see the module.
        let service = Service::open(START).ok()?;
        install(shared, start(shared, service, is_awaited).ok()?);
    }
    shared.service(&shared.lock())
}

fn is_wanted(shared: &Shared, state: &State) -> bool {
    shared.service(state).is_none() && state.role == Role::Owner
}

fn install(shared: &Shared, running: Running) {
    let state = shared.lock();
    if is_wanted(shared, &state) {
        shared.services.install(running);
        // There may be frozen chunks from a time without it.
        shared.notify(&state);
    } else {
        drop(state);
        running.stop();
    }
}

/// Ends the service thread, and waits until the kernel has no such thread. Opens the descriptors of the next one; `None` if
/// there was no thread, or one of them is refused.
pub(crate) fn park(shared: &Shared) -> Option<Service> {
    let running = {
        let _locked = shared.lock();
        shared.services.take()
    };
    let running = running?;
    let before = own::thread_count();
    running.stop();
    let until = Deadline::after_ns(JOINED_NS);
    let has_ended = || match before {
        Some(_) => own::thread_count() < before,
        // If the program has other threads, it waits in vain.
        None => process::is_single_threaded(),
    };
    // The join returns a little before that.
    while !has_ended() && !until.has_passed() {
        std::thread::yield_now();
    }
    Service::open(START).ok()
}

/// Starts another service thread, which has the rights of this one.
pub(crate) fn resume(shared: &Shared, service: Service) {
    if let Ok(running) = start(shared, service, true) {
        install(shared, running);
    }
}

fn start(shared: &Shared, service: Service, is_awaited: bool) -> Result<Running> {
    let service = Arc::new(service);
    let shared = shared.weak();
    let theirs = Arc::clone(&service);
    let is_ordinary = scheduling::is_ordinary();
    let lends = is_ordinary && is_awaited;
    if lends {
        // A caller waits for this: on a busy machine a new thread waits for its turn.
        let _ = scheduling::set_urgent(THIS_THREAD, true);
    }
    let thread = {
        // The thread inherits a mask that blocks every signal: handlers are the program's.
        let _blocked = process::BlockedSignals::enter();
        Thread::start(c"cowslip", STACK_BYTES, move || {
            if is_ordinary {
                // Like the thread that starts it.
                theirs.lend(lends);
            }
            theirs.set_started();
            theirs.set_urgent(false);
            // Without it every page that is not present counts as private: slower, but as correct.
            let _ = theirs.scanner.learn_markers();
            let served = panic::catch_unwind(AssertUnwindSafe(|| serve(&theirs, &shared)));
            if !matches!(served, Ok(Ok(End::Told))) {
                // A freeze or a thaw can no longer rely on it.
                fail(&theirs, &shared);
            }
            drop((theirs, shared));
            if matches!(served, Ok(Ok(End::Alone))) {
                // libc runs the program's exit handlers.
                if let Some(blocked) = own::blocked_signals_of_main() {
                    process::set_signal_mask(blocked);
                }
            }
        })
    };
    if thread.is_ok() && is_awaited {
        service.wait_started();
    }
    if lends {
        let _ = scheduling::set_urgent(THIS_THREAD, false);
    }
    Ok(Running { service, thread: thread.during(START)? })
}

/// Announces that this thread can no longer be relied on, and releases the threads that wait for it.
fn fail(service: &Service, shared: &Weak<Shared>) {
    service.set_failed();
    service.set_urgent(false);
    let Some(shared) = shared.upgrade() else { return };
    // A thaw in another thread holds the lock, and writers must wait for it until it is done (I1).
    while !service.is_closing() {
        if let Some(_state) = shared.try_lock() {
            service.let_go(shared.range);
            // Threads that wait for a thaw start another service thread.
            shared.changed.notify_all();
            return;
        }
        if waiting::nap(NAP).is_err() {
            std::thread::yield_now();
        }
    }
    service.let_go(shared.range);
}

/// Reasons to end for a thread that could go on.
enum End {
    Told,
    /// The program has no thread any more.
    Alone,
}

/// Works until there is a reason to end; an error if it cannot go on.
fn serve(service: &Service, shared: &Weak<Shared>) -> Result<End, Errno> {
    let mut last = LastThread::new();
    let mut rest = Rest::new();
    let mut due: Option<Deadline> = None;
    let mut false_alarms = 0;
    let mut has_stayed_away = false;
    let mut warmed_ns = None;
    while !service.is_closing() {
        let Some(shared) = shared.upgrade() else { return Ok(End::Told) };
        failpoints::panic_if_told(Op::ServicePanic);
        let listed = share::try_watched(&shared).map(|children| children.clone());
        let again = listed.is_none().then_some(Duration::from_nanos(LOOK_AGAIN_NS));
        let children = listed.unwrap_or_default();
        let ends = || children.iter().filter_map(|child| child.end.as_ref());
        let mut fds = vec![service.uffd.as_fd(), service.wake_fd()];
        fds.extend(ends().map(AsFd::as_fd));
        let mut ready = vec![false; fds.len()];
        let left = due.map(Deadline::left);
        let look = children
            .iter()
            .any(|child| child.is_looked_at())
            .then_some(Duration::from_nanos(children::LOOK_NS));
        let patience = left
            .into_iter()
            .chain(look)
            .chain(again)
            .chain([last.patience()])
            .chain(rest.patience())
            .min();
        let has_slept = !wait(service, &fds, &mut ready, patience)?;
        if last.is_over() {
            return Ok(End::Alone);
        }
        if !rest.spend(service, &shared) {
            return Ok(End::Told);
        }
        let mut told = ready.iter().skip(2);
        let mut is_told = |child: &Child| child.end.is_some() && told.next() == Some(&true);
        let is_over = |child: &&Arc<Child>| {
            is_told(child) || (has_slept && child.has_ended()) || !child.set_turn(&shared.counters)
        };
        let ended: Vec<_> = children.iter().filter(is_over).collect();
        if !ended.is_empty()
            && let Some(mut children) = share::try_watched(&shared)
        {
            children.retain(|child| !ended.iter().any(|ended| Arc::ptr_eq(child, ended)));
        }
        let is_due = due.is_some_and(Deadline::has_passed);
        if !has_slept && !ready.contains(&true) && ended.is_empty() && !is_due {
            continue;
        }
        service.check_descriptors()?;
        let events = service.uffd.read_events()?;
        shared.counters.waits.fetch_add(events.faults, Relaxed);
        let is_rung = process::drain(service.wake_fd())?;
        if events.is_empty() && !is_rung && ended.is_empty() && !is_due {
            false_alarms += u32::from(!has_slept);
            if false_alarms > MOST_FALSE_ALARMS {
                // Otherwise no other thread would run on this processor.
                service.set_urgent(false);
                waiting::nap(NAP)?;
            }
            continue;
        }
        false_alarms = 0;
        // Every other time: a thread that never comes for the lock must not end all thaws.
        has_stayed_away = !has_stayed_away && shared.is_wanted();
        if has_stayed_away {
            due = Some(Deadline::after_ns(STAY_AWAY_NS));
            continue;
        }
        let Some(mut state) = shared.try_lock() else {
            due = Some(Deadline::after_ns(LOOK_AGAIN_NS));
            continue;
        };
        if let Some(took_ns) = warmed_ns.take() {
            state.plan.density.warmed(took_ns);
        }
        let step = work(service, &shared, &mut state);
        drop(state);
        let pause = match step {
            Step::Again => Some(Duration::ZERO),
            Step::WarmPage => {
                let watch = Stopwatch::start();
                // A fault at the limit of a group ends the program; a collapse merely fails there.
                if service.gauge.room_bytes() >= WARM_ROOM_BYTES {
                    service.warm_page.warm();
                }
                warmed_ns = Some(watch.elapsed_ns());
                Some(Duration::ZERO)
            }
            Step::Later(pause) => Some(pause),
            Step::Idle => None,
        };
        due = pause.map(|pause| Deadline::after_ns(pause.as_nanos() as u64));
    }
    Ok(End::Told)
}

/// Waits for one of `fds`. Where no call does that, it sleeps for a moment and returns `false`: all sources of events
/// must be asked. An error if it could not sleep either.
fn wait(
    service: &Service,
    fds: &[BorrowedFd<'_>],
    ready: &mut [bool],
    patience: Option<Duration>,
) -> Result<bool, Errno> {
    if waiting::readable(fds, ready, patience).is_ok() {
        return Ok(true);
    }
    // A thread that looks a thousand times a second runs only when no other wants the processor.
    service.set_urgent(false);
    waiting::nap(patience.map_or(NAP, |patience| NAP.min(patience)))?;
    ready.fill(false);
    Ok(false)
}

/// Does pending work for a slice of time. Returns the next step, after a rest where one is due.
fn work(service: &Service, shared: &Shared, state: &mut State) -> Step {
    let watch = Stopwatch::start();
    let before = progress(shared, state);
    let step = loop {
        // Work that holds no thread must not keep one from its processor: a huge page takes milliseconds to populate where
        // the host has taken the memory. A hold raises the thread. Only the look at a limit that is near is urgent.
        service.set_urgent(shared.copy_limit.is_near());
        let step = thaw::step(shared, state);
        let is_over =
            watch.elapsed_ns() >= SLICE_NS || state.plan.felt_ns > 0 || shared.is_wanted();
        if !matches!(step, Step::Again) || is_over {
            break step;
        }
    };
    service.window.close();
    // The thread wakes up as what it is now. While memory is short, the program may fill what a child's end sets free before
    // a busy machine lets this thread run.
    let is_pressing = service.gauge.was_short() && state.not_live() > 0;
    service.set_urgent(step != Step::WarmPage && (shared.copy_limit.is_near() || is_pressing));
    if !matches!(step, Step::Again) {
        return step;
    }
    if before == progress(shared, state) {
        // Work without a result must not take a processor from other threads.
        return Step::Later(Duration::from_nanos(NO_PROGRESS_NS));
    }
    if service.gauge.was_short() {
        // Each moment that it does not run costs memory.
        return Step::Again;
    }
    // The program's threads take turns with a thaw, unless one waits for it. Near a limit, copies cost more than turns.
    let is_crowded = service.look_for_crowd(watch.began_ns());
    let takes_turns = is_crowded && state.plan.awaited == 0 && !shared.copy_limit.is_near();
    let thawed_ns = std::mem::take(&mut state.plan.thawed_ns);
    let felt_ns = std::mem::take(&mut state.plan.felt_ns);
    Step::Later(rest(if takes_turns { thawed_ns } else { 0 }, felt_ns))
}

/// Numbers of which one changes with every piece of work.
fn progress(shared: &Shared, state: &State) -> [u64; 9] {
    let stale_bytes: usize = state.retired_views.iter().map(|view| view.len).sum();
    let counters = &shared.counters;
    [
        state.not_live() as u64,
        stale_bytes as u64,
        state.unmapped.bytes() as u64,
        state.plan.clean.place() as u64,
        state.borrowed_base.as_ref().map_or(0, |base| base.filled().end as u64),
        counters.thawed_pages.load(Relaxed) + counters.thawed_chunks.load(Relaxed),
        counters.thaws.load(Relaxed),
        counters.moved_chunks.load(Relaxed)
            + counters.collapsed_chunks.load(Relaxed)
            + state.files.vacated_bytes()
            + state.files.all().count() as u64,
        state.plan.density.place() as u64,
    ]
}

#[cfg(test)]
mod tests {
    use std::thread;

    use cowslip_sys::units::ByteCount;

    use super::*;
    use crate::arena::Arena;
    use crate::plan::settings::thaw::VIEW_STEP_BYTES;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn who_waits_for_the_lock_is_known_until_it_has_it() {
        let arena = Arena::new(ByteCount::mib(4)).unwrap();
        let shared = arena.shared();
        let state = shared.lock();
        assert!(!shared.is_wanted(), "it was free");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(shared.lock()));
            while !shared.is_wanted() {
                thread::yield_now();
            }
            drop(state);
            waiting.join().unwrap();
        });
        assert!(!shared.is_wanted());
    }

    #[test]
    fn a_slice_ends_after_a_step_while_others_wait() {
        let arena = Arena::new(ByteCount::mib(64)).unwrap();
        if !ensure(arena.shared()) {
            return println!("SKIPPED: userfaultfd: no service thread");
        }
        let mut slice = arena.slice::<u8>(ByteCount::mib(64).0 as usize).unwrap();
        slice.fill(1);
        let shared = arena.shared();
        let frozen = arena.freeze().unwrap();
        // The view is unmapped in two steps, and by this thread.
        shared.lock().plan.quiet.set_until(u64::MAX);
        drop(frozen);
        let mut state = shared.lock();
        state.plan.quiet.set_until(0);
        let service = shared.service(&state).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(shared.lock()));
            while !shared.is_wanted() {
                thread::yield_now();
            }
            work(&service, shared, &mut state);
            assert_eq!(state.retired_views[0].len, (64 << 20) - VIEW_STEP_BYTES);
            drop(state);
        });
        assert!(arena.wait_live(PATIENCE));
    }
}
