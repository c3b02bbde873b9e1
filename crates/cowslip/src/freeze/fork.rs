//! fork, with arenas: freeze at an instant, fork at once, thaw when no child reads the base.
//!
//! ```text
//!   prepare ──▶ locked, frozen, offered ──▶ fork ──▶ parent: child watched, unlocked
//!                                               └──▶ child: reader of the base, unlocked
//! ```
//! *Offered* means that children inherit the frozen memory, and with it the token that counts them as readers. It stays
//! so after the fork: the next fork, if it comes soon, finds all ready, and costs as much as that of an empty process.
//! The service thread withdraws the offer before it asks for readers, which it does not before [`QUIET_AFTER_FORK_NS`]
//! have passed without a fork.
//!
//! The locks are held over the fork, so that the child's copy of each arena's state is whole. The kernel's fork copies
//! no page table of an arena that was just frozen: there is none. If an earlier child still reads the base, only the
//! tables of chunks written since are copied.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::memory::{Advice, Prot};
use cowslip_sys::process;
use cowslip_sys::reserved_fd::ForkGate;

use super::method::FreezeMethod;
use super::snapshot::{self, Snapshot};
use crate::arena::Arena;
use crate::arena::child::Child;
use crate::arena::inheritance::set_inherited;
use crate::arena::own_memory;
use crate::arena::readers::UsersToken;
use crate::arena::share;
use crate::arena::state::{Chunk, ForkInheritance, Role, Shared, State};
use crate::mapping::backing_file::Pages;
use crate::memory::deferred_free::DeferredFree;
use crate::memory::departure::Departure;
use crate::memory::unmapped::Unmapped;
use crate::memory::vma_map::Usage;
use crate::thaw::{self, rest};

/// Arenas frozen and locked, about to be forked.
///
/// For code that calls `fork` itself, such as the preload library; otherwise use [`fork`](crate::fork()).
pub struct PreparedFork<'a> {
    snapshots: Vec<Snapshot<'a>>,
    /// The watched children, locked so that their list is whole in the child. Locked last: the service thread does not
    /// look at its children meanwhile.
    watched: Vec<MutexGuard<'a, Vec<Arc<Child>>>>,
    /// Closed last: a thread that opens or closes a descriptor may have the lock of an arena. Opened first, as this
    /// thread may close one.
    gate: ForkGate,
    method: Option<FreezeMethod>,
}

