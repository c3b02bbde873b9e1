//! Images of stores, cached on a local disk: data that one process of a machine has read is not fetched again.
//!
//! ```text
//!  read ─▶ in the cache? ──yes──▶ a file, IDENTITY.cowslip
//!            │ no, or what is there is wrong
//!            ▼
//!          store ─▶ the same bytes into a file without a name ──every chunk is there──▶ IDENTITY.cowslip
//! ```
//! The header always comes from the store. It has the checksums of the index, which has those of the chunks: the
//! folder's content is trusted no more than a network's.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, DirBuilder, File, FileTimes};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use cowslip::Result;
use cowslip::image::{Image, ImageIdentity, ImageSource, OnArrival, Urgency};
use cowslip_sys::atomic_file::DurableFile;
use cowslip_sys::error::{Error, ErrorKind, file_error};
use cowslip_sys::{process, regular};

use crate::image::{OpenOptions, RemoteImage, find, name_of};
use crate::location::Location;
use crate::runtime::block_on;

const OPERATION: &str = "open a folder of cached images";
const SUFFIX: &str = ".cowslip";

/// A folder of images that were read from stores, of bounded size.
#[derive(Clone, Debug)]
pub struct Cache(Arc<Folder>);

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    most_bytes: u64,
    tell: fn(&str),
    /// Bytes of images that are being written.
    coming_bytes: Mutex<u64>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cache {
    /// A folder, made with mode 0700 if it does not exist, with images that take at most this many bytes of the disk.
    /// `tell` receives the reason if an image is not kept.
    ///
    /// # Errors
    /// The file system's; [`ErrorKind::Denied`] if another user may write to the folder, who could give images that were read
    /// already another content: their checksums tell of accidents, not of forgeries.
    pub fn open(folder: &Path, most_bytes: u64, tell: fn(&str)) -> Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| file_error(OPERATION, folder, error))?;
        let there = fs::metadata(folder).map_err(|error| file_error(OPERATION, folder, error))?;
        let owners = [0, process::effective_uid()];
        if !owners.contains(&there.uid()) || there.mode() & 0o022 != 0 {
            let why = "another user may write to it, and with that change what was read already";
            return Err(Error::new(ErrorKind::Denied, OPERATION).of_file(folder).because(why));
        }
        let coming_bytes = Mutex::new(0);
        Ok(Self(Arc::new(Folder { path: folder.to_owned(), most_bytes, tell, coming_bytes })))
    }

    /// Like [`open`](crate::open). Data that is read of the image is kept; data that is kept already is not read again.
    /// The least recently used images make room.
    ///
    /// # Errors
    /// Like [`open`](crate::open).
    pub fn image(&self, url: &str) -> Result<Image> {
        let location = Location::parse(url)?;
        let found = block_on(location.cancel(), find(&location, OpenOptions::default()))?;
        let opened = Arc::new(Mutex::new(Vec::new()));
        let source = CachedImage::new(found, &self.0, &opened);
        let image = Image::open_source(source)?;
        let chain = std::iter::once(&image).chain(image.ancestors());
        for (image, source) in chain.zip(locked(&opened).iter().filter_map(Weak::upgrade)) {
            source.expect(image.stored_ranges().collect());
        }
        Ok(image)
    }
}

impl Folder {
    fn file_of(&self, identity: ImageIdentity) -> PathBuf {
        self.path.join(name_of(identity))
    }

    /// The file of a kept image, which is marked as used now.
    fn find(&self, identity: ImageIdentity) -> Option<File> {
        let file = regular::open(&self.file_of(identity)).ok()?;
        let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        Some(file)
    }

    /// Begins to keep an image, if there is room for it or room can be made.
    fn begin(self: &Arc<Self>, identity: ImageIdentity, bytes: u64) -> Option<Filling> {
        let mut coming = locked(&self.coming_bytes);
        // No image goes for one that has no room even then.
        if coming.saturating_add(bytes) > self.most_bytes {
            return None;
        }
        let mut kept = self.kept().unwrap_or_default();
        kept.sort_unstable();
        let mut used: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
        let mut oldest = kept.into_iter();
        while used.saturating_add(*coming).saturating_add(bytes) > self.most_bytes {
            let (_, freed, path) = oldest.next()?;
            fs::remove_file(path).ok()?;
            used -= freed;
        }
        let target = self.file_of(identity);
        let file =
            DurableFile::create(&target).map_err(|error| self.failed(&target, error)).ok()?;
        *coming += bytes;
        let room = Room { folder: Arc::clone(self), bytes };
        Some(Filling { target, room, file, written: BTreeMap::new(), needed: None })
    }

    /// The last use, the size on disk and the path of each image.
    fn kept(&self) -> io::Result<Vec<(SystemTime, u64, PathBuf)>> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let is_image = entry.file_name().to_string_lossy().ends_with(SUFFIX);
            if let Some(metadata) =
                entry.metadata().ok().filter(|metadata| is_image && metadata.is_file())
            {
                kept.push((metadata.modified()?, metadata.blocks() * 512, entry.path()));
            }
        }
        Ok(kept)
    }

    fn failed(&self, file: &Path, error: io::Error) {
        (self.tell)(&file_error("keep an image", file, error).to_string());
    }
}

/// Bytes that are reserved for an image, until it is kept or given up.
#[derive(Debug)]
struct Room {
    folder: Arc<Folder>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        *locked(&self.folder.coming_bytes) -= self.bytes;
    }
}

