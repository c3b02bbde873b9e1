//! Transfers of images into stores and out of them, with the images that they need.

use std::path::{Path, PathBuf};

use cowslip::image::{Image, ImageSink, OnProgress, SaveOptions, Saved, save_to};
use cowslip::{Error, ErrorKind, Frozen, Result};
use tokio_util::sync::CancellationToken;

use crate::attend::attended;
use crate::image::{OpenOptions, identity_at, name_of, open_location};
use crate::location::{Location, Purpose};
use crate::pointer::{Pointer, set};
use crate::runtime::block_on;
use crate::upload::Upload;

const PUSH: &str = "push an image";
const PULL: &str = "pull an image";
const SAVE: &str = "save an image";

/// The result of a push.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Pushed {
    /// The URL of the image.
    pub url: String,
    /// Images that were sent: the image, and needed ones that were not there.
    pub sent_images: usize,
    /// Their bytes.
    pub sent_bytes: u64,
    /// The pointer's value now, if one was to be set.
    pub latest: Option<Pointer>,
}

/// The result of a pull.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Pulled {
    /// Images that were written: the image, and needed ones that were not there.
    pub images: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Sends an image, and the images that it needs and that are not there yet, to a store. A URL that ends in `/` is a
/// folder: the image keeps its name. Then the object `latest` beside it, if that is given, names it, unless it names
/// one at least as young.
///
/// Every chunk is checked on its way. The image is visible once it is whole; an upload that is broken off is aborted,
/// and is never visible.
///
/// `progress` is called ten times a second, even while the store says nothing; at first its numbers are 0.
///
/// # Errors
/// Like [`Image::open`]; the store's; [`ErrorKind::Busy`] if `progress` broke it off.
pub fn push(
    file: &Path,
    url: &str,
    latest: Option<&str>,
    progress: OnProgress<'_>,
) -> Result<Pushed> {
    attended(progress, |cancel, progress| push_to(file, url, latest, cancel, progress))
}

fn push_to(
    file: &Path,
    url: &str,
    latest: Option<&str>,
    cancel: &CancellationToken,
    progress: OnProgress<'_>,
) -> Result<Pushed> {
    let image = Image::open(file)?;
    let mut location = Location::parse_for(url, Purpose::Read, cancel)?;
    if url.ends_with('/') {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        location = location.within(&name);
    }
    let (mut sent_images, mut sent_bytes) = (0, 0);
    let mut send = |image: &Image, to: &Location, progress: OnProgress<'_>| {
        let bytes = image.summary().file_bytes;
        image.copy_to(Upload::begin(to, bytes)?, progress)?;
        sent_images += 1;
        sent_bytes += bytes;
        Ok::<_, Error>(())
    };
    for ancestor in image.ancestors().iter().rev() {
        if let Some(to) = place_of(ancestor, &location)? {
            send(ancestor, &to, &mut *progress)?;
        }
    }
    send(&image, &location, progress)?;
    let latest = latest.map(|name| {
        let pointer = Pointer::from_image(location.file_name(), &image);
        set(&location.beside(name).for_writing()?, pointer)
    });
    let url = location.to_string();
    Ok(Pushed { url, sent_images, sent_bytes, latest: latest.transpose()? })
}

/// The place beside `location` for an image that another one needs; `None` if it is there.
fn place_of(image: &Image, location: &Location) -> Result<Option<Location>> {
    let own = image.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    for name in [own, name_of(image.identity())] {
        let place = location.beside(&name);
        // The image itself takes this place.
        let there = block_on(place.cancel(), identity_at(&place))?;
        if there == Some(image.identity()) {
            return Ok(None);
        }
        if there.is_none() && place.key != location.key {
            return Ok(Some(place));
        }
    }
    Err(Error::new(ErrorKind::Busy, PUSH)
        .of_file(&location.beside(&name_of(image.identity())).name())
        .because("another image has this name"))
}

/// Writes the image at a URL to a file, and the images that it needs beside it, unless they are there. Every chunk is
/// checked on its way; a file is there whole or not at all. `progress` is called as in [`push`].
///
/// # Errors
/// Like [`open`](crate::open); [`ErrorKind::Usage`] if another image has the name of one that is needed;
/// [`ErrorKind::Busy`] if `progress` broke it off; the file system's.
pub fn pull(url: &str, file: &Path, progress: OnProgress<'_>) -> Result<Pulled> {
    attended(progress, |cancel, progress| pull_from(url, file, cancel, progress))
}

