//! The memory of a dump, restored from its image in hybrid order.

use std::ops::{ControlFlow, Range};
use std::path::Path;

use cowslip::image::{Image, RestoreOptions, Restored};
use cowslip::units::CHUNK_BYTES;
use cowslip::{ArenaSlice, Error, ErrorKind, Result};

use crate::import::ROOT;
use crate::index::Index;
use crate::pages::PAGE_BYTES;
use crate::protocol::Pages;

const OPERATION: &str = "serve a dump";

/// The memory of a dump. Requested pages come first from the image, then [recorded](RestoreOptions::record) ones, then
/// the rest.
#[derive(Debug)]
pub struct Memory {
    /// A part of `restored`, and dropped before it.
    bytes: ArenaSlice<u8>,
    restored: Restored,
    index: Index,
    image: Image,
    /// The distance from the arena's start to that of the pages.
    start_bytes: usize,
    records: bool,
}

impl Memory {
    /// Begins to restore an image that [`import`](crate::import()) wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is another image, or damaged; those of [`Image::open`] and [`Image::restore`].
    pub fn restore(path: &Path, options: &RestoreOptions) -> Result<Self> {
        let image = Image::open(path)?;
        let strange = || {
            Error::new(ErrorKind::Corrupt, OPERATION)
                .of_file(path)
                .because("it is no image of a dump")
                .advise("make one with `cowslip-criu import`")
        };
        let described = image.description();
        let root = described.roots.get(ROOT).ok_or_else(strange)?;
        let index = Index::from_words(&described.user)
            .filter(|index| index.pages().checked_mul(PAGE_BYTES) == Some(root.length_bytes))
            .filter(|index| index.pages() > 0 && root.arena == 0)
            .ok_or_else(strange)?;
        let start_bytes = root.offset_bytes as usize;
        let restored = image.restore(0, options, &mut |_| ControlFlow::Continue(()))?;
        let place = restored.root(ROOT).ok_or_else(strange)?;
        // SAFETY: the arena is this value's, which makes no other reference to its memory and only reads; the image says
        // that the range was handed out, and `adopt_slice` checks it.
        #[allow(unsafe_code)]
        let bytes = unsafe { restored.arena().adopt_slice::<u8>(place) }?;
        Ok(Self { bytes, restored, index, image, start_bytes, records: options.record })
    }

    /// Writes the record of requested pages, if the restore records. The rest of the memory comes in then.
    ///
    /// # Errors
    /// Those of [`Restored::finish_recording`].
    pub fn finish_recording(&self) -> Result<()> {
        if self.records { self.restored.finish_recording().map(drop) } else { Ok(()) }
    }

    /// Returns true if requested pages are recorded.
    pub(crate) fn records(&self) -> bool {
        self.records
    }

    /// The range of the first pages of `wanted`, with as many of the others as follow it.
    pub(crate) fn find(&self, wanted: Pages) -> Option<Range<usize>> {
        let (at, pages) =
            self.index.find(wanted.process, wanted.address / PAGE_BYTES, wanted.pages)?;
        Some((at * PAGE_BYTES) as usize..((at + pages) * PAGE_BYTES) as usize)
    }

    /// The content, to be passed to system calls only: damage is then an error, not a signal.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Reads the beginning of a range past the arena: nothing is recorded.
    pub(crate) fn read_aside<'a>(
        &self,
        range: Range<usize>,
        aside: &'a mut Aside,
    ) -> Result<&'a [u8]> {
        let at = self.start_bytes + range.start;
        let (chunk, into) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
        if aside.chunk != Some(chunk) {
            aside.chunk = None;
            aside.content.resize(CHUNK_BYTES, 0);
            self.image.read_chunk(0, chunk as u32, &mut aside.content)?;
            aside.chunk = Some(chunk);
        }
        Ok(&aside.content[into..CHUNK_BYTES.min(into + range.len())])
    }
}

/// The chunk that [`Memory::read_aside`] read last.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    chunk: Option<usize>,
    content: Vec<u8>,
}
