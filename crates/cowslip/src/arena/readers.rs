//! Tells whether a base still has readers, and of which generation.
//!
//! Children, their children, children that closed every descriptor: all keep the memory mappings they were forked with,
//! and only those, until they exit, are killed, or exec. A mapping therefore counts them: a page of a memfd, the
//! *token*, mapped shared and writable while a process forks and unmapped by the parent afterwards. The kernel refuses
//! `F_SEAL_WRITE` with `EBUSY` exactly as long as such a mapping of the file exists anywhere (`fcntl(2)`): one call, no
//! bookkeeping that a `kill -9` could leave wrong.
//!
//! # Generations
//! ```text
//!   fork 1 freezes a, b ── since(a, b) = 1 ──▶ child maps token 1
//!   fork 2 freezes c    ── since(c)    = 2 ──▶ child maps token 2
//!   a chunk may be thawed, freed, reused  ⇔  no token of a generation ≥ its `since` is mapped by anybody
//! ```
//! A child cannot read chunks frozen after its fork, so they do not wait for it. A token is a descriptor: when
//! [`MOST_TOKENS`] generations are read, new children join the youngest. Its chunks then wait for more children than they
//! need to: that is safe, and only gives memory back a little later.
//!
//! Views in this process are readers too, each of the generation that it was frozen for. They have no token: their numbers are
//! kept, and a generation that comes after a view has a greater one.
//!
//! A template's base is read by processes that were not forked. Each maps a token with a [`Pin`], from a descriptor
//! that it was handed, before it maps the base: that fails if the token is spent, and otherwise the base stays.
//! Children forked from it inherit the pin along with the base.
//!
//! # Taking a file over
//! Every process that maps any part of an arena's file maps the [`UsersToken`] too, its owner from the beginning and
//! its children by inheritance. A process that has the token's file locked unmaps its own token and asks: since all
//! others keep theirs while they do not have the lock, the answer is about them. A process that ends half-way loses its
//! lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cowslip_sys::error::{During, Result, errno_of};
use cowslip_sys::memfile::{self, MemfdKind, Seals};
use cowslip_sys::memory::{Advice, Prot, Sharing};
use cowslip_sys::reserved_fd::{FileIdentity, ReservedFd, same_file};
use cowslip_sys::units::page_size_bytes;
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd};

use crate::mapping::OwnSpace;
use crate::plan::settings::children::MOST_TOKENS;

const READERS: &str = "cowslip-readers";
/// Seals by which a reader keeps others from mapping a token, or its owner from asking.
const SPOILING: Seals = Seals::FUTURE_WRITE.union(Seals::SEAL);

#[derive(Debug)]
struct Token {
    /// First: it is unmapped before the file is closed.
    page: OwnSpace,
    file: ReservedFd,
    identity: FileIdentity,
}

impl Token {
    fn new(name: &str) -> Result<Self> {
        const OPERATION: &str = "make a token for the readers of a base";
        let len = page_size_bytes();
        // A process that gets it may not make it too short for others to map.
        let open = || {
            let file = memfile::memfd(name, MemfdKind::Shmem, len as u64)?;
            memfile::seal(file.as_fd(), Seals::SHRINK | Seals::GROW).map(|()| file)
        };
        Self::on(ReservedFd::open(open).during(OPERATION)?).during(OPERATION)
    }

    fn on(file: ReservedFd) -> Result<Self, Errno> {
        let len = page_size_bytes();
        let identity = FileIdentity::from_fd(file.as_fd())?;
        Ok(Self { file, identity, page: OwnSpace::reserve_apart(len, len)? })
    }

