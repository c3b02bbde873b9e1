//! Frozen arenas into a file.
//!
//! ```text
//!  workers: next chunk ─▶ hash, compare with the parent, encode ─┐ in any order, a few ahead
//!  caller:  ◀── in order: write, progress ◀──────────────────────┘ … description, index, header, commit
//! ```
//! Memory is bounded by a few chunks a worker. The target is replaced when everything is durable; until
//! then, whatever happens, it is what it was.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use super::chunk::{Encoded, zero_content};
use super::description::{ArenaDescription, Description, Piece, Root};
use super::format::{
    Checksum, Encoding, Entry, HEADER_BYTES, Header, Identity, PAGE_BYTES, Section,
};
use super::open::Image;
use super::{OnProgress, Progress};
use crate::error::{During, Error, ErrorKind, Result, file_error};
use crate::freeze::Frozen;
use crate::sys::durable::DurableFile;
use crate::sys::memory::Prot;
use crate::sys::process;
use crate::units::{CHUNK_BYTES, VirtRange};

const OPERATION: &str = "save an image";
/// Chunks that a worker may be ahead of the file.
const AHEAD: usize = 4;

/// How to save.
#[derive(Clone, Debug, Default)]
pub struct SaveOptions {
    /// Hold only what differs from this image.
    pub parent: Option<PathBuf>,
    /// Threads that hash and encode; 0: as many as there are processors.
    pub threads: usize,
    /// Named places; see [`Description::roots`].
    pub roots: BTreeMap<String, Root>,
    /// The program's own words; see [`Description::user`].
    pub user: BTreeMap<String, String>,
}

/// What a save came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Saved {
    /// The new image.
    pub identity: Identity,
    /// Length of the file.
    pub file_bytes: u64,
    /// Chunks of 2 MiB that it holds.
    pub chunks: u64,
    /// Chunks that are as in the parent, or zeroes, and were left out.
    pub left_out_chunks: u64,
}

/// A chunk to look at.
#[derive(Clone, Copy)]
struct Job {
    arena: usize,
    chunk: u32,
}

/// Saves the content of frozen arenas to `path`, while the program runs on. The file's mode is 0600.
///
/// # Errors
/// The file system's, [`ErrorKind::Corrupt`] for a parent that is not whole, [`ErrorKind::Usage`] for one of
/// other arenas, or for a `path` that the new image needs itself, [`ErrorKind::Busy`] if `progress` broke it off. What was at `path` is there as it was.
///
/// ```
/// use std::ops::ControlFlow;
/// use cowslip::image::{Image, SaveOptions, save};
/// use cowslip::{Arena, units::ByteCount};
///
/// let arena = Arena::new(ByteCount::mib(64))?;
/// let mut table = arena.slice::<u64>(1 << 20)?;
/// table.fill(7);
/// let frozen = arena.freeze()?;
/// table.fill(8); // goes on while the image is written
///
/// let path = std::env::temp_dir().join(format!("doc-{}.cowslip", std::process::id()));
/// let mut proceed = |_| ControlFlow::Continue(());
/// save(&[&frozen], &path, &SaveOptions::default(), &mut proceed)?;
/// Image::open(&path)?.verify(&mut proceed)?;
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), cowslip::Error>(())
/// ```
pub fn save(
    frozen: &[&Frozen],
    path: &Path,
    options: &SaveOptions,
    progress: OnProgress<'_>,
) -> Result<Saved> {
    let parent = options.parent.as_deref().map(Image::open).transpose()?;
    let description = describe(frozen, path, options)?;
    if let Some(parent) = &parent {
        let lengths = |description: &Description| {
            description.arenas.iter().map(|arena| arena.length_bytes).collect::<Vec<_>>()
        };
        if lengths(parent.description()) != lengths(&description) {
            return Err(Error::new(ErrorKind::Usage, OPERATION)
                .hint("the parent has other arenas; save without one"));
        }
        let target = path.canonicalize().ok();
        let is_target =
            |image: &Image| target.is_some() && image.path().canonicalize().ok() == target;
        if is_target(parent) || parent.ancestors().iter().any(is_target) {
            return Err(Error::new(ErrorKind::Usage, OPERATION)
                .hint(format!("{} is needed by the image that would replace it", path.display())));
        }
    }
    let known = parent.as_ref().map(Image::contents);
    let file = DurableFile::create(path).map_err(|error| file_error(OPERATION, path, error))?;
    let jobs = jobs(frozen);
    let mut writer = Writer { file: &file, path, at: PAGE_BYTES as u64, entries: Vec::new() };
    let left_out = write_chunks(frozen, &jobs, known.as_ref(), options, &mut writer, progress)?;

    let mut identity = Identity::default();
    process::fill_random(&mut identity.0).during(OPERATION)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut header = Header {
        identity,
        parent: parent.as_ref().map(Image::identity).unwrap_or_default(),
        created_unix_ns: now.as_nanos() as u64,
        ..Header::default()
    };
    let text = serde_json::to_vec_pretty(&description).expect("strings and numbers");
    header.description = writer.section(&text, text.len() as u64)?;
    let entries = std::mem::take(&mut writer.entries);
    let index: Vec<u8> = entries.iter().flat_map(Entry::encode).collect();
    header.index = writer.section(&index, entries.len() as u64)?;
    header.file_bytes = writer.at;
    writer.write(&header.encode(), 0)?;
    file.commit().map_err(|error| file_error(OPERATION, path, error))?;
    Ok(Saved {
        identity,
        file_bytes: header.file_bytes,
        chunks: entries.len() as u64,
        left_out_chunks: left_out,
    })
}

