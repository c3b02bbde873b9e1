#![allow(unsafe_code)]
//! The point at which a program under `cowslip run` lets another process hold it: the layout of the words between them.
//!
//! ```text
//!   other process                    one of the program's threads              its child, the holder
//!     sets its registers ──────────▶ freezes, locks the arenas · Ready
//!     stops all threads · Go ──────▶ clone(2) ───────────────────────────────▶ reader of the arenas · Held
//!     lets them go on                unlocks · its own registers               waits to be stopped
//!                                    └── Failed, at each step
//! ```
//! The point is found by its mark in the library's memory. The exchange lies on the stack of the thread. If the other
//! process is killed, the thread finds it gone and goes on, or does so after [`MOST_NS`]; the holder ends.
//!
//! For a [mark](Request::Mark) the thread is ready before it freezes, so that views and the child are of one instant, and the
//! way [back](Request::RollBack) to it is:
//! ```text
//!   other process                    one of the program's threads
//!     sets its registers ──────────▶ looks for no other thread in the library · Ready
//!     stops all threads · Go ──────▶ the arenas go back to the views, no descriptor of the library changes · Back
//!     stops all threads · Leave ───▶ descriptors may change again · Left
//!     stops it, and sets its registers, and the rest of the program's memory: it never returns from the point
//! ```

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rustix::process::{Pid, test_kill_process};

use crate::reserved_fd::Table;
use crate::units::VirtRange;
use crate::{Errno, process, reserved_fd};

/// The first bytes of a point, with the version of this layout.
const MARK: [u8; 16] = *b"cowslip-hold-3\0\0";

/// The most arenas that a program has.
pub const MOST_ARENAS: usize = 8;

/// The exit code of a holder that the other process has left.
pub const LEFT_ALONE: i32 = 0xc0;

/// The longest wait for the next word.
pub const MOST_NS: u64 = 3_000_000_000;

/// The function of a point. It returns to the signal frame above its stack.
pub type Hold = extern "C" fn(&Exchange);

/// Ranges of addresses that another process reads. All zeroes: none.
#[repr(C)]
#[derive(Debug)]
pub struct Ranges([[AtomicUsize; 2]; MOST_ARENAS]);

impl Ranges {
    /// Their length, in bytes.
    pub const BYTES: usize = size_of::<Self>();

    /// None.
    pub const fn new() -> Self {
        Self([const { [const { AtomicUsize::new(0) }; 2] }; MOST_ARENAS])
    }

    /// Sets the one of this index.
    pub fn set(&self, index: usize, range: VirtRange) {
        if let Some([start, end]) = self.0.get(index) {
            start.store(range.start, Ordering::Relaxed);
            end.store(range.end(), Ordering::Release);
        }
    }

    /// Reads those of another process.
    pub fn read(bytes: &[u8; Self::BYTES]) -> Vec<VirtRange> {
        let words: Vec<usize> = words(bytes).collect();
        let ranges = words.chunks_exact(2).filter(|pair| pair[0] < pair[1]);
        ranges.map(|pair| VirtRange::between(pair[0], pair[1])).collect()
    }
}

impl Default for Ranges {
    fn default() -> Self {
        Self::new()
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let word = |bytes: &[u8]| usize::from_ne_bytes(bytes.try_into().expect("a word"));
    bytes.chunks_exact(size_of::<usize>()).map(word)
}

/// See the [module](self). It stays where it is.
#[repr(C)]
#[derive(Debug)]
#[allow(dead_code, reason = "another process reads it")]
pub struct HoldPoint {
    mark: [u8; MARK.len()],
    hold: Hold,
    arenas: &'static Ranges,
    descriptors: &'static Table,
}

/// The content of a [`HoldPoint`] of another process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundPoint {
    /// The address of the function.
    pub function: u64,
    /// The address of the arenas' [`Ranges`].
    pub arenas: u64,
    /// The address of the table of its [descriptors](reserved_fd).
    pub descriptors: u64,
}

impl HoldPoint {
    /// A point of this process.
    pub const fn new(hold: Hold, arenas: &'static Ranges) -> Self {
        Self { mark: MARK, hold, arenas, descriptors: reserved_fd::table() }
    }

