//! The memory of a dump, restored from its images in hybrid order.

use std::ops::{ControlFlow, Range};
use std::path::Path;

use cowslip::image::{Image, RestoreOptions, Restored};
use cowslip::{ArenaSlice, Error, ErrorKind, Result};

use crate::chain::{Aside, Chain, Part};
use crate::import::ROOT;
use crate::index::Index;
use crate::pages::PAGE_BYTES;
use crate::protocol::Pages;

const OPERATION: &str = "serve a dump";

/// The memory of a dump. Requested pages come first from its images, then [recorded](RestoreOptions::record) ones, then
/// the rest.
#[derive(Debug)]
pub struct Memory {
    /// `None` for an image of the chain that has no page of it.
    layers: Vec<Option<Layer>>,
    index: Index,
    records: bool,
}

/// An image that is being restored.
#[derive(Debug)]
struct Layer {
    /// A part of `restored`, and dropped before it.
    bytes: ArenaSlice<u8>,
    restored: Restored,
    part: Part,
}

impl Memory {
    /// Begins to restore an image that [`import`](crate::import()) wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is another image, or damaged; those of [`Image::open`] and [`Image::restore`].
    pub fn restore(path: &Path, options: &RestoreOptions) -> Result<Self> {
        Self::of_chain(Chain::alone(Image::open(path)?)?, options)
    }

    pub(crate) fn of_chain(chain: Chain, options: &RestoreOptions) -> Result<Self> {
        let Chain { parts, index } = chain;
        let layers = parts.into_iter().enumerate().map(|(number, part)| {
            index.needs(number).map(|_| Layer::restore(part, options)).transpose()
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self { layers, index, records: options.record })
    }

    /// Writes the record of requested pages, if the restore records. The rest of the memory comes in then.
    ///
    /// # Errors
    /// Those of [`Restored::finish_recording`].
    pub fn finish_recording(&self) -> Result<()> {
        let mut layers = self.layers.iter().flatten().filter(|_| self.records);
        layers.try_for_each(|layer| layer.restored.finish_recording().map(drop))
    }

    /// Returns true if requested pages are recorded.
    pub(crate) fn records(&self) -> bool {
        self.records
    }

    /// The place of the first pages of `wanted`, with as many of the others as follow it.
    pub(crate) fn find(&self, wanted: Pages) -> Option<Found<'_>> {
        let (place, pages) =
            self.index.find(wanted.process, wanted.address / PAGE_BYTES, wanted.pages)?;
        let range = (place.at * PAGE_BYTES) as usize..((place.at + pages) * PAGE_BYTES) as usize;
        Some(Found { layer: self.layers[place.image].as_ref()?, range })
    }
}

impl Layer {
    fn restore(part: Part, options: &RestoreOptions) -> Result<Self> {
        let restored = part.image.restore(0, options, &mut |_| ControlFlow::Continue(()))?;
        let place = restored.root(ROOT).ok_or_else(|| {
            let error = Error::new(ErrorKind::Corrupt, OPERATION).of_file(part.image.path());
            error.because("it does not say where its pages are")
        })?;
        // SAFETY: the arena is this value's, which makes no other reference to its memory and only reads; the image says
        // that the range was handed out, and `adopt_slice` checks it.
        #[allow(unsafe_code)]
        let bytes = unsafe { restored.arena().adopt_slice::<u8>(place) }?;
        Ok(Self { bytes, restored, part })
    }
}

/// Pages in one of the images.
pub(crate) struct Found<'a> {
    layer: &'a Layer,
    range: Range<usize>,
}

impl<'a> Found<'a> {
    /// The content, to be passed to system calls only: damage is then an error, not a signal.
    pub(crate) fn bytes(self) -> &'a [u8] {
        &self.layer.bytes[self.range]
    }

    /// Reads the beginning of it past the arena: nothing is recorded.
    pub(crate) fn read_aside<'b>(&self, aside: &'b mut Aside) -> Result<&'b [u8]> {
        aside.read(&self.layer.part, self.range.clone())
    }
}
