//! Merges a chain of images into one.

use std::collections::HashMap;
use std::path::Path;

use cowslip_sys::error::{Error, ErrorKind, Result};

use super::OnProgress;
use super::chunk::Scratch;
use super::compression::Compression;
use super::description::Description;
use super::format::{Checksum, Identity};
use super::open::Image;
use super::storage::{FileSink, ImageSink};
use super::write::{Job, Plan, Saved, Source};

const OPERATION: &str = "merge a chain of images";

/// Settings of a merge.
#[derive(Clone, Debug, Default)]
pub struct MergeOptions {
    /// The compression of chunks.
    pub compression: Compression,
    /// Threads that read, check, compress and write, with 4 to 9 MiB each; 0 means the number of
    /// processors, within 4 to 16.
    pub threads: usize,
}

/// Writes the joint content of `image` and the images that it needs to `path`, as an image that needs no other;
/// everything is checked while it is read. The new image has the identity of `image`, because it holds the same memory
/// of the same instant: its children, and the records of its use, stay valid if it takes its place, and `path` may be
/// its own.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if a chunk is damaged, [`ErrorKind::Usage`] for the `path` of an image that `image` needs,
/// [`ErrorKind::Busy`] if `progress` broke it off; an error of the file system. The file at `path` is then unchanged.
///
/// ```
/// use std::ops::ControlFlow;
/// use cowslip::image::{Image, MergeOptions, SaveOptions, merge, save};
/// use cowslip::{Arena, units::ByteCount};
///
/// # let folder = std::env::temp_dir();
/// # let [monday, tuesday] = ["monday", "tuesday"].map(|day| folder.join(format!("{day}-{}", std::process::id())));
/// let arena = Arena::new(ByteCount::mib(64))?;
/// let mut proceed = |_| ControlFlow::Continue(());
/// let frozen = arena.freeze()?;
/// save(&[&frozen], &monday, &SaveOptions::default(), &mut proceed)?;
/// let options = SaveOptions { parent: Some(monday.clone()), ..SaveOptions::default() };
/// save(&[&frozen], &tuesday, &options, &mut proceed)?;
///
/// merge(&Image::open(&tuesday)?, &tuesday, &MergeOptions::default(), &mut proceed)?;
/// # std::fs::remove_file(&monday).unwrap();
/// assert!(Image::open(&tuesday)?.ancestors().is_empty());
/// # std::fs::remove_file(&tuesday).unwrap();
/// # Ok::<(), cowslip::Error>(())
/// ```
pub fn merge(
    image: &Image,
    path: &Path,
    options: &MergeOptions,
    progress: OnProgress<'_>,
) -> Result<Saved> {
    if image.ancestors().iter().any(|ancestor| ancestor.is_at(path)) {
        return Err(Error::new(ErrorKind::Usage, OPERATION)
            .because(format!("{} is needed by the image that is merged", path.display())));
    }
    let sink = |_| FileSink::create(OPERATION, path).map(|sink| sink as Box<dyn ImageSink>);
    merge_to(image, sink, options, progress)
}

/// Like [`merge`], to a sink instead of a file: `sink` makes it, given the most bytes that will be
/// written.
///
/// # Errors
/// Those of [`merge`]; an error of the sink.
pub fn merge_to(
    image: &Image,
    sink: impl FnOnce(u64) -> Result<Box<dyn ImageSink>>,
    options: &MergeOptions,
    progress: OnProgress<'_>,
) -> Result<Saved> {
    let contents = image.contents();
    let mut jobs: Vec<Job> = contents.keys().map(|&(arena, chunk)| Job { arena, chunk }).collect();
    jobs.sort_unstable();
    let description = Description { parent_file: None, ..image.description().clone() };
    let plan = Plan {
        operation: OPERATION,
        identity: image.identity(),
        parent: Identity::default(),
        created_unix_ns: image.summary().created_unix_ns,
        description: &description,
        jobs: &jobs,
        compression: options.compression,
        threads: options.threads,
    };
    plan.write(&Chain { image, contents }, sink, progress)
}

struct Chain<'a> {
    image: &'a Image,
    contents: HashMap<(u32, u32), Checksum>,
}

impl Source for Chain<'_> {
    fn find<'a>(
        &'a self,
        job: Job,
        room: &'a mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<(&'a [u8], Checksum)>> {
        self.image.read_chunk_with(scratch, job.arena, job.chunk, room)?;
        let checksum = self.contents.get(&(job.arena, job.chunk));
        Ok(checksum.map(|checksum| (&*room, *checksum)))
    }
}
