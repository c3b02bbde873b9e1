//! Images in stores, opened for reading.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use cowslip::image::{Image, ImageIdentity, ImageSource, OnArrival, Urgency};
use cowslip::{Error, ErrorKind, Result};
use tokio::task::JoinHandle;

use crate::errors::store_error;
use crate::fetcher::Fetcher;
use crate::location::Location;
use crate::object::{Object, Refused, read_small};
use crate::pointer::{MOST_BYTES, Pointer};
use crate::runtime::{block_on, runtime};

const OPEN: &str = "open an image";
/// A pointer may change between two looks at it.
const MOST_POINTERS: usize = 4;
/// The first bytes of every image, and the place of its identity (docs/image-format.md).
const MAGIC: &[u8; 8] = b"COWSLIPI";
const IDENTITY: Range<usize> = 16..32;
/// Longer working sets are ignored.
const MOST_WORKING_SET_BYTES: u64 = 64 << 20;

/// Options for reading an image.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// The number of streams that bring bytes at once, while no reader waits for more.
    pub streams: usize,
    /// The most bytes that may have come, or be on their way, before they are read.
    pub prefetch_bytes: u64,
}

impl Default for OpenOptions {
    /// 16 streams, 256 MiB.
    fn default() -> Self {
        Self { streams: 16, prefetch_bytes: 256 << 20 }
    }
}

impl OpenOptions {
    /// Sets the number of streams.
    #[must_use]
    pub fn streams(self, streams: usize) -> Self {
        Self { streams, ..self }
    }

    /// Sets the number of bytes ahead.
    #[must_use]
    pub fn prefetch_bytes(self, prefetch_bytes: u64) -> Self {
        Self { prefetch_bytes, ..self }
    }
}

/// Opens the image at a URL, and the chain of its parents beside it, by two requests each. A [pointer](crate::Pointer)
/// is followed.
///
/// Later reads are of the object that was opened. Once another object has its name, reading the rest is an error
/// ([`ErrorKind::Vanished`]); after a restore was handed out that is damage, which is reported to `OnDamage`.
///
/// # Errors
/// Like [`Image::open`]; the store's.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use cowslip::image::RestoreOptions;
///
/// let image = cowslip_remote::open("s3://models/llama/latest")?;
/// let restored = image.restore(0, &RestoreOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// let arena = restored.arena(); // to be used at once; what is touched comes first
/// # Ok::<(), cowslip::Error>(())
/// ```
pub fn open(url: &str) -> Result<Image> {
    open_with(url, OpenOptions::default())
}

/// Like [`open`], with options.
///
/// # Errors
/// Like [`open`].
pub fn open_with(url: &str, options: OpenOptions) -> Result<Image> {
    open_location(&Location::parse(url)?, options)
}

pub(crate) fn open_location(location: &Location, options: OpenOptions) -> Result<Image> {
    let found = block_on(location.cancel(), find(location, options))?;
    Image::open_source(Arc::new(found))
}

/// Opens the image at a location, or the one that a pointer there names.
pub(crate) async fn find(location: &Location, options: OpenOptions) -> Result<RemoteImage> {
    for _ in 0..MOST_POINTERS {
        let found = RemoteImage::open(location, options).await?;
        let Some(pointer) = found.pointer() else { return Ok(found) };
        let named = location.beside(&pointer.image);
        match RemoteImage::open(&named, options).await {
            Ok(image) if image.identity().is_some_and(|identity| pointer.is_of(identity)) => {
                return Ok(image);
            }
            Err(refused) if !refused.is_missing() => return Err(refused.error),
            _ => {}
        }
    }
    Err(Error::new(ErrorKind::Corrupt, OPEN)
        .of_file(&location.name())
        .because("the image that it names is not there, or another has its name"))
}

/// An image in a store.
#[derive(Debug)]
pub(crate) struct RemoteImage {
    path: PathBuf,
    options: OpenOptions,
    fetcher: Arc<Fetcher>,
    /// Its beginning, until that is read.
    head: Mutex<Option<Bytes>>,
    beginning: Bytes,
    /// The fetch of the working set, which began when the image was opened.
    working_set: Mutex<Option<JoinHandle<Option<Bytes>>>>,
}

impl RemoteImage {
    async fn open(location: &Location, options: OpenOptions) -> Result<Self, Refused> {
        let advice = working_set_of(location);
        let working_set = runtime()?.spawn(async move {
            let found = read_small(&advice).await.ok().flatten();
            found.filter(|(_, meta)| meta.size <= MOST_WORKING_SET_BYTES).map(|(bytes, _)| bytes)
        });
        let (object, head) = Object::open(location, MOST_BYTES).await?;
        Ok(Self {
            path: location.name(),
            options,
            fetcher: Fetcher::new(object, options.streams)?,
            beginning: head.clone(),
            head: Mutex::new(Some(head)),
            working_set: Mutex::new(Some(working_set)),
        })
    }