    /// Finds a point in a library's memory.
    pub fn find(memory: &[u8]) -> Option<FoundPoint> {
        let is_point = |bytes: &&[u8]| bytes.starts_with(&MARK);
        let mut places = memory.windows(size_of::<Self>()).step_by(align_of::<Self>());
        let mut words = words(&places.find(is_point)?[MARK.len()..]);
        let mut word = || words.next().map(|word| word as u64);
        Some(FoundPoint { function: word()?, arenas: word()?, descriptors: word()? })
    }
}

/// The purpose of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// A holder.
    Hold,
    /// A holder, and a view of each arena that is kept until the holder ends.
    Mark,
    /// The way back to the mark that this child holds.
    RollBack(i32),
}

/// The state of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Word {
    /// The thread has not come to it.
    Asked,
    /// The arenas are frozen and locked.
    Ready,
    /// All threads are stopped: the thread forks.
    Go,
    /// The thread does not fork.
    Cancelled,
    /// In the child: its state is whole.
    Held,
    /// The thread has not forked, or could not; or the arenas are as they were.
    Failed,
    /// The arenas are those of the mark, and no thread changes the library's descriptors.
    Back,
    /// All threads are stopped, and the descriptors known.
    Leave,
    /// The thread has no lock.
    Left,
}

impl Word {
    /// Every word, by its number.
    pub const ALL: [Self; 9] = [
        Self::Asked,
        Self::Ready,
        Self::Go,
        Self::Cancelled,
        Self::Held,
        Self::Failed,
        Self::Back,
        Self::Leave,
        Self::Left,
    ];
}

/// The memory that both sides write.
#[repr(C)]
#[derive(Debug)]
pub struct Exchange {
    word: AtomicU32,
    errno: AtomicU32,
    /// The number of the other process.
    other: u64,
    /// Not 0: the thread may start others ([`Exchange::may_start`]).
    may_start: u64,
    /// [`Exchange::request`]: its kind, and the number of a child.
    request: [u32; 2],
    own: [AtomicUsize; 2],
    apart: Ranges,
}

/// The kinds of requests.
const HOLD: u32 = 0;
const MARK_IT: u32 = 1;
const ROLL_BACK: u32 = 2;

impl Exchange {
    /// Its length, in bytes.
    pub const BYTES: usize = size_of::<Self>();

