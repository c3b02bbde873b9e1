//! Where the bytes of images are: in files, or wherever a caller reads them from and writes them to.
//!
//! ```text
//!  Image ──[read]──▶ Storage ─┬─ a file: pread(2), the page cache reads ahead
//!                             └─ [`ImageSource`]: told what will be read, and tells what has arrived
//!  save, copy ──[write_at, commit]──▶ [`ImageSink`] ── a file, or what a caller makes of it
//! ```

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use cowslip_sys::atomic_file::DurableFile;
use cowslip_sys::error::{Result, file_error};
use cowslip_sys::{AsFd, memfile};

use super::format::Identity;

/// How soon a range is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// In its turn.
    Soon,
    /// Somebody waits for it.
    Now,
}

/// Is called when a range that was [prefetched](ImageSource::prefetch) is ready.
pub type OnArrival = dyn Fn() + Send + Sync;

/// An image that is no file: what a reader needs of it. Nothing that it returns is trusted: everything is checked
/// before it is used, and asked for again if it is wrong.
pub trait ImageSource: fmt::Debug + Send + Sync {
    /// What messages call it.
    fn path(&self) -> &Path;

    /// Its length.
    fn len_bytes(&self) -> u64;

    /// Fills `buffer` from an offset on, and waits for it as long as that takes.
    ///
    /// # Errors
    /// It cannot be had, or the image is not the one any more that was opened.
    fn read_exact_at(&self, buffer: &mut [u8], offset_bytes: u64) -> Result<()>;

    /// Begins to fetch ranges that will be read, each as it is and once, in about this order. It does not wait,
    /// and calls no listener before it returns. A range that was named before may become urgent.
    fn prefetch(&self, ranges: &[Range<u64>], urgency: Urgency);

    /// Whether a range that was prefetched can be read, or its error had, without a wait. A range that was not
    /// prefetched is ready: nothing will arrive.
    fn is_ready(&self, range: &Range<u64>) -> bool;

    /// Has `listener` called after a range has become ready, from another thread, as long as it is there.
    fn subscribe(&self, listener: Weak<OnArrival>);

    /// How many bytes shall be prefetched, at most, and not yet read.
    fn prefetch_bytes(&self) -> u64;

    /// The image that this one needs: of this identity, and beside it under this name when it was saved.
    ///
    /// # Errors
    /// There is none.
    fn open_parent(&self, name: Option<&str>, identity: Identity) -> Result<Arc<dyn ImageSource>>;

    /// What [`Self::write_working_set`] kept; `None` if there is nothing.
    fn read_working_set(&self) -> Option<Vec<u8>>;

    /// Keeps which chunks were touched first, beside the image.
    ///
    /// # Errors
    /// It cannot be written.
    fn write_working_set(&self, bytes: &[u8]) -> Result<()>;
}

/// Where an image is written to. It is dropped without [`Self::commit`] if that is broken off: then nobody
/// ever sees it.
pub trait ImageSink: Send + Sync {
    /// What messages call it.
    fn path(&self) -> &Path;

    /// Whether bytes that are never written are zeroes, and cost nothing. If not, every byte is written, and whole
    /// chunks do not lie where they could be mapped by huge pages.
    fn keeps_holes(&self) -> bool {
        false
    }

    /// Writes all of `bytes`, from any thread. No byte is written twice, and they come roughly in order; the first
    /// 4096, which hold the header, come last.
    ///
    /// # Errors
    /// They cannot be written.
    fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> Result<()>;

    /// Everything was written, `file_bytes` in all: publishes the image, durably, in place of what was there.
    ///
    /// # Errors
    /// It cannot be published; what was there is as it was.
    fn commit(self: Box<Self>, file_bytes: u64) -> Result<()>;
}

/// A file that takes its name when it is whole.
pub(super) struct FileSink {
    operation: &'static str,
    path: PathBuf,
    file: DurableFile,
}

impl FileSink {
    pub(super) fn create(operation: &'static str, path: &Path) -> Result<Box<Self>> {
        let file = DurableFile::create(path).map_err(|error| file_error(operation, path, error))?;
        Ok(Box::new(Self { operation, path: path.to_owned(), file }))
    }
}

impl ImageSink for FileSink {
    fn path(&self) -> &Path {
        &self.path
    }

    fn keeps_holes(&self) -> bool {
        true
    }

    fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> Result<()> {
        let written = self.file.write_at(bytes, offset_bytes);
        written.map_err(|error| file_error(self.operation, &self.path, error))
    }

    fn commit(self: Box<Self>, _: u64) -> Result<()> {
        let Self { operation, path, file } = *self;
        file.commit().map_err(|error| file_error(operation, &path, error))
    }
}

/// Where an image is read from.
#[derive(Clone, Debug)]
pub(super) enum Storage {
    File(Arc<File>),
    Source(Arc<dyn ImageSource>),
}

impl Storage {
    pub(super) fn len_bytes(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.metadata()?.len()),
            Self::Source(source) => Ok(source.len_bytes()),
        }
    }

    pub(super) fn read_exact_at(
        &self,
        operation: &'static str,
        path: &Path,
        buffer: &mut [u8],
        offset_bytes: u64,
    ) -> Result<()> {
        match self {
            Self::File(file) => file
                .read_exact_at(buffer, offset_bytes)
                .map_err(|error| file_error(operation, path, error)),
            Self::Source(source) => source.read_exact_at(buffer, offset_bytes),
        }
    }

    /// How often bytes that are wrong are read once more: on its way here a range may be damaged.
    pub(super) fn rereads(&self) -> u32 {
        match self {
            Self::File(_) => 0,
            Self::Source(_) => 7,
        }
    }

    pub(super) fn file(&self) -> Option<&File> {
        match self {
            Self::File(file) => Some(file),
            Self::Source(_) => None,
        }
    }

    pub(super) fn source(&self) -> Option<&Arc<dyn ImageSource>> {
        match self {
            Self::File(_) => None,
            Self::Source(source) => Some(source),
        }
    }

    pub(super) fn prefetch(&self, ranges: &[Range<u64>], urgency: Urgency) {
        match self {
            Self::File(file) => {
                for range in ranges {
                    memfile::will_need(file.as_fd(), range.start, range.end - range.start);
                }
            }
            Self::Source(source) => source.prefetch(ranges, urgency),
        }
    }
}