    fn pointer(&self) -> Option<Pointer> {
        Pointer::decode(&self.beginning)
    }

    pub(crate) fn identity(&self) -> Option<ImageIdentity> {
        identity_in(&self.beginning)
    }

    /// The image that it needs; see [`ImageSource::open_parent`].
    pub(crate) fn parent(&self, name: Option<&str>, identity: ImageIdentity) -> Result<Self> {
        let location = self.fetcher.object().location();
        let names = name.map(str::to_owned).into_iter().chain([name_of(identity)]);
        let mut missing = None;
        for name in names {
            let place = location.beside(&name);
            match block_on(place.cancel(), Self::open(&place, self.options)) {
                Ok(found) if found.identity() == Some(identity) => return Ok(found),
                Ok(another) => {
                    missing.get_or_insert_with(|| {
                        Error::new(ErrorKind::Corrupt, OPEN)
                            .of_file(&another.path)
                            .because(format!("it is not the parent {identity}"))
                    });
                }
                Err(refused) if refused.is_missing() => {
                    missing.get_or_insert(refused.error);
                }
                Err(refused) => return Err(refused.error),
            }
        }
        Err(missing.expect("at least one name was tried"))
    }
}

/// The identity of the image with these first bytes.
pub(crate) fn identity_in(beginning: &[u8]) -> Option<ImageIdentity> {
    let identity = beginning.starts_with(MAGIC).then(|| beginning.get(IDENTITY))??;
    identity.try_into().ok().map(ImageIdentity)
}

/// The identity of the image at a location; `None` if there is none.
pub(crate) async fn identity_at(location: &Location) -> Result<Option<ImageIdentity>> {
    match Object::open(location, IDENTITY.end as u64).await {
        Ok((_, head)) => Ok(identity_in(&head)),
        Err(refused) if refused.is_missing() => Ok(None),
        Err(refused) => Err(refused.error),
    }
}

/// The name of a parent if something else has its own name.
pub(crate) fn name_of(identity: ImageIdentity) -> String {
    format!("{identity}.cowslip")
}

pub(crate) fn working_set_of(location: &Location) -> Location {
    location.beside(&format!("{}.working-set", location.file_name()))
}

impl ImageSource for RemoteImage {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len_bytes(&self) -> u64 {
        self.fetcher.object().len_bytes()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset_bytes: u64) -> Result<()> {
        if offset_bytes == 0
            && let Some(head) = self.head.lock().unwrap_or_else(PoisonError::into_inner).take()
            && let Some(beginning) = head.get(..buffer.len())
        {
            buffer.copy_from_slice(beginning);
            return Ok(());
        }
        self.fetcher.read(buffer, offset_bytes)
    }

    fn prefetch(&self, ranges: &[Range<u64>], urgency: Urgency) {
        self.fetcher.prefetch(ranges, urgency);
    }

    fn is_ready(&self, range: &Range<u64>) -> bool {
        self.fetcher.is_ready(range)
    }

    fn subscribe(&self, listener: Weak<OnArrival>) {
        self.fetcher.subscribe(listener);
    }

    fn prefetch_bytes(&self) -> u64 {
        self.options.prefetch_bytes
    }

    fn open_parent(
        &self,
        name: Option<&str>,
        identity: ImageIdentity,
    ) -> Result<Arc<dyn ImageSource>> {
        Ok(Arc::new(self.parent(name, identity)?))
    }

    fn read_working_set(&self) -> Option<Vec<u8>> {
        let coming = self.working_set.lock().unwrap_or_else(PoisonError::into_inner).take();
        let location = self.fetcher.object().location();
        let advice = working_set_of(location);
        let found: Result<_, Refused> = block_on(location.cancel(), async {
            match coming {
                Some(coming) => Ok(coming.await.ok().flatten()),
                None => Ok(read_small(&advice).await?.map(|(bytes, _)| bytes)),
            }
        });
        found.ok().flatten().map(Vec::from)
    }

    fn write_working_set(&self, bytes: &[u8]) -> Result<()> {
        let location = working_set_of(self.fetcher.object().location()).for_writing()?;
        let payload = Bytes::copy_from_slice(bytes).into();
        block_on(location.cancel(), async {
            let put = location.store().put_opts(&location.key, payload, Default::default()).await;
            put.map(drop)
                .map_err(|error| store_error("write a working set", &location.name(), &error))
        })
    }
}

impl Drop for RemoteImage {
    fn drop(&mut self) {
        self.fetcher.close();
        let coming = self.working_set.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(coming) = coming.take() {
            coming.abort();
        }
    }
}