    /// True if the program left its descriptor alone: otherwise we would change a file of the program's.
    fn is_there(&self) -> bool {
        same_file(self.fd(), self.identity)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// `EPERM` if the token is spent.
    fn map(&self) -> Result<(), Errno> {
        // Writable: otherwise newer kernels map a spent token too.
        self.page.map_file(self.fd(), 0, Sharing::Shared, Prot::RW)
    }

    /// Unmaps it; its page stays reserved.
    fn unmap(&self) -> Result<(), Errno> {
        self.page.map_anonymous(Prot::NONE)
    }

    /// True if any process maps it. Once it was false, it stays false: the token is spent.
    fn is_mapped(&self) -> bool {
        // Any refusal counts as a mapping: that costs huge pages, not data. A token that a reader
        // has sealed counts for ever, as other readers of the base may have another one: see
        // `crate::template::offer`.
        !self.is_there()
            || self.is_intact() != Ok(true)
            || memfile::seal(self.fd(), Seals::WRITE).is_err()
    }

    /// False if a reader has sealed it.
    fn is_intact(&self) -> Result<bool, Errno> {
        Ok(!memfile::seals(self.fd())?.intersects(SPOILING))
    }

    /// A word of the page, zero at first; the token is mapped.
    fn word(&self, index: usize) -> &AtomicU64 {
        self.page.word(index * size_of::<u64>())
    }

    /// In a forked child: keeps the mapping, without a descriptor.
    fn keep_mapping(self) {
        self.page.leak();
    }
}

#[derive(Debug)]
struct Generation {
    number: u64,
    token: Token,
    /// Another process had the chance to map its token.
    is_used: bool,
    /// A reader has sealed an earlier token of it. The others are not known any more, so that all
    /// of them count for ever.
    is_kept: bool,
}

impl Generation {
    fn is_read(&self) -> bool {
        self.is_kept || self.is_used && self.token.is_mapped()
    }

    /// The token, to be mapped: another one if a reader has sealed it.
    fn token(&mut self) -> Result<&Token> {
        if self.token.is_there() && self.token.is_intact() == Ok(false) {
            self.token = Token::new(READERS)?;
            self.is_kept = true;
        }
        self.is_used = true;
        Ok(&self.token)
    }
}

/// The generations of an arena that may be read, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    alive: Vec<Generation>,
    last: u64,
    /// The generation with the token that is mapped here, for children to inherit.
    shown: Option<u64>,
    has_ended: bool,
    /// The generations that views in this process show.
    views: Vec<u64>,
}

impl Generations {
    /// The generation for a freeze now: one without children, if there is room for one more.
    ///
    /// # Errors
    /// The kernel's, if there is none at all: too many descriptors are open.
    pub(crate) fn begin(&mut self) -> Result<u64> {
        if self.alive.last().is_none_or(|youngest| youngest.is_used) {
            if self.alive.len() >= MOST_TOKENS {
                self.forget_old();
            }
            if self.alive.len() < MOST_TOKENS {
                match Token::new(READERS) {
                    Ok(token) => self.push(token),
                    // Coarser, but as correct.
                    Err(error) if self.alive.is_empty() => return Err(error),
                    Err(_) => {}
                }
            }
        }
        self.come_after_views();
        Ok(self.number())
    }

    /// The generation for a freeze that takes frozen chunks along: none has its number before. A freeze that fails knows
    /// by the number the chunks that it has changed.
    ///
    /// # Errors
    /// Those of [`Self::begin`].
    pub(crate) fn begin_anew(&mut self) -> Result<u64> {
        self.begin()?;
        if self.alive.last().is_some_and(|youngest| youngest.is_used) {
            self.renumber();
        }
        Ok(self.number())
    }

    fn come_after_views(&mut self) {
        let (youngest, view) = (self.number(), self.youngest_view());
        if view.is_some_and(|view| youngest <= view) {
            self.renumber();
        }
    }

    /// Gives the youngest a number of its own. Children that joined it before count as younger than they are: the chunks
    /// that they read are kept, and a few more.
    fn renumber(&mut self) {
        self.last += 1;
        if let Some(youngest) = self.alive.last_mut() {
            if self.shown == Some(youngest.number) {
                self.shown = Some(self.last);
            }
            youngest.number = self.last;
        }
    }

