//! Counters of an arena, readable by its process and, from outside, by `cowslip status`.
//!
//! They live in one page of their own that `/proc/PID/maps` shows under [`PAGE_NAME`]. A forked child
//! gets a copy, so that each process counts for itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cowslip_sys::error::{During, Result};
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::units::page_size_bytes;
use cowslip_sys::{AsFd, process};

use crate::mapping::OwnPage;

/// Name of the mapping that holds the counters.
pub const PAGE_NAME: &str = "cowslip-status";

/// Beginning of the page, in any version.
const MAGIC: [u8; 7] = *b"COWSLIP";

/// The page's first word: the magic, and `C`.
const FIRST_WORD: u64 = u64::from_ne_bytes(*b"COWSLIPC");

/// FNV-1a of the counters' names in their order: two versions of Cowslip that lay the page out
/// differently have different ones.
const fn layout_of(names: &[&str]) -> u64 {
    let (mut hash, mut i) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while i < names.len() {
        let (name, mut byte) = (names[i].as_bytes(), 0);
        while byte < name.len() {
            hash = (hash ^ name[byte] as u64).wrapping_mul(0x0100_0000_01b3);
            byte += 1;
        }
        hash = (hash ^ 0xff).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counters, shared with the service thread.
        #[repr(C)]
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            first_word: AtomicU64,
            layout: AtomicU64,
            $(pub(crate) $name: AtomicU64),*
        }

        /// The counters of an arena at one moment.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Metrics {
            $($(#[$doc])* pub $name: u64),*
        }

        const LAYOUT: u64 = layout_of(&[$(stringify!($name)),*]);

        impl Counters {
            pub(crate) fn read(&self) -> Metrics {
                Metrics { $($name: self.$name.load(Relaxed)),* }
            }
        }

        impl Metrics {
            /// Reads the counters out of a copy of their page; `None` if it is not one, or one of
            /// [another version](Self::is_of_another_version).
            pub fn from_page(page: &[u8]) -> Option<Self> {
                let mut words = page.chunks_exact(8).map(|word| {
                    u64::from_ne_bytes(word.try_into().expect("eight bytes"))
                });
                if words.next()? != FIRST_WORD || words.next()? != LAYOUT {
                    return None;
                }
                Some(Self { $($name: words.next()?),* })
            }

            /// Every counter with its name.
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Process that owns the counters.
    pid,
    /// First address of the arena.
    arena_start_address,
    /// Address space of the arena.
    capacity_bytes,
    /// Bytes handed out.
    used_bytes,
    /// 1 while this process may thaw; 0 in a forked child that reads its parent's base.
    is_owner,
    /// 1 if the file behind the arena is made of huge pages (where the system has them).
    is_huge,
    /// 1 if freezes move pages out of the way and threads wait in userfaultfd; 0 if they map over, without userfaultfd.
    has_userfaultfd,
    /// Chunks of 2 MiB that are frozen now.
    frozen_chunks,
    /// Freezes, for views and for forks.
    freezes,
    /// Freezes without userfaultfd (one `MAP_FIXED` mmap per run).
    plain_freezes,
    /// Freezes refused or failed; the arena stayed as it was.
    failed_freezes,
    /// Time threads could be held up by the last freeze.
    last_freeze_ns,
    /// The longest of these.
    longest_freeze_ns,
    /// Forks.
    forks,
    /// Thaws that ended with the whole arena live.
    thaws,
    /// Chunks made live again.
    thawed_chunks,
    /// Chunks moved to another file while their base was read, because many of their pages were written.
    moved_chunks,
    /// Places of 2 MiB that chunks were moved out of and that still have readers.
    vacated_chunks,
    /// Private pages copied back into the base.
    thawed_pages,
    /// The longest time a writer could be held up by a thaw.
    longest_thaw_chunk_ns,
    /// Time from the first chunk to the last of the last whole thaw.
    last_thaw_ns,
    /// Chunks that could not be thawed at the first attempt.
    failed_thaw_chunks,
    /// The errno of the last failed chunk.
    last_thaw_errno,
    /// Moves that failed; the chunks stayed frozen.
    failed_moves,
    /// The errno of the last failed move.
    last_move_errno,
    /// Threads that waited for a freeze or a thaw.
    waits,
    /// Longest time a thread could be held up, by any of them.
    longest_stall_ns,
    /// Mappings that did not fit, or came while this process read its parent's base.
    passed_mappings,
    /// Chunks of 2 MiB that are still to be restored from an image.
    absent_chunks,
    /// Chunks that could not be restored.
    lost_chunks,
    /// Chunks of 2 MiB that were not written since a freeze and are tracked.
    kept_chunks,
    /// Pages written to such chunks just before a freeze, which copied them in its pause.
    copied_in_freeze_pages,
    /// How often a child that gives way was set to run only while a processor is idle, or like others again.
    child_turns,
    /// Bytes that left the arena and are the kernel's now.
    left_bytes,
    /// The reasons, as bits: see `Departure::of_metrics`.
    left_for,
    /// Children ended because their parent had more private copies than was allowed.
    ended_children,
    /// The lowest descriptor of the arena's files.
    file_descriptor,
    /// Its other files: bit `i` stands for the descriptor `file_descriptor + i`.
    file_descriptors,
    /// Huge pages split because much of them had been given back.
    split_chunks,
    /// Chunks of 2 MiB on base pages that were made huge because they had become dense.
    collapsed_chunks,
}

impl Metrics {
    /// True for a copy of a page that another version of Cowslip laid out: its counters are not
    /// known.
    pub fn is_of_another_version(page: &[u8]) -> bool {
        page.starts_with(&MAGIC) && Self::from_page(page).is_none()
    }

    /// The descriptors of the arena's files.
    pub fn descriptors(&self) -> impl Iterator<Item = u64> {
        let (first, all) = (self.file_descriptor, self.file_descriptors | 1);
        (0..u64::BITS)
            .filter(move |bit| all & (1 << bit) != 0)
            .map(move |bit| first + u64::from(bit))
    }
}

impl Counters {
    /// A page with them.
    pub(crate) fn create() -> Result<OwnPage<Self>> {
        const OPERATION: &str = "make the page of counters";
        let open = || memfile::memfd(PAGE_NAME, MemfdKind::Shmem, page_size_bytes() as u64);
        let file = ReservedFd::open(open).during(OPERATION)?;
        let counters =
            Self { first_word: FIRST_WORD.into(), layout: LAYOUT.into(), ..Self::default() };
        counters.pid.store(process::pid() as u64, Relaxed);
        OwnPage::new(file.as_fd(), counters).during(OPERATION)
    }

    /// Notes that a thread may have been held up for `ns`.
    pub(crate) fn stalled(&self, ns: u64) {
        self.longest_stall_ns.fetch_max(ns, Relaxed);
    }
}