fn describe(frozen: &[&Frozen], path: &Path, options: &SaveOptions) -> Result<Description> {
    let arenas = frozen.iter().map(|frozen| {
        let range = frozen.range();
        let piece = |(part, prot): &(VirtRange, Prot)| {
            Piece::new((part.start - range.start) as u64, part.len as u64, *prot)
        };
        ArenaDescription {
            start_address: range.start as u64,
            length_bytes: range.len as u64,
            pieces: frozen.used().iter().map(piece).collect(),
        }
    });
    let parent_file = options.parent.as_ref().map(|parent| {
        let same_folder = parent.parent() == path.parent();
        let name = parent.file_name().filter(|_| same_folder).map(PathBuf::from);
        // Elsewhere: from the image's directory, not from where this program happens to be.
        let name = name.or_else(|| std::path::absolute(parent).ok());
        name.unwrap_or_else(|| parent.clone()).to_string_lossy().into_owned()
    });
    let description = Description {
        arenas: arenas.collect(),
        roots: options.roots.clone(),
        parent_file,
        user: options.user.clone(),
    };
    match description.fault() {
        Some(why) => Err(Error::new(ErrorKind::Usage, OPERATION).hint(why)),
        None => Ok(description),
    }
}

/// Every chunk that holds memory in use.
fn jobs(frozen: &[&Frozen]) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for (arena, frozen) in frozen.iter().enumerate() {
        let start = frozen.range().start;
        for (part, _) in frozen.used() {
            let outer = part.outer_aligned(CHUNK_BYTES);
            for address in (outer.start..outer.end()).step_by(CHUNK_BYTES) {
                let chunk = ((address - start) / CHUNK_BYTES) as u32;
                if jobs.last().is_none_or(|last| (last.arena, last.chunk) < (arena, chunk)) {
                    jobs.push(Job { arena, chunk });
                }
            }
        }
    }
    jobs
}

type Known = HashMap<(u32, u32), Checksum>;

