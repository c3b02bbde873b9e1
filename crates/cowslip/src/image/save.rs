//! Saves frozen arenas to a file.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::memory::Prot;
use cowslip_sys::process;
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

use super::OnProgress;
use super::chunk::{OF_ZEROES, Scratch};
use super::compression::Compression;
use super::description::{ArenaDescription, Description, Piece, Root};
use super::format::{Checksum, Identity};
use super::open::Image;
use super::storage::{FileSink, ImageSink};
use super::unchanged::Unchanged;
use super::write::{Job, Plan, Saved, Source};
use crate::freeze::Frozen;

const OPERATION: &str = "save an image";

/// Settings of a save.
#[derive(Clone, Debug, Default)]
pub struct SaveOptions {
    /// Hold only the differences from this image.
    pub parent: Option<PathBuf>,
    /// How to find the differences from the parent.
    pub changes: Changes,
    /// The compression of chunks.
    pub compression: Compression,
    /// Threads that hash, compress and write, with 4 to 7 MiB each; 0 means the number of
    /// processors, within 4 to 16.
    pub threads: usize,
    /// Named places; see [`Description::roots`].
    pub roots: BTreeMap<String, Root>,
    /// The program's own words; see [`Description::user`].
    pub user: BTreeMap<String, String>,
}

/// How a save finds the chunks that differ from its parent. The resulting image is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Changes {
    /// Reads and hashes only chunks that may have changed: those that the arena [tracked](crate::Arena::track_changes)
    /// since the freeze that the parent was saved from, by this process, not more than 64 images ago; otherwise
    /// everything.
    #[default]
    Tracked,
    /// Reads and hashes everything.
    Hashed,
}

/// Saves the content of frozen arenas to `path`, while the program runs on. The file's mode is 0600.
///
/// # Errors
/// An error of the file system, [`ErrorKind::Corrupt`] for a damaged parent, [`ErrorKind::Usage`] for a parent with
/// other arenas, or for a `path` that the new image needs itself, [`ErrorKind::Busy`] if `progress` broke it off. The
/// file at `path` is then unchanged.
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
    if let Some(parent) = &parent
        && (parent.is_at(path) || parent.ancestors().iter().any(|ancestor| ancestor.is_at(path)))
    {
        return Err(Error::new(ErrorKind::Usage, OPERATION)
            .because(format!("{} is needed by the image that would replace it", path.display())));
    }
    let parent_file = options.parent.as_deref().map(|parent| name_beside(parent, path));
    let parent_file = parent_file.transpose()?;
    let sink = |_| FileSink::create(OPERATION, path).map(|sink| sink as Box<dyn ImageSink>);
    save_with(frozen, sink, parent.as_ref().zip(parent_file), options, progress)
}

/// Like [`save`], to a sink instead of a file: `sink` makes it, given the most bytes that will be written. The image's
/// `parent_file` will be the last part of the path of `parent`, if there is one; [`SaveOptions::parent`] is ignored.
///
/// # Errors
/// An error of the sink, [`ErrorKind::Usage`] for a parent with other arenas, [`ErrorKind::Busy`] if `progress` broke
/// it off.
pub fn save_to(
    frozen: &[&Frozen],
    sink: impl FnOnce(u64) -> Result<Box<dyn ImageSink>>,
    parent: Option<&Image>,
    options: &SaveOptions,
    progress: OnProgress<'_>,
) -> Result<Saved> {
    let named = parent.map(|parent| {
        let name = parent.path().file_name().unwrap_or_default();
        (parent, name.to_string_lossy().into_owned())
    });
    save_with(frozen, sink, named, options, progress)
}

fn save_with(
    frozen: &[&Frozen],
    sink: impl FnOnce(u64) -> Result<Box<dyn ImageSink>>,
    parent: Option<(&Image, String)>,
    options: &SaveOptions,
    progress: OnProgress<'_>,
) -> Result<Saved> {
    let (parent, parent_file) = parent.unzip();
    let description = describe(frozen, parent_file, options)?;
    if let Some(parent) = parent {
        let lengths = |description: &Description| {
            description.arenas.iter().map(|arena| arena.length_bytes).collect::<Vec<_>>()
        };
        if lengths(parent.description()) != lengths(&description) {
            return Err(Error::new(ErrorKind::Usage, OPERATION)
                .because("the parent has other arenas")
                .advise("save without one"));
        }
    }
    let source = Memory { frozen, known: parent.map(Image::contents).unwrap_or_default() };
    let all_jobs = jobs(frozen);
    let unchanged = match (parent, options.changes) {
        (Some(parent), Changes::Tracked) => Unchanged::since(parent, frozen),
        _ => Vec::new(),
    };
    let is_unchanged = |job: &Job| {
        unchanged
            .get(job.arena as usize)
            .is_some_and(|arena| arena.is_some_and(|chunks| chunks.has(job.chunk)))
    };
    let jobs: Vec<Job> = all_jobs.iter().filter(|job| !is_unchanged(job)).copied().collect();
    let mut identity = Identity::default();
    process::fill_random(&mut identity.0).during(OPERATION)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let plan = Plan {
        operation: OPERATION,
        identity,
        parent: parent.map(Image::identity).unwrap_or_default(),
        created_unix_ns: now.as_nanos() as u64,
        description: &description,
        jobs: &jobs,
        compression: options.compression,
        threads: options.threads,
    };
    let mut saved = plan.write(&source, sink, progress)?;
    saved.left_out_chunks += (all_jobs.len() - jobs.len()) as u64;
    for (place, frozen) in frozen.iter().enumerate() {
        if let Some(handle) = frozen.handle() {
            handle.shared.lock().tracking.remember(identity.0, place, &frozen.known);
        }
    }
    Ok(saved)
}

