//! An object that stays the same while it is read.

use std::future::Future;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use cowslip::{Error, ErrorKind};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStoreExt};
use tokio::time::{Instant, sleep};

use crate::errors::{OPEN_AGAIN, REPLACED, is_passing, store_error};
use crate::location::Location;

pub(crate) const READ: &str = "read an object";
/// Attempts at a short answer before it has failed; the store's client retries requests without an answer by itself.
const ATTEMPTS: u32 = 5;
const BACKOFF: Duration = Duration::from_millis(50);

/// The failure of a request.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// True if another attempt may have another answer.
    pub(crate) is_passing: bool,
}

/// An object as it was when it was opened. Another object with its name is an error, never a mixture.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    location: Location,
    name: PathBuf,
    meta: ObjectMeta,
}

impl Object {
    /// Opens the object at a location, and reads its beginning: at most this many bytes.
    pub(crate) async fn open(
        location: &Location,
        beginning: u64,
    ) -> Result<(Self, Bytes), Refused> {
        persistently(location, || Self::open_once(location, beginning)).await
    }

    async fn open_once(location: &Location, beginning: u64) -> Result<(Self, Bytes), Refused> {
        let name = location.name();
        let refused = |error| Refused::by_store(&name, &error);
        let options = GetOptions::new().with_range(Some(0..beginning));
        let answer = match location.store().get_opts(&location.key, options).await {
            // An empty object has no range to read (RFC 9110, 15.5.17): some servers answer without one.
            Err(error) if has_no_range(&error) => {
                let meta = location.store().head(&location.key).await.map_err(refused)?;
                if meta.size > 0 {
                    return Err(refused(error));
                }
                return Ok((Self { location: location.clone(), name, meta }, Bytes::new()));
            }
            answer => answer.map_err(refused)?,
        };
        let meta = answer.meta.clone();
        let bytes = answer.bytes().await.map_err(refused)?;
        if bytes.len() as u64 != beginning.min(meta.size) {
            return Err(Refused::short(&name));
        }
        Ok((Self { location: location.clone(), name, meta }, bytes))
    }

    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.meta.size
    }

    /// The bytes of a range, as they come. They may be fewer.
    pub(crate) async fn get(
        &self,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, object_store::Result<Bytes>>, Refused> {
        let mut options = GetOptions::new().with_range(Some(range.clone()));
        match &self.meta.e_tag {
            // Only strong tags can be compared (RFC 9110, 13.1.1).
            Some(e_tag) if !e_tag.starts_with("W/") => {
                options = options.with_if_match(Some(e_tag.clone()));
            }
            Some(_) => {}
            // If a server sends neither, the checksums detect a replacement.
            None if self.meta.last_modified.timestamp() <= 0 => {}
            None => {
                options = options.with_if_unmodified_since(Some(self.meta.last_modified));
            }
        }
        let store = self.location.store();
        let answer = store.get_opts(&self.location.key, options).await;
        let answer = answer.map_err(|error| Refused::by_store(&self.name, &error))?;
        // Some servers ignore conditions.
        if !self.is_same(&answer.meta) || answer.range != range {
            return Err(self.replaced());
        }
        Ok(answer.into_stream().boxed())
    }

    fn is_same(&self, now: &ObjectMeta) -> bool {
        let is_same_version = match (&self.meta.e_tag, &now.e_tag) {
            (None, None) => self.meta.last_modified == now.last_modified,
            (then, now) => then == now,
        };
        is_same_version && self.meta.size == now.size
    }

    fn replaced(&self) -> Refused {
        let error = Error::new(ErrorKind::Vanished, READ)
            .of_file(&self.name)
            .because(REPLACED)
            .advise(OPEN_AGAIN);
        Refused { error, is_passing: false }
    }

    /// The error of a transfer that broke.
    pub(crate) fn broken(&self, error: &object_store::Error) -> Refused {
        Refused::by_store(&self.name, error)
    }

    /// The error of a transfer with fewer bytes than requested.
    pub(crate) fn short(&self) -> Refused {
        Refused::short(&self.name)
    }
}

fn has_no_range(error: &object_store::Error) -> bool {
    let is_without = matches!(error, object_store::Error::NotSupported { .. });
    is_without || error.to_string().contains("416 Range Not Satisfiable")
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { error, is_passing: false }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

impl Refused {
    /// Returns true if the object certainly does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        !self.is_passing && self.error.kind() == ErrorKind::File
    }

    fn by_store(name: &Path, error: &object_store::Error) -> Self {
        let refused = match error {
            object_store::Error::NotSupported { .. } => Error::new(ErrorKind::Unsupported, READ)
                .of_file(name)
                .because("the server does not answer requests for ranges (HTTP 206)")
                .advise("fetch the file first"),
            error => store_error(READ, name, error),
        };
        Self { error: refused, is_passing: is_passing(error) }
    }

    fn short(name: &Path) -> Self {
        let error = Error::new(ErrorKind::File, READ)
            .of_file(name)
            .because("the store sent fewer bytes than it was asked for");
        Self { error, is_passing: true }
    }
}

/// All of a small object, and the data that distinguishes it from the next one with its name; `None` if there is none.
pub(crate) async fn read_small(
    location: &Location,
) -> Result<Option<(Bytes, ObjectMeta)>, Refused> {
    persistently(location, || read_small_once(location)).await
}

/// Returns the result of `request`, retried while another attempt may have another answer: a body may break off.
pub(crate) async fn persistently<T, F>(
    location: &Location,
    request: impl Fn() -> F,
) -> Result<T, Refused>
where
    F: Future<Output = Result<T, Refused>>,
{
    let (began, mut attempt) = (Instant::now(), 0);
    loop {
        match request().await {
            Err(Refused { is_passing: true, .. })
                if attempt + 1 < ATTEMPTS && began.elapsed() < location.budget() =>
            {
                attempt += 1;
                sleep(BACKOFF * (1 << attempt)).await;
            }
            answer => return answer,
        }
    }
}

async fn read_small_once(location: &Location) -> Result<Option<(Bytes, ObjectMeta)>, Refused> {
    let name = location.name();
    let answer: GetResult = match location.store().get(&location.key).await {
        Err(object_store::Error::NotFound { .. }) => return Ok(None),
        answer => answer.map_err(|error| Refused::by_store(&name, &error))?,
    };
    let meta = answer.meta.clone();
    let bytes = answer.bytes().await.map_err(|error| Refused::by_store(&name, &error))?;
    Ok(Some((bytes, meta)))
}