/// Writes what the parent does not have: how many chunks were left out.
fn write_chunks(
    frozen: &[&Frozen],
    jobs: &[Job],
    known: Option<&Known>,
    options: &SaveOptions,
    writer: &mut Writer<'_>,
    progress: OnProgress<'_>,
) -> Result<u64> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if options.threads == 0 { processors } else { options.threads }.min(jobs.len());
    let next = AtomicUsize::new(0);
    let written = Gate::default();
    let mut left_out = 0;
    let done = std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads {
            let (sender, next, written) = (sender.clone(), &next, &written);
            scope.spawn(move || {
                let mut scratch = vec![0; CHUNK_BYTES];
                loop {
                    let i = next.fetch_add(1, Relaxed);
                    let Some(job) = jobs.get(i) else { return };
                    if !written.wait(i.saturating_sub(threads * AHEAD)) {
                        return;
                    }
                    let encoded = encode(frozen[job.arena], job.chunk, known, *job, &mut scratch);
                    if sender.send((i, encoded)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let done = (|| {
            let mut early = BTreeMap::new();
            for (at, job) in jobs.iter().enumerate() {
                let encoded: Result<Option<Encoded>> = loop {
                    if let Some(encoded) = early.remove(&at) {
                        break encoded;
                    }
                    let (i, encoded) = receiver.recv().expect("a worker for each chunk");
                    early.insert(i, encoded);
                };
                match encoded? {
                    Some(encoded) => writer.chunk(*job, &encoded)?,
                    None => left_out += 1,
                }
                written.pass(at + 1);
                let bytes = |chunks: usize| (chunks * CHUNK_BYTES) as u64;
                let now = Progress { done_bytes: bytes(at + 1), total_bytes: bytes(jobs.len()) };
                if let ControlFlow::Break(()) = progress(now) {
                    return Err(Error::new(ErrorKind::Busy, OPERATION).hint("it was broken off"));
                }
            }
            Ok(())
        })();
        written.close();
        done
    });
    done.map(|()| left_out)
}

/// A chunk as it is to be stored; `None` if a reader finds the same without it.
fn encode(
    frozen: &Frozen,
    chunk: u32,
    known: Option<&Known>,
    job: Job,
    scratch: &mut [u8],
) -> Result<Option<Encoded>> {
    let has_content = read_chunk(frozen, chunk, scratch)?;
    let before = known.and_then(|known| known.get(&(job.arena as u32, chunk)));
    let content = if has_content { Checksum::of(scratch) } else { zero_content() };
    if *before.unwrap_or(&zero_content()) == content {
        return Ok(None);
    }
    Ok(Some(if has_content { Encoded::of(scratch) } else { Encoded::zero() }))
}

/// What a chunk held at the freeze: memory in use, zeroes elsewhere. Whether it held anything.
fn read_chunk(frozen: &Frozen, chunk: u32, content: &mut [u8]) -> Result<bool> {
    let range = frozen.range();
    let start = range.start + chunk as usize * CHUNK_BYTES;
    let whole = VirtRange::new(start, CHUNK_BYTES).intersect(range);
    content.fill(0);
    let mut has_content = false;
    let from = frozen.used().partition_point(|(part, _)| part.end() <= whole.start);
    let parts = frozen.used()[from..].iter().map(|(part, _)| part.intersect(whole));
    for part in parts.take_while(|part| !part.is_empty()) {
        let at = part.start - start;
        has_content |= frozen.read_base(part, &mut content[at..at + part.len]).during(OPERATION)?;
    }
    Ok(has_content)
}

struct Writer<'a> {
    file: &'a DurableFile,
    path: &'a Path,
    at: u64,
    entries: Vec<Entry>,
}

impl Writer<'_> {
    fn write(&mut self, bytes: &[u8], at: u64) -> Result<()> {
        let written = self.file.write_at(bytes, at);
        written.map_err(|error| file_error(OPERATION, self.path, error))
    }

    fn chunk(&mut self, job: Job, encoded: &Encoded) -> Result<()> {
        let at = if encoded.encoding == Encoding::Zero { PAGE_BYTES as u64 } else { self.at };
        self.entries.push(encoded.entry(job.arena as u32, job.chunk, at));
        self.write(&encoded.bytes, at)?;
        self.at = (self.at + encoded.bytes.len() as u64).next_multiple_of(PAGE_BYTES as u64);
        Ok(())
    }

    fn section(&mut self, bytes: &[u8], length: u64) -> Result<Section> {
        let section = Section { offset_bytes: self.at, length, checksum: Checksum::of(bytes) };
        self.write(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(section)
    }
}

/// How far the file is; those too far ahead wait.
#[derive(Default)]
struct Gate {
    passed: Mutex<Option<usize>>,
    moved: Condvar,
}

const CLOSED: usize = usize::MAX;

impl Gate {
    /// Waits until so many chunks are written; `false` if no more will be.
    fn wait(&self, wanted: usize) -> bool {
        let mut passed = self.passed.lock().expect("no panic while it is locked");
        while passed.unwrap_or(0) < wanted {
            passed = self.moved.wait(passed).expect("no panic while it is locked");
        }
        *passed != Some(CLOSED)
    }

    fn pass(&self, chunks: usize) {
        *self.passed.lock().expect("no panic while it is locked") = Some(chunks);
        self.moved.notify_all();
    }

    fn close(&self) {
        self.pass(CLOSED);
    }
}

const _: () = assert!(HEADER_BYTES <= PAGE_BYTES);