/// The name of a parent that lies in the same folder as the image.
fn name_beside(parent: &Path, path: &Path) -> Result<String> {
    let folder = |path: &Path| match path.parent() {
        Some(folder) if folder != Path::new("") => folder.canonicalize().ok(),
        _ => Path::new(".").canonicalize().ok(),
    };
    let name = parent.file_name().filter(|_| folder(parent) == folder(path));
    name.map(|name| name.to_string_lossy().into_owned()).ok_or_else(|| {
        Error::new(ErrorKind::Usage, OPERATION)
            .of_file(parent)
            .because("the parent lies in another folder than the image")
            .advise("save the image beside it")
    })
}

fn describe(
    frozen: &[&Frozen],
    parent_file: Option<String>,
    options: &SaveOptions,
) -> Result<Description> {
    let arenas = frozen.iter().map(|frozen| {
        let range = frozen.range();
        let piece = |(part, prot): &(VirtRange, Prot)| {
            Piece::new((part.start - range.start) as u64, part.len as u64, *prot)
        };
        ArenaDescription {
            start_address: range.start as u64,
            length_bytes: range.len as u64,
            pieces: frozen.used.iter().map(piece).collect(),
        }
    });
    let description = Description {
        arenas: arenas.collect(),
        roots: options.roots.clone(),
        parent_file,
        user: options.user.clone(),
    };
    match description.fault() {
        Some(why) => Err(Error::new(ErrorKind::Usage, OPERATION).because(why)),
        None => Ok(description),
    }
}

/// Every chunk that holds memory in use.
fn jobs(frozen: &[&Frozen]) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for (arena, frozen) in (0..).zip(frozen) {
        let start = frozen.range().start;
        for (part, _) in &frozen.used {
            let outer = part.outer_aligned(CHUNK_BYTES);
            for address in (outer.start..outer.end()).step_by(CHUNK_BYTES) {
                let job = Job { arena, chunk: ((address - start) / CHUNK_BYTES) as u32 };
                if jobs.last().is_none_or(|last| *last < job) {
                    jobs.push(job);
                }
            }
        }
    }
    jobs
}

/// Frozen arenas, and the parent's checksums of them.
struct Memory<'a> {
    frozen: &'a [&'a Frozen],
    known: HashMap<(u32, u32), Checksum>,
}

impl Source for Memory<'_> {
    fn find<'a>(
        &'a self,
        job: Job,
        room: &'a mut [u8],
        _: &mut Scratch,
    ) -> Result<Option<(&'a [u8], Checksum)>> {
        let content = chunk_at(self.frozen[job.arena as usize], job.chunk, room)?;
        let now = content.map_or(OF_ZEROES, Checksum::from_bytes);
        let before = self.known.get(&(job.arena, job.chunk)).copied().unwrap_or(OF_ZEROES);
        Ok((now != before).then_some((content.unwrap_or(&[]), now)))
    }
}

/// The content of a chunk at the freeze: memory in use, zeroes elsewhere. `None` if it held nothing. It is borrowed in
/// place where possible; otherwise copied to `room`.
fn chunk_at<'a>(frozen: &'a Frozen, chunk: u32, room: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
    let range = frozen.range();
    let start = range.start + chunk as usize * CHUNK_BYTES;
    let whole = VirtRange::new(start, CHUNK_BYTES).intersect(range);
    let from = frozen.used.partition_point(|(part, _)| part.end() <= whole.start);
    let parts = frozen.used[from..].iter().map(|(part, _)| part.intersect(whole));
    let mut parts = parts.take_while(|part| !part.is_empty()).peekable();
    if parts.peek().is_some_and(|part| part.len == CHUNK_BYTES)
        && let Some(content) = frozen.base(whole).during(OPERATION)?
    {
        return Ok(Some(content));
    }
    room.fill(0);
    let mut has_content = false;
    for part in parts {
        let at = part.start - start;
        has_content |= frozen.read_base(part, &mut room[at..at + part.len]).during(OPERATION)?;
    }
    Ok(has_content.then_some(room))
}
