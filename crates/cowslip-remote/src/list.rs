//! The images in a folder of a store.

use std::time::SystemTime;

use bytes::Bytes;
use cowslip::image::ImageIdentity;
use cowslip::{Error, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;

use crate::errors::{is_passing, store_error};
use crate::image::identity_in;
use crate::location::Location;
use crate::object::{Object, Refused, persistently};
use crate::pointer::{MOST_BYTES, Pointer};
use crate::runtime::block_on;

const OPERATION: &str = "list images";
/// Objects that are read at once.
const AT_ONCE: usize = 16;
/// The place of the parent's identity, and of the time, in a header (docs/image-format.md).
const PARENT: std::ops::Range<usize> = 32..48;
const CREATED: std::ops::Range<usize> = 64..72;

/// An image, or a pointer to one.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Listed {
    /// Its name in the folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The time when it was written, by the store's clock.
    pub modified: SystemTime,
    /// The kind of the object.
    pub kind: ListedKind,
}

/// The kind of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ListedKind {
    /// An image.
    Image {
        /// Its identity.
        identity: ImageIdentity,
        /// The image that it needs, if it is not complete.
        parent: Option<ImageIdentity>,
        /// The time when it was saved, nanoseconds since 1970.
        created_unix_ns: u64,
    },
    /// A pointer to an image.
    Pointer(Pointer),
}

/// Lists the images in a folder of a store, and the pointers to images, by name. Other objects are left out.
///
/// # Errors
/// The store's.
pub fn list(url: &str) -> Result<Vec<Listed>> {
    list_at(&Location::parse(url)?)
}

pub(crate) fn list_at(location: &Location) -> Result<Vec<Listed>> {
    let ask = || async {
        let found = location.store().list_with_delimiter(Some(&location.key)).await;
        found.map_err(|error| Refused {
            error: store_error(OPERATION, &location.name(), &error),
            is_passing: is_passing(&error),
        })
    };
    block_on(location.cancel(), async {
        let objects = persistently(location, ask).await?.objects;
        let looks = objects.into_iter().map(|meta| look(location, meta));
        let looked = stream::iter(looks).buffer_unordered(AT_ONCE);
        let mut listed: Vec<_> = looked.try_collect::<Vec<_>>().await?;
        listed.sort_unstable_by(|a, b| {
            let name = |listed: &Option<Listed>| listed.as_ref().map(|listed| listed.name.clone());
            name(a).cmp(&name(b))
        });
        Ok::<_, Error>(listed.into_iter().flatten().collect())
    })
}

/// The listed form of an object; `None` if it is not Cowslip's, or gone.
async fn look(folder: &Location, meta: ObjectMeta) -> Result<Option<Listed>> {
    let Some(name) = meta.location.filename() else { return Ok(None) };
    if meta.size == 0 {
        return Ok(None);
    }
    let head = match Object::open(&folder.within(name), MOST_BYTES).await {
        Ok((_, head)) => head,
        Err(refused) if refused.is_missing() => return Ok(None),
        Err(refused) => return Err(refused.error),
    };
    let modified = SystemTime::from(meta.last_modified);
    let listed = |kind| Listed { name: name.to_owned(), bytes: meta.size, modified, kind };
    Ok(kind_of(&head).map(listed))
}

fn kind_of(head: &Bytes) -> Option<ListedKind> {
    if let Some(pointer) = Pointer::decode(head) {
        return Some(ListedKind::Pointer(pointer));
    }
    let identity = identity_in(head)?;
    let parent: [u8; 16] = head.get(PARENT)?.try_into().ok()?;
    let created: [u8; 8] = head.get(CREATED)?.try_into().ok()?;
    Some(ListedKind::Image {
        identity,
        parent: (parent != [0; 16]).then_some(ImageIdentity(parent)),
        created_unix_ns: u64::from_le_bytes(created),
    })
}