impl<'a> PreparedFork<'a> {
    /// Freezes live memory of `arenas` (each given once) and keeps them locked.
    ///
    /// # Errors
    /// Those of [`Arena::freeze`], but never busy: memory that is frozen already is shared with one more child. On an
    /// error the arenas are as before.
    pub fn prepare(arenas: &[&'a Arena]) -> Result<Self> {
        let mut order: Vec<&'a Arena> = arenas.to_vec();
        order.sort_by_key(|arena| arena.range().start);
        order.iter().for_each(|arena| arena.shared().wait_restored());
        let mut snapshots = Vec::with_capacity(order.len());
        for (arena, mut state) in order.iter().zip(rest::lock_while_none_is_away(&order)) {
            let shared = arena.shared();
            own_memory::check("fork with an arena", shared, &state)?;
            thaw::before_fork(shared, &mut state);
            snapshots.push(match state.role {
                Role::Owner => Snapshot::plan(shared, state, false)?,
                Role::Reader => Snapshot::nothing(shared, state),
            });
        }
        let method = if snapshots.iter().all(Snapshot::is_empty) {
            None
        } else {
            Some(snapshot::take(&mut snapshots)?)
        };
        snapshots.iter().for_each(Snapshot::have_dumped);
        // Before the fork: a thread woken after it would run before the caller goes on, and so would the child.
        snapshots.iter().for_each(tell_service);
        // Last, so that a failure before it leaves no child counted as a reader.
        snapshots.iter_mut().try_for_each(offer)?;
        let watched = snapshots.iter().map(|snapshot| share::watched(snapshot.shared)).collect();
        Ok(Self { snapshots, watched, gate: ForkGate::close(), method })
    }

    /// Like [`Self::prepare`]. Where that is refused, memory that is not frozen leaves the arenas, and the kernel copies it
    /// like any other. `tell` gets the reason.
    ///
    /// # Errors
    /// Those of [`RawArena::detach`](crate::raw::RawArena::detach). Usage errors of a freeze stay: the code that would take
    /// memory out of the arena allocates in it.
    pub fn prepare_or_leave(arenas: &[&'a Arena], tell: impl FnOnce(&Error)) -> Result<Self> {
        Self::prepare(arenas).or_else(|error| {
            if error.kind() == ErrorKind::Usage {
                return Err(error);
            }
            tell(&error);
            for arena in arenas {
                let mut state = arena.shared().lock();
                if state.role == Role::Owner {
                    arena.shared().detach_live(&mut state, Departure::Refused)?;
                }
            }
            Self::prepare(arenas)
        })
    }

    /// How the memory that was live was frozen; `None` if there was none.
    pub fn method(&self) -> Option<FreezeMethod> {
        self.method
    }

    /// True if the child gets copies of memory that other threads still write: see [`RawArena::pin`](crate::raw::RawArena::pin).
    #[must_use]
    pub fn has_copies(&self) -> bool {
        self.snapshots.iter().any(|snapshot| !snapshot.copies.is_empty())
    }

    /// True if the child empties memory itself, in [`Self::in_child`]: memory that was given to
    /// [`RawArena::wipe_on_fork`](crate::raw::RawArena::wipe_on_fork) and that the kernel does not empty. Writes there
    /// before that are lost.
    #[must_use]
    pub fn empties_in_child(&self) -> bool {
        self.snapshots
            .iter()
            .any(|snapshot| snapshot.shared.emptied_in_child(&snapshot.state).next().is_some())
    }

    /// In the parent, after the fork or its failure.
    pub fn in_parent(mut self) {
        drop(self.gate);
        for snapshot in &mut self.snapshots {
            snapshot.state.plan.quiet.begin(process::now_ns());
            snapshot.discard_view();
        }
    }

    /// In the child, before anything else uses the arenas.
    pub fn in_child(self) {
        self.become_reader(false);
    }

    /// Like [`Self::in_child`], in a child that shares the table of descriptors with its parent (`CLONE_FILES`,
    /// `clone(2)`): a descriptor that it closed would be closed for both.
    pub fn in_child_sharing_descriptors(self) {
        self.become_reader(true);
    }

    fn become_reader(mut self, shares_descriptors: bool) {
        for Snapshot { state, .. } in &self.snapshots {
            state.files.claim();
            state.users.iter().for_each(UsersToken::claim);
        }
        self.gate.begin_child(shares_descriptors);
        for mut children in self.watched {
            children.clear();
        }
        for snapshot in &mut self.snapshots {
            let state = &mut *snapshot.state;
            if state.role == Role::Owner {
                keep_place(snapshot.shared, state);
                snapshot.copies.place(snapshot.shared, state);
                state.plan.begin_child();
                state.is_thaw_paused = false;
                state.deferred_free = DeferredFree::default();
                state.tracking.is_on = false;
            }
            state.role = Role::Reader;
            snapshot.shared.forget_waiting();
            state.generations.in_child();
            state.files.in_child();
            state.zero_pages.in_child();
            if let Some(base) = &state.borrowed_base {
                base.in_child();
            }
            if shares_descriptors && let Some(users) = state.users.take() {
                // A lock on its file would be both processes'.
                users.renounce();
            }
            snapshot.shared.services.in_child();
            snapshot.shared.wipe(state);
            snapshot.shared.copy_limit.in_child();
            // Views are the parent's: the kernel left their mappings out of this process.
            state.retired_views.drain(..).for_each(|view| _ = view.leak());
            state.unmapped = Unmapped::default();
            snapshot.discard_view();
            snapshot.shared.counters.is_owner.store(0, Relaxed);
            snapshot.shared.counters.pid.store(process::pid() as u64, Relaxed);
        }
    }
}

/// Makes the service thread look at this arena when the fork is over: it finds it locked, and looks again soon. It does
/// so anyway if it looked a moment ago.
fn tell_service(snapshot: &Snapshot<'_>) {
    if !snapshot.state.plan.quiet.lasts(process::now_ns()) {
        snapshot.shared.notify(&snapshot.state);
    }
}

/// Keeps the place of live memory, which stays with the parent. The kernel would put mappings of the child's own there,
/// which would pass for the arena's, and be lost when the child becomes the owner.
fn keep_place(shared: &Shared, state: &State) {
    for run in state.map.runs(|chunk| chunk == Chunk::Live) {
        let live = state.vma_map.within(shared.chunk_range(run.start, run.len()));
        for span in live.filter(|span| matches!(span.usage, Usage::Free | Usage::Used)) {
            // The fork left it out, so that nothing is mapped there yet. It can fail only for lack of a mapping, of
            // which the parent has one more.
            let _ = shared.piece(span.range).map_anonymous(Prot::NONE);
        }
    }
}

/// Lets children have the frozen memory of an arena, and counts them as readers.
fn offer(snapshot: &mut Snapshot<'_>) -> Result<()> {
    let shared = snapshot.shared;
    // From here on the child reads their base.
    thaw::clean::end(shared, &mut snapshot.state);
    // Since Linux 7.2 the kernel refuses `DoFork` for hugetlb memory, which it is not needed for if that is new.
    let is_hugetlb = shared.pages == Pages::Hugetlb;
    let is_inherited = is_hugetlb && snapshot.has_mapped_all();
    let state = &mut *snapshot.state;
    if state.role != Role::Owner || state.not_live() == 0 || state.is_empty() {
        return Ok(());
    }
    state.files.forget_target();
    // First: every child that is forked with the memory is counted.
    state.generations.show()?;
    if state.inheritance != ForkInheritance::Whole {
        state.inheritance = ForkInheritance::Part;
        if !is_inherited {
            let offered = set_inherited(shared, state, Advice::DoFork)
                .during("let a child have the memory of an arena");
            offered.map_err(|error| match is_hugetlb {
                true => error
                    .because(
                        "since Linux 7.2 no child can get hugetlb memory that was frozen before",
                    )
                    .advise("wait until the arena is live"),
                false => error,
            })?;
        }
        state.inheritance = ForkInheritance::Whole;
    }
    state.plan.thaw.fork();
    shared.counters.forks.fetch_add(1, Relaxed);
    Ok(())
}

/// Watches a child that was forked just now.
pub(crate) fn watch_child(shared: &Shared, pid: i32) {
    shared.copy_limit.note(pid);
    if !shared.lock().plan.quiet.forks_often {
        // The service thread looks again soon after a fork, and finds it then.
        share::watch(shared, pid);
    }
}
