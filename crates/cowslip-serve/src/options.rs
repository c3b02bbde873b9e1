//! The images that are served, and the limits.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cowslip::image::Image;
use cowslip::units::ByteCount;

/// Opens images: files, or others that the server's owner can read.
#[derive(Clone)]
pub struct Opener(Arc<Open>);

type Open = dyn Fn(&Path) -> cowslip::Result<Image> + Send + Sync;

impl Opener {
    /// An opener that calls `open`.
    pub fn new(open: impl Fn(&Path) -> cowslip::Result<Image> + Send + Sync + 'static) -> Self {
        Self(Arc::new(open))
    }

    pub(crate) fn open(&self, path: &Path) -> cowslip::Result<Image> {
        (self.0)(path)
    }
}

impl Default for Opener {
    /// Opens files.
    fn default() -> Self {
        Self::new(Image::open)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener")
    }
}

/// The images that are served, and the limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// The images.
    pub images: Vec<PathBuf>,
    /// The opener of the images.
    pub opener: Opener,
    /// Clients at a time. Further ones are refused as busy.
    pub most_clients: usize,
    /// Memory of the images held; the least recently used goes first.
    pub most_memory: ByteCount,
}
