//! Children of a program with a `fork` that other code calls, and their later roles.

use std::sync::atomic::Ordering::Relaxed;

use cowslip_sys::error::{During, Result};
use cowslip_sys::units::ByteCount;

use super::RawArena;
use crate::arena::readers::UsersToken;
use crate::arena::share;
use crate::arena::state::{Chunk, ForkInheritance, Role, State};
use crate::freeze::{Frozen, fork};

impl RawArena<'_> {
    /// Watches the child `pid`, forked just now: its end, so that thawing starts sooner than by looking now and then,
    /// and its [share](crate::Arena::set_child_cpu_share) of the processors.
    ///
    /// Nothing is done while the program forks often: looking now and then is cheaper.
    pub fn watch_child(&self, pid: i32) {
        fork::watch_child(self.shared(), pid);
    }

    /// Keeps a view of this arena until the child `pid`, forked just now, has ended. The arena lives as long.
    ///
    /// # Errors
    /// The kernel's, if the child cannot be watched (`pidfd_open(2)`). The view is dropped then.
    pub fn keep_view(&self, pid: i32, view: Frozen) -> Result<()> {
        share::keep(self.shared(), pid, view)
    }

    /// Calls `with` with the view [kept](Self::keep_view) for the child `pid`. `None` if there is none.
    pub fn with_kept_view<T>(&self, pid: i32, with: impl FnOnce(&Frozen) -> T) -> Option<T> {
        share::with_kept(self.shared(), pid, with)
    }

    /// True if this process was forked from the arena's owner and has not become the owner itself.
    pub fn is_reader(&self) -> bool {
        // Without the lock, which the interrupted thread may have when a signal's handler asks.
        self.shared().counters.is_owner.load(Relaxed) == 0
    }

    /// In a forked child: becomes the owner of the arena if no other process has any of it, neither the one that it was
    /// forked from nor a sibling, so that it can be thawed and used in full (a daemon after its parent's exit). True if
    /// it is the owner now. An arena that ever had a template cannot be taken over.
    ///
    /// # Errors
    /// The kernel's, if parts of the arena could not be mapped again, or emptied; it stays a reader then.
    pub fn adopt(&self) -> Result<bool> {
        const OPERATION: &str = "take over an arena";
        let shared = self.shared();
        let mut state = shared.lock();
        if state.role == Role::Owner {
            return Ok(true);
        }
        // Takes the next fork's descriptor now: there may be none left then.
        let has_token = state.users.is_some() && state.generations.begin().is_ok();
        if !has_token || !state.users.as_ref().is_some_and(UsersToken::is_sole) {
            return Ok(false);
        }
        // At once: children of this process must be counted, whatever fails below. Without a token they never take
        // over.
        state.users = UsersToken::new().ok();
        // A reader that exposed a file may have ended its mapping of the token.
        state.files.look();
        if state.files.has_exposed() {
            return Ok(false);
        }
        // A child reads borrowed chunks from the lender. The parent's later changes to them are in the file.
        state.files.check_identities().during(OPERATION)?;
        for run in state.map.runs(|chunk| chunk == Chunk::Borrowed) {
            shared
                .empty_file(&state, shared.chunk_range(run.start, run.len()))
                .during(OPERATION)?;
        }
        // Live parts held nothing of ours, and the fork left them out.
        for run in state.map.runs(|chunk| chunk == Chunk::Live) {
            for (piece, prot) in state.pieces(shared.chunk_range(run.start, run.len())) {
                shared.map_live(&state, piece, prot).during(OPERATION)?;
            }
        }
        // Frozen memory is still inherited, until the next search for its readers.
        state.inheritance = ForkInheritance::Part;
        state.zero_pages.let_go();
        state.role = Role::Owner;
        let is_deferred = |state: &State, chunk: &usize| {
            state.chunk(*chunk).is_private()
                && state.vma_map.is_vacant(shared.chunk_range(*chunk, 1))
        };
        for chunk in shared.chunks_of(shared.range) {
            if is_deferred(&state, &chunk) {
                state.deferred_free.add(chunk);
            }
        }
        shared.counters.is_owner.store(1, Relaxed);
        Ok(true)
    }

    /// In a forked child that is about to have other rights: closes all descriptors by which it could reach later
    /// content of the arena. It stays a reader with the mappings that it has, and never takes the arena over. The owner
    /// makes nothing live in the files that this child maps, so that the child sees nothing of it even if it changes
    /// its mappings by system calls of its own (`mremap(2)`). That does not hold for memory of the hugetlb pool. In the
    /// owner, does nothing.
    ///
    /// # Errors
    /// The kernel's, if the owner could not be told. The descriptors are closed.
    ///
    /// ```
    /// use cowslip::{Arena, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// arena.raw().renounce()?;
    /// assert!(!arena.raw().is_reader());
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn renounce(&self) -> Result<()> {
        let mut state = self.shared().lock();
        if state.role == Role::Owner {
            return Ok(());
        }
        let state = &mut *state;
        let is_mapped = |number: &u8| state.map.private_in_file(*number) > 0;
        let mapped = state.files.all().filter(|(number, _)| is_mapped(number));
        // Each of them, even if another fails.
        let told = mapped.map(|(_, file)| file.expose()).fold(Ok(()), Result::and);
        state.files.renounce();
        if let Some(base) = &state.borrowed_base {
            base.renounce();
        }
        if let Some(users) = state.users.take() {
            users.renounce();
        }
        told.during("tell an arena's owner of a reader with other rights")
    }

    /// Ends the youngest child that still reads frozen memory before this process has more private copies than `most`
    /// because of that: by `SIGTERM` above three quarters of it, and by `SIGKILL` above it. `None`, the default, sets no
    /// limit: children cost as much memory again at most.
    ///
    /// It applies to children of this process that are forked from now on with this arena ([`crate::fork`], or
    /// [`Self::watch_child`]) and have not executed another program.
    /// [`Metrics::ended_children`](crate::Metrics::ended_children) counts those that were ended. It needs the service
    /// thread.
    ///
    /// ```
    /// use cowslip::{Arena, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// arena.raw().limit_copies_for_children(Some(ByteCount::mib(16)));
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn limit_copies_for_children(&self, most: Option<ByteCount>) {
        self.shared().copy_limit.set(most);
    }

    /// Makes the service thread call `tell` with the id of each child that it [ends](Self::limit_copies_for_children).
    /// It is for a log: it must not use this arena, or wait for another thread. Only the first of several is called.
    pub fn on_child_ended(&self, tell: fn(i32)) {
        self.shared().copy_limit.on_child_ended(tell);
    }
}
