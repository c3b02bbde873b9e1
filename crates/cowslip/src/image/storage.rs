//! The storage of images: files, or sources and sinks that a caller provides.
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
    /// A thread waits for it.
    Now,
}

/// Called when a [prefetched](ImageSource::prefetch) range is ready.
pub type OnArrival = dyn Fn() + Send + Sync;

/// An image that is not a file, as its reader needs it. Its results are not trusted: everything is checked before it is
/// used, and requested again if it is wrong.
pub trait ImageSource: fmt::Debug + Send + Sync {
    /// Its name in messages.
    fn path(&self) -> &Path;

    /// Its length.
    fn len_bytes(&self) -> u64;

    /// Fills `buffer` from an offset on, waiting as long as that takes.
    ///
    /// # Errors
    /// The range is unavailable, or the image is no longer the one that was opened.
    fn read_exact_at(&self, buffer: &mut [u8], offset_bytes: u64) -> Result<()>;

    /// Begins to fetch ranges that will be read, each as given and once, in about this order. It does not wait, and
    /// calls no listener before it returns. A range that was named before may become urgent.
    fn prefetch(&self, ranges: &[Range<u64>], urgency: Urgency);

    /// Returns true if a prefetched range, or its error, can be read without waiting. A range that was not prefetched
    /// is ready: nothing will arrive.
    fn is_ready(&self, range: &Range<u64>) -> bool;

    /// Calls `listener` after a range has become ready, from another thread, as long as the listener exists.
    fn subscribe(&self, listener: Weak<OnArrival>);

    /// The most bytes to prefetch ahead of reading.
    fn prefetch_bytes(&self) -> u64;

    /// The image that this one needs: with this identity, and with this name beside it when it was saved.
    ///
    /// # Errors
    /// There is none.
    fn open_parent(&self, name: Option<&str>, identity: Identity) -> Result<Arc<dyn ImageSource>>;

    /// The bytes that [`Self::write_working_set`] stored; `None` if there are none.
    fn read_working_set(&self) -> Option<Vec<u8>>;

    /// Stores which chunks were touched first, beside the image.
    ///
    /// # Errors
    /// The working set cannot be written.
    fn write_working_set(&self, bytes: &[u8]) -> Result<()>;
}

/// The destination of an image. If the write is broken off, it is dropped without [`Self::commit`] and must never
/// become visible.
pub trait ImageSink: Send + Sync {
    /// Its name in messages.
    fn path(&self) -> &Path;

    /// Returns true if bytes that are never written read as zeroes, and cost nothing. If not, every byte is written,
    /// and whole chunks are not aligned for mapping by huge pages.
    fn keeps_holes(&self) -> bool {
        false
    }

    /// Writes all of `bytes`, from any thread. No byte is written twice, and they come roughly in order; the first
    /// 4096, which hold the header, come last.
    ///
    /// # Errors
    /// The bytes cannot be written.
    fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> Result<()>;

    /// Called when everything was written, `file_bytes` in all: publishes the image, durably, in place of the old one.
    ///
    /// # Errors
    /// The image cannot be published; the old one is unchanged.
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

/// The storage that an image is read from.
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

    /// How often wrong bytes are read again: a range may have been damaged in transit.
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
