//! The settings of a restore.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::units::{ByteCount, VirtRange};

use crate::arena::{Arena, ArenaBuilder, Backing};
use crate::image::description::ArenaDescription;
use crate::template::Place;

pub(super) const OPERATION: &str = "restore an image";
/// More threads than this would only wait for one another.
const MOST_THREADS: usize = 16;

/// The way in which an image becomes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// The arena can be used at once. Touched chunks are brought in first, then those that were touched first when that
    /// was [recorded](RestoreOptions::record), then the rest. Needs userfaultfd for kernel faults; without it the
    /// restore is eager.
    #[default]
    Hybrid,
    /// Everything, by several threads, before the arena is returned; even a server's memory is copied.
    Eager,
    /// Maps memory of a [server](RestoreOptions::via) that already holds the image: see [`crate::Template::restore`].
    /// Memory that is not written much stays there until [`Restored::wait`](super::Restored::wait). A restore chooses this by itself;
    /// requesting it is the same as requesting hybrid.
    Resident,
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hybrid => "hybrid",
            Self::Eager => "eager",
            Self::Resident => "resident",
        })
    }
}

/// The server that a restore asks for an image before it reads the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Via {
    /// The `cowslip serve` with the socket in the environment variable `COWSLIP_SERVE`. If there is none, or it does
    /// not have the image, the file is read.
    #[default]
    Environment,
    /// The one at this socket, which must have it.
    Server(PathBuf),
    /// None: the file is read.
    File,
}

/// Receives the addresses that could not be restored and the error, before any thread gets the `SIGBUS`. It is called
/// in a thread of the library and may use neither the arena nor its memory.
#[derive(Clone)]
pub struct OnDamage(pub(super) Arc<Tell>);

type Tell = dyn Fn(&Error, VirtRange) + Send + Sync;

impl OnDamage {
    /// Makes one that calls `tell`.
    pub fn new(tell: impl Fn(&Error, VirtRange) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }
}

impl fmt::Debug for OnDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDamage")
    }
}

/// Settings of a restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// The way in which the image becomes memory.
    pub strategy: Strategy,
    /// The place of the arena: at [`Place::Original`] pointers into it stay valid.
    pub place: Place,
    /// The backing of its memory: huge pages or base pages.
    pub backing: Backing,
    /// Threads that read; 0 means the number of processors.
    pub threads: usize,
    /// Brings in only touched chunks, and remembers their order, until
    /// [`Restored::finish_recording`](super::Restored::finish_recording). Only hybrid restores record.
    pub record: bool,
    /// The server to ask first, which may have the image in memory. A restore that records reads the file.
    pub via: Via,
    /// Called for damage that is found when the arena is already in use.
    pub on_damage: Option<OnDamage>,
}

pub(super) fn threads(wanted: usize, chunks: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if wanted == 0 { processors } else { wanted };
    threads.min(chunks).min(MOST_THREADS)
}

pub(super) fn builder(
    described: &ArenaDescription,
    options: &RestoreOptions,
) -> Result<ArenaBuilder> {
    if options.backing == Backing::Hugetlb {
        return Err(Error::new(ErrorKind::Unsupported, OPERATION)
            .because("a file of hugetlb pages cannot be written to")
            .advise("restore it with transparent huge pages"));
    }
    let builder = Arena::builder(ByteCount(described.length_bytes)).backing(options.backing);
    Ok(match options.place {
        Place::Original => builder.at(described.start_address as usize),
        Place::Anywhere => builder,
    })
}