/// An image that is being kept.
#[derive(Debug)]
struct Filling {
    target: PathBuf,
    room: Room,
    file: DurableFile,
    /// Maps starts of written ranges to their ends.
    written: BTreeMap<u64, u64>,
    /// The ranges that are still missing, once they are known.
    needed: Option<HashSet<(u64, u64)>>,
}

impl Filling {
    fn write(&mut self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset_bytes)?;
        let end = offset_bytes + bytes.len() as u64;
        match &mut self.needed {
            Some(needed) => drop(needed.remove(&(offset_bytes, end))),
            None => drop(self.written.insert(offset_bytes, end)),
        }
        Ok(())
    }

    fn expect(&mut self, ranges: Vec<Range<u64>>) {
        let mut needed: HashSet<_> =
            ranges.into_iter().map(|range| (range.start, range.end)).collect();
        needed.retain(|(start, end)| self.written.get(start) != Some(end));
        self.needed = Some(needed);
    }

    fn is_whole(&self) -> bool {
        self.needed.as_ref().is_some_and(HashSet::is_empty)
    }

    /// Commits in a thread of its own: no reader waits for the disk.
    fn commit(self) {
        let Self { file, target, room, .. } = self;
        let _ = std::thread::Builder::new().name("cowslip-cache".into()).spawn(move || {
            if let Err(error) = file.commit() {
                room.folder.failed(&target, error);
            }
        });
    }
}

/// An image in a store, read through the folder.
#[derive(Debug)]
struct CachedImage {
    remote: RemoteImage,
    folder: Arc<Folder>,
    /// The kept file, until it was wrong.
    kept: Mutex<Option<Kept>>,
    filling: Mutex<Option<Filling>>,
    /// This image, then those that it needs.
    opened: Arc<Mutex<Vec<Weak<Self>>>>,
}

#[derive(Debug)]
struct Kept {
    file: Arc<File>,
    /// Offsets that were read. A second read of one means that the first result was wrong.
    read: HashSet<u64>,
}

impl CachedImage {
    fn new(
        remote: RemoteImage,
        folder: &Arc<Folder>,
        opened: &Arc<Mutex<Vec<Weak<Self>>>>,
    ) -> Arc<Self> {
        let identity = remote.identity();
        let kept = identity.and_then(|identity| folder.find(identity));
        let filling = match identity {
            Some(identity) if kept.is_none() => folder.begin(identity, remote.len_bytes()),
            _ => None,
        };
        let kept = kept.map(|file| Kept { file: Arc::new(file), read: HashSet::new() });
        let image = Arc::new(Self {
            remote,
            folder: Arc::clone(folder),
            kept: Mutex::new(kept),
            filling: Mutex::new(filling),
            opened: Arc::clone(opened),
        });
        locked(opened).push(Arc::downgrade(&image));
        image
    }

    fn expect(&self, ranges: Vec<Range<u64>>) {
        self.fill(|filling| {
            filling.expect(ranges);
            Ok(())
        });
    }

    /// Changes the image that is being kept. An image that cannot be kept is still readable.
    fn fill(&self, change: impl FnOnce(&mut Filling) -> io::Result<()>) {
        let mut filling = locked(&self.filling);
        let Some(now) = &mut *filling else { return };
        match change(now) {
            Ok(()) if now.is_whole() => filling.take().into_iter().for_each(Filling::commit),
            Ok(()) => {}
            Err(error) => {
                self.folder.failed(&now.target, error);
                *filling = None;
            }
        }
    }

    /// Returns true if the range came out of the folder.
    fn read_kept(&self, buffer: &mut [u8], offset_bytes: u64) -> bool {
        let mut kept = locked(&self.kept);
        let Some(now) = &mut *kept else { return false };
        let file = Arc::clone(&now.file);
        if now.read.insert(offset_bytes) {
            drop(kept);
            if file.read_exact_at(buffer, offset_bytes).is_ok() {
                return true;
            }
            kept = locked(&self.kept);
        }
        if kept.take().is_some()
            && let Some(identity) = self.remote.identity()
        {
            let _ = fs::remove_file(self.folder.file_of(identity));
        }
        false
    }

    fn is_kept(&self) -> bool {
        locked(&self.kept).is_some()
    }
}

impl ImageSource for CachedImage {
    fn path(&self) -> &Path {
        self.remote.path()
    }

    fn len_bytes(&self) -> u64 {
        self.remote.len_bytes()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset_bytes: u64) -> Result<()> {
        if offset_bytes > 0 && self.read_kept(buffer, offset_bytes) {
            return Ok(());
        }
        self.remote.read_exact_at(buffer, offset_bytes)?;
        self.fill(|filling| filling.write(buffer, offset_bytes));
        Ok(())
    }

    fn prefetch(&self, ranges: &[Range<u64>], urgency: Urgency) {
        if !self.is_kept() {
            self.remote.prefetch(ranges, urgency);
        }
    }

    fn is_ready(&self, range: &Range<u64>) -> bool {
        self.is_kept() || self.remote.is_ready(range)
    }

    fn subscribe(&self, listener: Weak<OnArrival>) {
        self.remote.subscribe(listener);
    }

    fn prefetch_bytes(&self) -> u64 {
        self.remote.prefetch_bytes()
    }

    fn open_parent(
        &self,
        name: Option<&str>,
        identity: ImageIdentity,
    ) -> Result<Arc<dyn ImageSource>> {
        let parent = self.remote.parent(name, identity)?;
        Ok(Self::new(parent, &self.folder, &self.opened))
    }

    fn read_working_set(&self) -> Option<Vec<u8>> {
        self.remote.read_working_set()
    }

    fn write_working_set(&self, bytes: &[u8]) -> Result<()> {
        self.remote.write_working_set(bytes)
    }
}
