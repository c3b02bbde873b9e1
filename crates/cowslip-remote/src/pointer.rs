//! Objects that name an image: `latest`.
//!
//! They are JSON, and changed by compare and swap: of two concurrent writers the one with the younger image wins.
//! ```json
//! {"schema": "cowslip.pointer/1", "image": "store-17", "identity": "…", "created_unix_ns": 1732365606000000000}
//! ```

use cowslip::image::{Image, ImageIdentity};
use cowslip::{Error, ErrorKind, Result};
use object_store::{ObjectMeta, PutMode, PutOptions, UpdateVersion};
use serde::{Deserialize, Serialize};

use crate::errors::store_error;
use crate::location::Location;
use crate::object::read_small;
use crate::runtime::block_on;

const OPERATION: &str = "set a pointer";
const SCHEMA: &str = "cowslip.pointer/1";
/// Longer objects are no pointers.
pub(crate) const MOST_BYTES: u64 = 4096;
/// A writer that loses the race this often has met a store that refuses for another reason.
const ATTEMPTS: usize = 100;

/// A pointer to an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pointer {
    schema: String,
    /// The image's name: an object beside the pointer.
    pub image: String,
    /// The image's identity, in hexadecimal.
    pub identity: String,
    /// The time when the image was saved, nanoseconds since 1970.
    pub created_unix_ns: u64,
}

impl Pointer {
    pub(crate) fn from_image(name: &str, image: &Image) -> Self {
        Self {
            schema: SCHEMA.into(),
            image: name.into(),
            identity: image.identity().to_string(),
            created_unix_ns: image.summary().created_unix_ns,
        }
    }

    /// The pointer in an object, if the object is one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let pointer: Self = serde_json::from_slice(bytes).ok()?;
        let is_name = !pointer.image.is_empty() && !pointer.image.contains('/');
        (pointer.schema == SCHEMA && is_name).then_some(pointer)
    }

    pub(crate) fn is_of(&self, identity: ImageIdentity) -> bool {
        self.identity == identity.to_string()
    }
}

/// Reads a pointer; `None` if there is none.
///
/// # Errors
/// The store's; [`ErrorKind::Corrupt`] if the object is no pointer.
pub fn read_latest(pointer: &str) -> Result<Option<Pointer>> {
    let location = Location::parse(pointer)?;
    let found = block_on(location.cancel(), read_small(&location))?;
    found.map(|(bytes, _)| decoded(&location, &bytes)).transpose()
}

fn decoded(location: &Location, bytes: &[u8]) -> Result<Pointer> {
    Pointer::decode(bytes).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, OPERATION)
            .of_file(&location.name())
            .because("what lies there is no pointer to an image")
    })
}

/// Has `pointer`, an object beside an image, name the image, unless it names one at least as young. Returns the
/// resulting pointer.
///
/// # Errors
/// The store's; [`ErrorKind::Unsupported`] from one that cannot compare and swap, [`ErrorKind::Corrupt`] if another
/// object is there.
pub fn set_latest(pointer: &str, name: &str, image: &Image) -> Result<Pointer> {
    let location = Location::parse(pointer)?.for_writing()?;
    set(&location, Pointer::from_image(name, image))
}

/// Has a pointer with the value `now` name another place of the same image. A concurrent change by another writer
/// stays.
pub(crate) fn repoint(location: &Location, now: &Pointer, wanted: Pointer) -> Result<()> {
    let name = location.name();
    block_on(location.cancel(), async {
        let found = read_small(location).await?;
        let Some((bytes, meta)) = found else { return Ok(()) };
        if Pointer::decode(&bytes).as_ref() != Some(now) {
            return Ok(());
        }
        match swap(location, &wanted, meta).await {
            Ok(()) | Err(object_store::Error::Precondition { .. }) => Ok(()),
            Err(error) => Err(store_error(OPERATION, &name, &error)),
        }
    })
}

/// Replaces the pointer that was found, and no other.
async fn swap(
    location: &Location,
    pointer: &Pointer,
    found: ObjectMeta,
) -> object_store::Result<()> {
    let ObjectMeta { e_tag, version, .. } = found;
    // radosgw 16 accepts a tag only without its quotes.
    let bare = e_tag.as_deref().map(|tag| tag.trim_matches('"').to_owned());
    let of = |e_tag| PutMode::Update(UpdateVersion { e_tag, version: version.clone() });
    match put(location, pointer, of(e_tag.clone())).await {
        Err(object_store::Error::Precondition { .. }) if bare != e_tag => {
            put(location, pointer, of(bare)).await
        }
        swapped => swapped,
    }
}

async fn put(location: &Location, pointer: &Pointer, mode: PutMode) -> object_store::Result<()> {
    let bytes = serde_json::to_vec(pointer).expect("strings and a number");
    let options = PutOptions { mode, ..PutOptions::default() };
    location.store().put_opts(&location.key, bytes.into(), options).await.map(drop)
}

pub(crate) fn set(location: &Location, wanted: Pointer) -> Result<Pointer> {
    let name = location.name();
    block_on(location.cancel(), async {
        for _ in 0..ATTEMPTS {
            let found = read_small(location).await?;
            let written = match found {
                None => put(location, &wanted, PutMode::Create).await,
                Some((bytes, meta)) => {
                    let now = decoded(location, &bytes)?;
                    if now.created_unix_ns >= wanted.created_unix_ns {
                        return Ok(now);
                    }
                    swap(location, &wanted, meta).await
                }
            };
            match written {
                Ok(()) => return Ok(wanted),
                // Another writer was faster.
                Err(
                    object_store::Error::Precondition { .. }
                    | object_store::Error::AlreadyExists { .. },
                ) => {}
                Err(error) => return Err(store_error(OPERATION, &name, &error)),
            }
        }
        Err(Error::new(ErrorKind::Busy, OPERATION).of_file(&name).because(format!(
            "others were faster {ATTEMPTS} times, or the store cannot compare and swap"
        )))
    })
}
