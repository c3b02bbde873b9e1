//! Writes chunks from any source into a file.
//!
//! ```text
//!  workers: next chunk ─▶ find its content ─▶ encode ─▶ place in the file, whole ones by turns ─▶ write
//!  caller:  ◀── entries in any order, progress ◀──┘  … description, index, header, commit
//! ```
//! Each worker has memory for a few chunks and one write under way, around the page cache where the file system
//! supports that: one waits for the disk while another computes. The target is replaced when everything is durable; on
//! any failure before that, it is unchanged.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cowslip_sys::error::{Error, ErrorKind, Result, errno_of};
use cowslip_sys::scheduling;
use cowslip_sys::units::CHUNK_BYTES;

use super::OnProgress;
use super::buffer::Buffer;
use super::chunk::{Encoder, Scratch};
use super::compression::{Compression, Compressor};
use super::description::Description;
use super::format::{
    Checksum, DESCRIPTION_MOST_BYTES, ENTRY_BYTES, Encoding, Entry, Header, Identity, PAGE_BYTES,
    Section,
};
use super::places::Places;
use super::storage::ImageSink;
use crate::progress::advance;

/// Lets the program's threads run first.
const NICENESS: u8 = 10;
/// Some wait for the disk while others compute, even on one processor.
const FEWEST_THREADS: usize = 4;
const MOST_THREADS: usize = 16;

/// The result of a save or a merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Saved {
    /// The new image.
    pub identity: Identity,
    /// Length of the file.
    pub file_bytes: u64,
    /// Chunks of 2 MiB that it holds.
    pub chunks: u64,
    /// Chunks that equal the parent's, or are zeroes, and were left out.
    pub left_out_chunks: u64,
    /// Chunks that were read to find that out. The others in use are known to equal the parent's, because the arena
    /// [tracks changes](crate::Arena::track_changes).
    pub read_chunks: u64,
    /// The time until it was durable.
    pub took: Duration,
}

/// A chunk to examine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Job {
    pub(super) arena: u32,
    pub(super) chunk: u32,
}

/// The source of the content of chunks.
pub(super) trait Source: Sync {
    /// The content of a chunk, in `room` or elsewhere, and its checksum; `None` if a reader finds the same without this
    /// chunk. `room` and the content are 2 MiB; the content is empty if it is all zeroes.
    fn find<'a>(
        &'a self,
        job: Job,
        room: &'a mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<(&'a [u8], Checksum)>>;
}

/// An image to be written.
pub(super) struct Plan<'a> {
    pub(super) operation: &'static str,
    pub(super) identity: Identity,
    /// Zeroes mean that it is complete.
    pub(super) parent: Identity,
    pub(super) created_unix_ns: u64,
    pub(super) description: &'a Description,
    /// Its chunks, in order.
    pub(super) jobs: &'a [Job],
    pub(super) compression: Compression,
    /// 0 means the number of processors, within 4 to 16.
    pub(super) threads: usize,
}

impl Plan<'_> {
    /// Writes the image; `sink` gets the most bytes that will be written.
    pub(super) fn write(
        &self,
        source: &impl Source,
        sink: impl FnOnce(u64) -> Result<Box<dyn ImageSink>>,
        progress: OnProgress<'_>,
    ) -> Result<Saved> {
        let began = Instant::now();
        Compressor::new(self.compression)?;
        let text = serde_json::to_vec_pretty(self.description).expect("strings and numbers");
        if text.len() as u64 > DESCRIPTION_MOST_BYTES {
            return Err(Error::new(ErrorKind::Usage, self.operation)
                .because("its description would be longer than 16 MiB")
                .advise("give it fewer roots or user's words"));
        }
        let each = CHUNK_BYTES + PAGE_BYTES + ENTRY_BYTES;
        let sink = sink((PAGE_BYTES + text.len() + self.jobs.len() * each) as u64)?;
        let chunks = Chunks {
            plan: self,
            source,
            sink: &*sink,
            next: AtomicUsize::new(0),
            places: Places::default(),
            is_aligned: sink.keeps_holes() && self.parent == Identity::default(),
            is_over: AtomicBool::new(false),
        };
        let mut entries = chunks.write(progress)?;
        entries.sort_unstable_by_key(|entry| (entry.arena, entry.chunk));

        let mut end = chunks.places.end_bytes();
        let mut tail = Vec::new();
        let mut section = |bytes: &[u8], length: usize| {
            let checksum = Checksum::from_bytes(bytes);
            let section = Section { offset_bytes: end, length: length as u64, checksum };
            tail.extend_from_slice(bytes);
            end += bytes.len() as u64;
            section
        };
        let index: Vec<u8> = entries.iter().flat_map(Entry::encode).collect();
        let header = Header {
            identity: self.identity,
            parent: self.parent,
            created_unix_ns: self.created_unix_ns,
            description: section(&text, text.len()),
            index: section(&index, entries.len()),
            file_bytes: end,
        };
        sink.write_at(&tail, header.description.offset_bytes)?;
        sink.write_at(&header.encode_page(), 0)?;
        sink.commit(header.file_bytes)?;
        Ok(Saved {
            identity: self.identity,
            file_bytes: header.file_bytes,
            chunks: entries.len() as u64,
            left_out_chunks: (self.jobs.len() - entries.len()) as u64,
            read_chunks: self.jobs.len() as u64,
            took: began.elapsed(),
        })
    }
}

