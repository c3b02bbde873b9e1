//! Copies an image from one place to another, byte for byte.
//!
//! ```text
//!  file or source ─▶ chunk by chunk, in the order of the file, each checked ─▶ sink
//!                    description, index, header last, commit
//! ```

use std::path::Path;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::units::CHUNK_BYTES;

use super::format::{ENTRY_BYTES, Entry, PAGE_BYTES};
use super::open::{Image, ReadAhead};
use super::storage::{FileSink, ImageSink};
use super::{OnProgress, Progress};
use crate::progress::tell;

const OPERATION: &str = "copy an image";
static ZEROES: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

impl Image {
    /// Writes this image, without its ancestors, to `sink`, unchanged. The stored bytes of each chunk are checked on
    /// the way.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if a chunk is damaged, [`ErrorKind::Busy`] if `progress` broke it off; errors of the
    /// image's storage and of the sink. Nothing is published then.
    pub fn copy_to(&self, sink: Box<dyn ImageSink>, progress: OnProgress<'_>) -> Result<()> {
        let header = &self.header;
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.retain(|entry| entry.total_bytes() > 0);
        entries.sort_unstable_by_key(|entry| entry.offset_bytes);
        let mut end = PAGE_BYTES as u64;
        let mut ahead = ReadAhead::new(&self.storage, entries.iter().map(|entry| entry.range()));
        let mut stored = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            if entry.offset_bytes < end {
                return Err(Error::new(ErrorKind::Unsupported, OPERATION)
                    .of_file(self.path())
                    .because("chunks of it share bytes")
                    .advise("make another with `cowslip image merge`"));
            }
            ahead.before(i);
            self.read_stored(entry, &mut stored)?;
            skip(&*sink, end, entry.offset_bytes)?;
            sink.write_at(&stored, entry.offset_bytes)?;
            end = entry.range().end;
            let now = Progress { done_bytes: end, total_bytes: header.file_bytes };
            tell(progress, OPERATION, now)?;
        }
        let [text, index] = self.sections()?;
        let mut sections =
            [(header.description.offset_bytes, text), (header.index.offset_bytes, index)];
        sections.sort_unstable_by_key(|(offset_bytes, _)| *offset_bytes);
        for (offset_bytes, bytes) in sections {
            skip(&*sink, end, offset_bytes)?;
            sink.write_at(&bytes, offset_bytes)?;
            end = end.max(offset_bytes + bytes.len() as u64);
        }
        fill(&*sink, end, header.file_bytes)?;
        sink.write_at(&header.encode_page(), 0)?;
        sink.commit(header.file_bytes)
    }

    /// Like [`Self::copy_to`], to a file, which appears whole or not at all. Its mode is 0600.
    ///
    /// # Errors
    /// Those of [`Self::copy_to`]; an error of the file system.
    pub fn copy_to_file(&self, path: &Path, progress: OnProgress<'_>) -> Result<()> {
        self.copy_to(FileSink::create(OPERATION, path)?, progress)
    }

    /// Reads the stored bytes of a chunk, checked.
    fn read_stored(&self, entry: &Entry, stored: &mut Vec<u8>) -> Result<()> {
        stored.resize(entry.total_bytes() as usize, 0);
        let what = "a chunk's checksum is wrong";
        self.read_checked(entry.offset_bytes, entry.stored, what, stored)
    }

    /// The description and the index, checked once more: the copy is of the image that was opened.
    fn sections(&self) -> Result<[Vec<u8>; 2]> {
        let header = &self.header;
        let mut text = vec![0; header.description.length as usize];
        let mut index = vec![0; header.index.length as usize * ENTRY_BYTES];
        let whats = ["the description's checksum is wrong", "the index' checksum is wrong"];
        let sections = [(&header.description, &mut text), (&header.index, &mut index)];
        for ((section, bytes), what) in sections.into_iter().zip(whats) {
            self.read_checked(section.offset_bytes, section.checksum, what, bytes)?;
        }
        Ok([text, index])
    }
}

/// Leaves a hole, or fills it where the sink keeps none.
fn skip(sink: &dyn ImageSink, from: u64, until: u64) -> Result<()> {
    if sink.keeps_holes() { Ok(()) } else { fill(sink, from, until) }
}

fn fill(sink: &dyn ImageSink, mut from: u64, until: u64) -> Result<()> {
    while from < until {
        let bytes = (until - from).min(ZEROES.len() as u64);
        sink.write_at(&ZEROES[..bytes as usize], from)?;
        from += bytes;
    }
    Ok(())
}