    /// Counts a view of a generation.
    pub(crate) fn begin_view(&mut self, number: u64) {
        self.views.push(number);
    }

    /// Forgets a view that is gone.
    pub(crate) fn end_view(&mut self, number: u64) {
        if let Some(place) = self.views.iter().position(|view| *view == number) {
            self.views.swap_remove(place);
        }
    }

    /// The number of views.
    pub(crate) fn view_count(&self) -> usize {
        self.views.len()
    }

    pub(crate) fn youngest_view(&self) -> Option<u64> {
        self.views.iter().copied().max()
    }

    /// True if a view shows a place that was frozen for generation `since` and moved out of after `until`.
    pub(crate) fn has_view_of(&self, since: u64, until: u64) -> bool {
        self.views.iter().any(|view| (since..=until).contains(view))
    }

    fn push(&mut self, token: Token) {
        self.last += 1;
        self.alive.push(Generation { number: self.last, token, is_used: false, is_kept: false });
    }

    /// The number of the youngest.
    fn number(&self) -> u64 {
        self.alive.last().map_or(self.last, |youngest| youngest.number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.alive.is_empty()
    }

    /// True if children forked now are counted as readers of the youngest.
    pub(crate) fn is_shown(&self) -> bool {
        self.shown.is_some() && self.shown == self.alive.last().map(|youngest| youngest.number)
    }

    /// Maps the youngest token, so that children forked from now on have it.
    pub(crate) fn show(&mut self) -> Result<()> {
        if self.is_shown() {
            return Ok(());
        }
        if self.alive.is_empty() {
            self.begin()?;
        }
        let youngest = self.alive.last_mut().expect("one was made");
        youngest.token()?.map().during("map a token")?;
        let before = self.shown.replace(youngest.number);
        // If it stays mapped it counts as read as long as this process lives.
        let _ = self.unmap(before);
        Ok(())
    }

    /// Unmaps the shown token in this process.
    pub(crate) fn hide(&mut self) -> Result<()> {
        self.unmap(self.shown).during("unmap a token")?;
        self.shown = None;
        Ok(())
    }

    fn unmap(&self, number: Option<u64>) -> Result<(), Errno> {
        let shown = self.alive.iter().find(|generation| Some(generation.number) == number);
        shown.map_or(Ok(()), |generation| generation.token.unmap())
    }

    /// The youngest generation that another process reads. Younger ones are gone then, and their chunks can be thawed.
    /// Called while no token is shown.
    pub(crate) fn youngest_read(&mut self) -> Option<u64> {
        debug_assert!(self.shown.is_none());
        // Asking spends a token. The next child needs one, and no descriptor may be available then.
        let has_spare = self.begin().is_ok() && self.alive.last().is_some_and(|last| !last.is_used);
        for i in (0..self.alive.len()).rev() {
            let is_needed = !has_spare && self.alive.len() == 1;
            let generation = &self.alive[i];
            if is_needed || generation.is_read() {
                return Some(generation.number);
            }
            if generation.is_used {
                self.alive.remove(i);
                self.has_ended = true;
            }
        }
        None
    }

    /// True if [`Self::take_ended`] has something to tell.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// True if a generation has lost its last reader since the last call.
    pub(crate) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_ended)
    }

    /// Makes room for another generation.
    fn forget_old(&mut self) {
        let (youngest, before) = (self.number(), self.alive.len());
        self.alive.retain(|old| old.number == youngest || old.is_kept || old.token.is_mapped());
        self.has_ended |= self.alive.len() < before;
    }

    /// Keeps the memory that is frozen now as long as the pin lives.
    pub(crate) fn pin(&mut self) -> Result<Pin> {
        const OPERATION: &str = "keep what is frozen now";
        let youngest = self.alive.last_mut().ok_or(Errno::SRCH).during(OPERATION)?;
        let again = youngest.token()?.fd().try_clone_to_owned();
        again.map_err(|error| errno_of(&error)).and_then(Pin::new).during(OPERATION)
    }

    /// In a forked child: it is a reader of the youngest if that was shown, for as long as it lives.
    pub(crate) fn in_child(&mut self) {
        self.alive.drain(..).for_each(|generation| generation.token.keep_mapping());
        self.views.clear();
        self.shown = None;
    }
}