/// The part that the workers share.
struct Chunks<'a, S> {
    plan: &'a Plan<'a>,
    source: &'a S,
    sink: &'a dyn ImageSink,
    next: AtomicUsize,
    places: Places,
    /// True to place whole chunks at multiples of their length. Changes since a parent are few, and packed.
    is_aligned: bool,
    is_over: AtomicBool,
}

impl<S: Source> Chunks<'_, S> {
    /// Writes all of them; returns their entries, in any order.
    fn write(&self, progress: OnProgress<'_>) -> Result<Vec<Entry>> {
        let plan = self.plan;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = match plan.threads {
            0 => processors.clamp(FEWEST_THREADS, MOST_THREADS),
            threads => threads,
        };
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            for i in 0..threads.min(plan.jobs.len()) {
                let sender = sender.clone();
                let work = move || self.work(&sender);
                match std::thread::Builder::new().spawn_scoped(scope, work) {
                    Ok(_) => {}
                    Err(error) if i == 0 => {
                        return Err(Error::from_errno(plan.operation, errno_of(&error))
                            .because("no thread can be started"));
                    }
                    Err(_) => break,
                }
            }
            drop(sender);
            let written = self.gather(&receiver, progress);
            self.is_over.store(true, Relaxed);
            written
        })
    }

    fn gather(
        &self,
        receiver: &mpsc::Receiver<Result<Option<Entry>>>,
        progress: OnProgress<'_>,
    ) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for (done, entry) in (1..).zip(receiver) {
            entries.extend(entry?);
            advance(progress, self.plan.operation, done, self.plan.jobs.len())?;
        }
        Ok(entries)
    }

    fn work(&self, sender: &mpsc::Sender<Result<Option<Entry>>>) {
        scheduling::give_way(NICENESS);
        let mut worker = match Compressor::new(self.plan.compression) {
            Ok(compressor) => Worker {
                room: Buffer::new(CHUNK_BYTES),
                scratch: Scratch::default(),
                encoder: Encoder::new(compressor),
            },
            Err(error) => return drop(sender.send(Err(error))),
        };
        while !self.is_over.load(Relaxed) {
            let turn = self.next.fetch_add(1, Relaxed);
            let Some(job) = self.plan.jobs.get(turn) else { return };
            if sender.send(self.chunk(*job, turn, &mut worker)).is_err() {
                return;
            }
        }
    }

    fn chunk(&self, job: Job, turn: usize, worker: &mut Worker) -> Result<Option<Entry>> {
        let Worker { room, scratch, encoder } = worker;
        let found = self.source.find(job, room, scratch)?;
        let Some((content, checksum)) = found else {
            self.places.pass(turn);
            return Ok(None);
        };
        let (mut entry, bytes) = encoder.encode(content, checksum);
        (entry.arena, entry.chunk) = (job.arena, job.chunk);
        if entry.encoding == Encoding::Zero {
            self.places.pass(turn);
        } else {
            let is_aligned = self.is_aligned && entry.is_verbatim();
            let alignment_bytes = if is_aligned { CHUNK_BYTES } else { PAGE_BYTES } as u64;
            entry.offset_bytes = self.places.take(turn, bytes.len() as u64, alignment_bytes);
            self.sink.write_at(bytes, entry.offset_bytes)?;
        }
        Ok(Some(entry))
    }
}

/// The tools of one thread.
struct Worker {
    room: Buffer,
    scratch: Scratch,
    encoder: Encoder,
}