    /// The bytes of one that this process [asks](Word::Asked) for.
    pub fn asked(request: Request, may_start: bool) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (kind, child) = match request {
            Request::Hold => (HOLD, 0),
            Request::Mark => (MARK_IT, 0),
            Request::RollBack(child) => (ROLL_BACK, child.cast_unsigned()),
        };
        let words = [
            (offset_of!(Self, other), process::pid() as u64),
            (offset_of!(Self, may_start), u64::from(may_start)),
            (offset_of!(Self, request), u64::from(kind) | u64::from(child) << 32),
        ];
        for (at, word) in words {
            bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Its purpose.
    pub fn request(&self) -> Request {
        match self.request {
            [MARK_IT, _] => Request::Mark,
            [ROLL_BACK, child] => Request::RollBack(child.cast_signed()),
            _ => Request::Hold,
        }
    }

    /// Returns true if the thread waits in a call of its program, outside of any allocator: it may start threads.
    pub fn may_start(&self) -> bool {
        self.may_start != 0
    }

    /// Returns true if the other process is known to have ended.
    pub fn is_alone(&self) -> bool {
        let other = Pid::from_raw(self.other as i32);
        other.is_none_or(|other| test_kill_process(other) == Err(Errno::SRCH))
    }

    /// The word.
    pub fn word(&self) -> Option<Word> {
        Word::ALL.get(self.word.load(Ordering::Acquire) as usize).copied()
    }

    /// Sets the word.
    pub fn set(&self, word: Word) {
        self.word.store(word as u32, Ordering::Release);
    }

    /// Goes from [`Word::Asked`] to [`Word::Ready`]. False if the other process has given up.
    pub fn begin(&self) -> bool {
        let (from, to) = (Word::Asked as u32, Word::Ready as u32);
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Sets the reason, and [`Word::Failed`].
    pub fn fail(&self, errno: Errno) {
        self.errno.store(errno.raw_os_error().cast_unsigned(), Ordering::Relaxed);
        self.set(Word::Failed);
    }

    /// Memory of the library's threads, which children lack: set before [`Word::Ready`].
    pub fn apart(&self) -> &Ranges {
        &self.apart
    }

    /// Sets the addresses among which all of the library's own mappings are, but for its files'; before [`Word::Ready`].
    pub fn set_own(&self, range: VirtRange) {
        self.own[0].store(range.start, Ordering::Relaxed);
        self.own[1].store(range.end(), Ordering::Release);
    }

    /// Reads the exchange of another process.
    pub fn read(bytes: &[u8; Self::BYTES]) -> FoundExchange {
        let (first, apart) = bytes.split_at(Self::BYTES - Ranges::BYTES);
        let half = |at: usize| u32::from_ne_bytes(first[at..at + 4].try_into().expect("4 bytes"));
        let own_at = offset_of!(Self, own);
        let mut own = words(&first[own_at..own_at + 16]);
        let own = own.next().zip(own.next()).filter(|(start, end)| start < end);
        const ERRNOS: core::ops::Range<u32> = 1..4096;
        let errno = Some(half(4)).filter(|errno| ERRNOS.contains(errno));
        FoundExchange {
            word: Word::ALL.get(half(0) as usize).copied(),
            errno: errno.map_or(Errno::IO, |errno| Errno::from_raw_os_error(errno.cast_signed())),
            own: own.map(|(start, end)| VirtRange::between(start, end)),
            apart: Ranges::read(apart.try_into().expect("the rest")),
        }
    }
}

/// The content of an [`Exchange`] of another process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundExchange {
    /// `None` if it is none.
    pub word: Option<Word>,
    /// The reason of [`Word::Failed`].
    pub errno: Errno,
    /// See [`Exchange::set_own`]; `None` if its mappings are not known to lie among none of the program's.
    pub own: Option<VirtRange>,
    /// See [`Exchange::apart`].
    pub apart: Vec<VirtRange>,
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn hold(_: &Exchange) {}

    fn bytes<const N: usize, T>(value: &T) -> [u8; N] {
        assert_eq!(size_of::<T>(), N);
        // SAFETY: a value without padding, of as many bytes.
        unsafe { *core::ptr::from_ref(value).cast() }
    }

    #[test]
    fn a_point_is_found_in_memory() {
        static ARENAS: Ranges = Ranges::new();
        let point = HoldPoint::new(hold, &ARENAS);
        let mut memory = vec![7; 64];
        memory.extend(bytes::<{ size_of::<HoldPoint>() }, _>(&point));
        let found = HoldPoint::find(&memory).unwrap();
        assert_eq!(found.function, hold as *const () as u64);
        assert_eq!(found.arenas, (&raw const ARENAS) as u64);
        assert_eq!(found.descriptors, core::ptr::from_ref(reserved_fd::table()) as u64);
        assert_eq!(HoldPoint::find(&memory[..memory.len() - 1]), None);
    }

    #[test]
    fn every_word_is_known_by_its_number() {
        assert_eq!(Word::ALL.len(), Word::Left as usize + 1);
        assert!(Word::ALL.iter().enumerate().all(|(i, word)| *word as usize == i));
    }

    #[test]
    fn an_exchange_is_read_as_written() {
        let other = process::pid() as u64;
        let new = || Exchange {
            word: 0.into(),
            errno: 0.into(),
            other,
            may_start: 1,
            request: [ROLL_BACK, 77],
            own: [const { AtomicUsize::new(0) }; 2],
            apart: Ranges::new(),
        };
        let exchange = new();
        assert_eq!(Exchange::asked(Request::RollBack(77), true), bytes(&exchange));
        assert_eq!(exchange.request(), Request::RollBack(77));
        assert!(exchange.may_start() && !Exchange { may_start: 0, ..new() }.may_start());
        assert_eq!(exchange.word(), Some(Word::Asked));
        assert!(!exchange.is_alone());
        assert!(Exchange { other: i32::MAX as u64, ..exchange }.is_alone());
        let exchange = new();
        let range = VirtRange::between(0x1000, 0x3000);
        exchange.apart().set(1, range);
        let own = VirtRange::between(0x8000, 0x9000);
        exchange.set_own(own);
        exchange.fail(Errno::AGAIN);
        let read = Exchange::read(&bytes(&exchange));
        assert_eq!((read.word, read.errno), (Some(Word::Failed), Errno::AGAIN));
        assert_eq!((read.own, read.apart), (Some(own), vec![range]));
    }
}