/// Keeps a base: a token of its readers, mapped by a process for as long as it has a template or a
/// clone of it, and by the children that it forks.
#[derive(Debug)]
pub(crate) struct Pin(Token);

impl Pin {
    /// The errno of a token that is spent is `EPERM`.
    pub(crate) fn new(file: OwnedFd) -> Result<Self, Errno> {
        let token = Token::on(ReservedFd::hold(file))?;
        token.map()?;
        Ok(Self(token))
    }

    /// Another token for readers of the same base, and the numbers that follow this one's.
    pub(crate) fn another(&self) -> Result<Self> {
        /// Numbers that the readers of one token take at most.
        const APART: u64 = 1 << 40;
        let token = Token::new(READERS)?;
        token.map().during("map a token")?;
        token.word(0).store(self.next_number().wrapping_add(APART), Relaxed);
        Ok(Self(token))
    }

    /// False if a process has sealed the token, so that no other can map it.
    pub(crate) fn is_intact(&self) -> Result<bool, Errno> {
        if self.0.is_there() { self.0.is_intact() } else { Err(Errno::BADF) }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Like [`ReservedFd::close_early`]; the mapping stays.
    pub(crate) fn close_early(&self) {
        self.0.file.close_early();
    }

    /// Sets whether children get the mapping, and keep the base with it. By default they do.
    pub(crate) fn set_inherited(&self, advice: Advice) -> Result<(), Errno> {
        self.0.page.advise(advice)
    }

    /// A number that no other reader of this base gets.
    pub(crate) fn next_number(&self) -> u64 {
        self.0.word(0).fetch_add(1, Relaxed)
    }
}

/// Mapped by every process that maps an arena's file, but for those that have a [`Pin`] only.
#[derive(Debug)]
pub(crate) struct UsersToken {
    token: Token,
    /// Set once it could not be mapped again.
    is_lost: AtomicBool,
}

/// The word that is set if the file has readers that were not forked.
const IS_PINNED: usize = 0;

impl UsersToken {
    pub(crate) fn new() -> Result<Self> {
        let token = Token::new("cowslip-users")?;
        token.map().during("map a token")?;
        Ok(Self { token, is_lost: AtomicBool::new(false) })
    }

    /// Forbids taking the file over, for good: there will be processes that map it without this token.
    pub(crate) fn forbid_takeover(&self) {
        if !self.is_lost.load(Relaxed) {
            self.token.word(IS_PINNED).store(1, Relaxed);
        }
    }

    /// In a child: keeps the descriptor.
    pub(crate) fn claim(&self) {
        self.token.file.claim();
    }

    /// In a reader that never takes the file over: closes the descriptor and leaves the mapping.
    pub(crate) fn renounce(self) {
        self.token.keep_mapping();
    }

    /// True if this process is the only one left. The token is spent then, and a new one is needed.
    pub(crate) fn is_sole(&self) -> bool {
        let is_out = || self.is_lost.load(Relaxed) || self.token.word(IS_PINNED).load(Relaxed) != 0;
        if is_out() || !self.token.is_there() || memfile::lock(self.token.fd()).is_err() {
            return false;
        }
        let is_sole = self.token.unmap().is_ok() && !self.token.is_mapped();
        // Without its mapping this process would not be counted, and another one would take over the file that it
        // reads: it keeps the lock if that cannot be repaired.
        if is_sole || self.token.map().is_ok() {
            memfile::unlock(self.token.fd());
        } else {
            self.is_lost.store(true, Relaxed);
        }
        is_sole
    }
}