fn pull_from(
    url: &str,
    file: &Path,
    cancel: &CancellationToken,
    progress: OnProgress<'_>,
) -> Result<Pulled> {
    let location = Location::parse_for(url, Purpose::Read, cancel)?;
    let image = open_location(&location, OpenOptions::default())?;
    let mut file: PathBuf = file.to_owned();
    if file.is_dir() {
        file.push(image.path().file_name().unwrap_or_default());
    }
    let mut pulled = Pulled { images: 0, bytes: 0 };
    let mut write = |image: &Image, file: &Path, progress: OnProgress<'_>| {
        image.copy_to_file(file, progress)?;
        pulled.images += 1;
        pulled.bytes += image.summary().file_bytes;
        Ok::<_, Error>(())
    };
    let mut wanted_name = image.description().parent_file.clone();
    let mut needed = Vec::new();
    for ancestor in image.ancestors() {
        let name = wanted_name.take().ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, PULL)
                .of_file(ancestor.path())
                .because("an image needs it and does not name it")
        })?;
        needed.push((ancestor, file.with_file_name(name)));
        wanted_name = ancestor.description().parent_file.clone();
    }
    for (ancestor, place) in needed.iter().rev() {
        if *place == file {
            return Err(Error::new(ErrorKind::Usage, PULL)
                .of_file(place)
                .because("an image that it needs has this name"));
        }
        match Image::open(place) {
            Ok(there) if there.identity() == ancestor.identity() => {}
            Err(_) if !place.exists() => write(ancestor, place, &mut *progress)?,
            _ => {
                return Err(Error::new(ErrorKind::Usage, PULL)
                    .of_file(place)
                    .because("another file has the name of an image that is needed"));
            }
        }
    }
    write(&image, &file, progress)?;
    Ok(pulled)
}

/// Saves the content of frozen arenas to a URL, while the program runs on. `parent`, if there is one, is the URL of an
/// image in the same folder: then the new image holds only the differences. [`SaveOptions::parent`] is ignored.
/// `progress` is called as in [`push`].
///
/// # Errors
/// Like [`cowslip::image::save`]; the store's.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use cowslip::image::SaveOptions;
/// use cowslip::{Arena, units::ByteCount};
///
/// let arena = Arena::new(ByteCount::mib(64))?;
/// arena.slice::<u64>(1 << 20)?.fill(7);
/// let mut proceed = |_| ControlFlow::Continue(());
/// let url = "s3://models/llama/monday";
/// cowslip_remote::save(&[&arena.freeze()?], url, None, &SaveOptions::default(), &mut proceed)?;
/// # Ok::<(), cowslip::Error>(())
/// ```
pub fn save(
    frozen: &[&Frozen],
    url: &str,
    parent: Option<&str>,
    options: &SaveOptions,
    progress: OnProgress<'_>,
) -> Result<Saved> {
    attended(progress, |cancel, progress| save_at(frozen, url, parent, options, cancel, progress))
}

fn save_at(
    frozen: &[&Frozen],
    url: &str,
    parent: Option<&str>,
    options: &SaveOptions,
    cancel: &CancellationToken,
    progress: OnProgress<'_>,
) -> Result<Saved> {
    let read = |url| Location::parse_for(url, Purpose::Read, cancel);
    let location = read(url)?;
    let parent = parent.map(read).transpose()?;
    if let Some(parent) = &parent
        && parent.beside(location.file_name()).to_string() != location.to_string()
    {
        return Err(Error::new(ErrorKind::Usage, SAVE)
            .of_file(&parent.name())
            .because("the parent lies in another folder than the image")
            .advise("save the image beside it"));
    }
    let parent = parent.map(|parent| open_location(&parent, OpenOptions::default())).transpose()?;
    let is_needed = |image: &Image| image.path() == location.name();
    if let Some(parent) = &parent
        && (is_needed(parent) || parent.ancestors().iter().any(is_needed))
    {
        return Err(Error::new(ErrorKind::Usage, SAVE)
            .because(format!("{location} is needed by the image that would replace it")));
    }
    let upload = |most_bytes| {
        Upload::begin(&location, most_bytes).map(|upload| upload as Box<dyn ImageSink>)
    };
    save_to(frozen, upload, parent.as_ref(), options, progress)
}
