//! A freeze to a view while views, children or templates of earlier freezes live.
//!
//! ```text
//!   chunks with private pages ──▶ moved to a file without readers ──▶ few left ──▶ the cut ([`super::snapshot`])
//!        ▲ one at a time, its writers wait for it     │
//!        └───────────── again ◀── more than a few ────┘
//! ```
//! A chunk without private pages has not changed since the freeze before: both views show the same place of the same file. Each
//! chunk moves once at most, and so the loop ends.

use cowslip_sys::Errno;
use cowslip_sys::error::{Error, Result};
use cowslip_sys::process;

use crate::arena::Arena;
use crate::arena::chunk::{Thawing, enter};
use crate::arena::inheritance::youngest_read;
use crate::arena::own_memory;
use crate::arena::state::{Chunk, Shared, State};
use crate::mapping::backing_file::Pages;
use crate::plan::settings::freeze::FEW_CHUNKS;
use crate::plan::task::{Pace, many_pages};

/// The most views of an arena that may live at a time. Each may hold a file.
pub const MOST_VIEWS: usize = 64;

/// True if a freeze need not wait: all chunks are live, or the written ones can be found and moved.
pub(super) fn is_ready(shared: &Shared, state: &State) -> bool {
    let serves = || shared.service(state).is_some_and(|service| !service.has_failed());
    let is_asked = || state.ask_before_thaw.is_some_and(|asks| asks());
    state.generations.view_count() < MOST_VIEWS
        && (state.not_live() == 0
            || shared.pages != Pages::Hugetlb
                && state.map.count(Chunk::Borrowed) == 0
                && serves()
                && !process::stands_in(shared.range)
                && !is_asked())
}

impl Arena {
    /// Moves the chunks of 2 MiB that were written since the last freeze out of the memory that earlier views show, one by one,
    /// while other threads go on. A [freeze](Self::freeze) begins with that; called before, it leaves the freeze little to do.
    ///
    /// ```
    /// use cowslip::{Arena, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(64))?;
    /// let mut words = arena.slice::<u64>(1 << 20)?;
    /// let first = arena.freeze()?;
    /// words.fill(1);
    /// arena.prepare_freeze()?;
    /// let second = arena.freeze()?;
    /// assert_eq!((first.slice(&words)[9], second.slice(&words)[9]), (0, 1));
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is none for a copy;
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if the program's global allocator takes its memory from the arena; or the
    /// kernel's. All content is as before.
    pub fn prepare_freeze(&self) -> Result<()> {
        move_ahead(self.shared())
    }
}

/// Moves each written chunk once, for a freeze that finds little left to do. Other threads may have the arena between two.
pub(super) fn move_ahead(shared: &Shared) -> Result<()> {
    let mut from = 0;
    loop {
        let mut state = shared.lock();
        own_memory::check("prepare a freeze", shared, &state)?;
        if state.hold().is_some() || !is_ready(shared, &state) {
            return Ok(());
        }
        if from == 0 && state.files.are_many() {
            // Threads that freeze often keep the service thread from the arena, and so from doing it.
            let others = youngest_read(shared, &mut state);
            shared.release_unread(&mut state, others);
        }
        let read = read_by_any(shared, &mut state);
        match move_next(shared, &mut state, from, read)? {
            Some(moved) => from = moved + 1,
            None => return Ok(()),
        }
    }
}

/// Moves written chunks out of the memory that earlier freezes' readers have, until few are left.
pub(super) fn move_written(shared: &Shared, state: &mut State) -> Result<()> {
    if state.not_live() == 0 {
        return Ok(());
    }
    let read = read_by_any(shared, state);
    loop {
        let (mut from, mut moved) = (0, 0);
        while let Some(chunk) = move_next(shared, state, from, read)? {
            (from, moved) = (chunk + 1, moved + 1);
        }
        if moved <= FEW_CHUNKS {
            return Ok(());
        }
    }
}

/// The youngest generation that views or other processes read.
fn read_by_any(shared: &Shared, state: &mut State) -> Option<u64> {
    let others = youngest_read(shared, state);
    others.max(state.generations.youngest_view())
}

/// Moves the first chunk from `from` on that was written, if there is one.
fn move_next(
    shared: &Shared,
    state: &mut State,
    from: usize,
    read: Option<u64>,
) -> Result<Option<usize>> {
    let is_wanted = |chunk| matches!(chunk, Chunk::Frozen | Chunk::Anonymous);
    let mut from = from;
    while let Some(run) = state.map.next_run(from, usize::MAX, is_wanted) {
        for chunk in run.clone() {
            let moved = move_if_written(shared, state, chunk, read);
            let range = shared.chunk_range(chunk, 1);
            if moved.map_err(|errno| not_moved(errno).on(range))? {
                return Ok(Some(chunk));
            }
        }
        from = run.end;
    }
    Ok(None)
}

fn move_if_written(
    shared: &Shared,
    state: &mut State,
    chunk: usize,
    read: Option<u64>,
) -> Result<bool, Errno> {
    let range = shared.chunk_range(chunk, 1);
    let service = shared.service(state).ok_or(Errno::NODEV)?;
    let is_anonymous = state.chunk(chunk) == Chunk::Anonymous;
    if state.vma_map.is_unused(range) {
        return Ok(false);
    }
    let mut private = 0;
    for (piece, _) in state.pieces(range) {
        private += service.scanner.count_private(piece, many_pages())?;
    }
    if private == 0 && !is_anonymous {
        return Ok(false);
    }
    if state.has_left(range) {
        return Err(Errno::BUSY);
    }
    let pace = if is_anonymous { Pace::AtOnce } else { Pace::new(private) };
    let target = if state.map.is_unread(chunk, read) { None } else { Some(shared.target(state)?) };
    let _blocked = enter(range)?;
    let thawing = Thawing::new(shared, &service);
    let moved = match target {
        Some(target) => thawing.move_out(state, chunk, target, pace),
        None if pace == Pace::Gently => thawing.thaw_gently(state, chunk),
        None => thawing.thaw(state, chunk..chunk + 1),
    };
    service.window.close();
    moved.map(|()| true)
}

fn not_moved(errno: Errno) -> Error {
    let error = Error::from_errno("freeze", errno);
    match errno {
        Errno::BUSY => error.because("an earlier freeze is read, and a part of it cannot be moved"),
        Errno::NFILE => error
            .because("too many earlier freezes are read")
            .advise("let views go, or wait for children"),
        _ => error
            .because("an earlier freeze is read, and what was written since is to be moved")
            .advise("let views go, or try again when there is memory for copies"),
    }
}
