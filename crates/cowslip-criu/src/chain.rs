//! The images that have a checkpoint's memory: its own, and those of earlier checkpoints, its bases.
//!
//! ```text
//!  TUESDAY/memory.image: 0 ──criu.base.1──▶ MONDAY/memory.image: 1
//!                        └───criu.base.2──▶ SUNDAY/memory.image: 2
//! ```
//! The image names all of its bases, also those of its bases, so none is opened that has no page of it:
//!
//! ```text
//!  criu.base.N = "IDENTITY PATH"      the base's identity, and its folder as seen from the checkpoint's
//! ```
//! The identity decides; the path is where it was.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use cowslip::image::{Image, ImageIdentity};
use cowslip::units::CHUNK_BYTES;
use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;

use crate::about::{self, ENCRYPTED_MEMORY, MEMORY};
use crate::encrypted::EncryptedImage;
use crate::import::ROOT;
use crate::index::{Index, Place};
use crate::keys::Keys;
use crate::pages::PAGE_BYTES;

const KEY: &str = "criu.base.";
const OPERATION: &str = "open a checkpoint's memory";
/// Each is an arena, with its threads, while a process is restored.
const MOST_BASES: usize = 32;

/// An image with pages of processes.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) image: Image,
    /// The distance from the arena's start to that of the pages.
    pub(crate) start_bytes: usize,
    pages: u64,
    folder: PathBuf,
}

impl Part {
    fn new(image: Image, folder: &Path) -> Result<Self> {
        let root = image.description().roots.get(ROOT);
        let root = root.filter(|root| {
            root.arena == 0 && root.length_bytes > 0 && root.length_bytes.is_multiple_of(PAGE_BYTES)
        });
        let (start_bytes, pages) = root
            .map(|root| (root.offset_bytes as usize, root.length_bytes / PAGE_BYTES))
            .ok_or_else(|| strange(&image))?;
        Ok(Self { image, start_bytes, pages, folder: folder.to_owned() })
    }
}

/// The images of a memory, and its pages' places in them.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The memory's own image, and its bases.
    pub(crate) parts: Vec<Part>,
    pub(crate) index: Index,
}

impl Chain {
    /// The chain of an image that has no bases.
    pub(crate) fn alone(image: Image) -> Result<Self> {
        let path = image.path().to_owned();
        if bases(&image)?.is_empty() {
            return Self::new(vec![Part::new(image, Path::new(""))?]);
        }
        Err(Error::new(ErrorKind::Usage, OPERATION)
            .of_file(&path)
            .because("a part of it is in the images of other checkpoints")
            .advise("restore its folder with `cowslip restore`"))
    }

    /// Opens the images of the checkpoint in a folder. A base that is not at its place is looked for at `places`.
    pub(crate) fn open(folder: &Path, keys: &Keys, places: &[PathBuf]) -> Result<Self> {
        let own = Part::new(open_image(folder, keys)?, folder)?;
        let named = bases(&own.image)?;
        let mut parts = vec![own];
        for base in &named {
            let part = base.find(folder, keys, places)?;
            let identity = part.image.identity();
            if parts.iter().any(|other| other.image.identity() == identity) {
                let why = format!("{identity} is named twice among it and its bases");
                let path = parts[0].image.path();
                return Err(Error::new(ErrorKind::Corrupt, OPERATION).of_file(path).because(why));
            }
            parts.push(part);
        }
        Self::new(parts)
    }

    fn new(parts: Vec<Part>) -> Result<Self> {
        let own = &parts[0].image;
        let index = Index::from_words(&own.description().user).ok_or_else(|| strange(own))?;
        let is_whole = index.own_pages().max(1) == parts[0].pages
            && index.images() <= parts.len()
            && index.pages() > 0;
        if !is_whole {
            return Err(strange(own));
        }
        for (number, part) in parts.iter().enumerate() {
            if index.needs(number).is_some_and(|pages| pages > part.pages) {
                let why = "it has fewer pages than are looked for in it";
                let error = Error::new(ErrorKind::Corrupt, OPERATION).of_file(part.image.path());
                return Err(error.because(why));
            }
        }
        Ok(Self { parts, index })
    }

    /// Checks that it may be a base.
    pub(crate) fn check_as_base(&self) -> Result<()> {
        if self.parts.len() <= MOST_BASES {
            return Ok(());
        }
        let why = format!("it has {MOST_BASES} bases, and one more would be too many");
        Err(Error::new(ErrorKind::Usage, OPERATION)
            .of_file(&self.parts[0].folder)
            .because(why)
            .advise("write a checkpoint without --base"))
    }

    /// The words that name its images as bases of a checkpoint in `folder`, in order.
    pub(crate) fn names(&self, folder: &Path) -> Result<Vec<String>> {
        let name = |part: &Part| {
            let path = path_between(folder, &part.folder)?;
            Ok(format!("{} {path}", part.image.identity()))
        };
        self.parts.iter().map(name).collect()
    }
}

/// Leaves bases out that an index does not need. Those left get their numbers in it, and are the image's own words.
pub(crate) fn number_bases(index: &mut Index, names: Vec<String>) -> BTreeMap<String, String> {
    let (mut words, mut numbers) = (BTreeMap::new(), vec![0]);
    for (number, name) in (1..).zip(names) {
        if index.needs(number).is_some() {
            words.insert(format!("{KEY}{}", words.len() + 1), name);
        }
        numbers.push(words.len());
    }
    index.renumber(|number| numbers[number]);
    words
}

fn strange(image: &Image) -> Error {
    Error::new(ErrorKind::Corrupt, OPERATION)
        .of_file(image.path())
        .because("it is no image of a dump")
        .advise("make one with `cowslip checkpoint`, or `cowslip-criu import`")
}

/// Opens the memory's image in the folder of a checkpoint.
fn open_image(folder: &Path, keys: &Keys) -> Result<Image> {
    match about::read(folder)? {
        Some(_) => Image::open(&folder.join(MEMORY)),
        None => {
            let source = EncryptedImage::open(&folder.join(ENCRYPTED_MEMORY), keys)?;
            Image::open_source(Arc::new(source))
        }
    }
}

/// A base, as an image names it.
struct Base {
    identity: String,
    path: PathBuf,
}

/// The bases that an image names, in order.
fn bases(image: &Image) -> Result<Vec<Base>> {
    let words = &image.description().user;
    let count = words.keys().filter(|key| key.starts_with(KEY)).count();
    let base = |number| {
        let (identity, path) = words.get(&format!("{KEY}{number}"))?.split_once(' ')?;
        let path = Path::new(path);
        path.is_relative().then(|| Base { identity: identity.to_owned(), path: path.to_owned() })
    };
    if count > MOST_BASES {
        let why = format!("it has {count} bases, more than {MOST_BASES}");
        return Err(Error::new(ErrorKind::Corrupt, OPERATION).of_file(image.path()).because(why));
    }
    (1..=count).map(base).collect::<Option<_>>().ok_or_else(|| strange(image))
}

impl Base {
    /// Looks for it where it was, as seen from `folder`, and at other places.
    fn find(&self, folder: &Path, keys: &Keys, places: &[PathBuf]) -> Result<Part> {
        let there = folder.join(&self.path);
        let (mut seen, mut refused) = (Vec::new(), None);
        for place in [&there].into_iter().chain(places) {
            match open_image(place, keys) {
                Ok(image) if image.identity().to_string() == self.identity => {
                    return Part::new(image, place);
                }
                Ok(image) => seen.push(format!("{} is {}", place.display(), image.identity())),
                // It may be the one that is looked for.
                Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Usage) => {
                    refused = Some(error);
                }
                Err(error) => seen.push(error.to_string()),
            }
        }
        if let Some(error) = refused {
            return Err(error);
        }
        let why = format!("its base {} is not there: {}", self.identity, seen.join("; "));
        Err(Error::new(ErrorKind::Corrupt, OPERATION)
            .of_file(folder)
            .because(why)
            .advise("name the folder where it is by --base"))
    }
}

/// The path of `to` as seen from the folder `from`, of which the last part may not be there.
fn path_between(from: &Path, to: &Path) -> Result<String> {
    let real =
        |path: &Path| path.canonicalize().map_err(|error| file_error(OPERATION, path, error));
    let parent = from.parent().filter(|parent| !parent.as_os_str().is_empty());
    let (from, to) = (real(parent.unwrap_or(Path::new(".")))?, real(to)?);
    let common = from.components().zip(to.components()).take_while(|(one, other)| one == other);
    let common = common.count();
    // One more for the folder itself.
    let up = from.components().count() - common + 1;
    let steps = std::iter::repeat_n(Component::ParentDir, up);
    let path: PathBuf = steps.chain(to.components().skip(common)).collect();
    path.to_str().map(str::to_owned).ok_or_else(|| {
        let why = "its name is no UTF-8 text, and cannot be kept in an image";
        Error::new(ErrorKind::Usage, OPERATION).of_file(&to).because(why)
    })
}

/// Finds pages that a base has.
pub(crate) struct Comparison<'a> {
    base: &'a Chain,
    asides: Vec<Aside>,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(base: &'a Chain) -> Self {
        Self { base, asides: base.parts.iter().map(|_| Aside::default()).collect() }
    }

    /// The place of neighbouring pages, if they are neighbours there too, and have this content. The base's images count
    /// from 1.
    pub(crate) fn find(
        &mut self,
        process: u32,
        page: u64,
        content: &[u8],
    ) -> Result<Option<Place>> {
        let pages = content.len() as u64 / PAGE_BYTES;
        let Some((place, found)) = self.base.index.find_like(process, page, pages) else {
            return Ok(None);
        };
        if found < pages {
            return Ok(None);
        }
        let (part, aside) = (&self.base.parts[place.image], &mut self.asides[place.image]);
        let mut at = (place.at * PAGE_BYTES) as usize;
        for page in content.chunks(PAGE_BYTES as usize) {
            if aside.read(part, at..at + page.len())? != page {
                return Ok(None);
            }
            at += page.len();
        }
        Ok(Some(Place { image: place.image + 1, at: place.at }))
    }
}

/// The chunk that was read last.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    chunk: Option<(ImageIdentity, usize)>,
    content: Vec<u8>,
}

impl Aside {
    /// Reads the beginning of a range of pages.
    pub(crate) fn read(&mut self, part: &Part, range: Range<usize>) -> Result<&[u8]> {
        let at = part.start_bytes + range.start;
        let (chunk, into) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
        let named = Some((part.image.identity(), chunk));
        if self.chunk != named {
            self.chunk = None;
            self.content.resize(CHUNK_BYTES, 0);
            part.image.read_chunk(0, chunk as u32, &mut self.content)?;
            self.chunk = named;
        }
        Ok(&self.content[into..CHUNK_BYTES.min(into + range.len())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_is_named_as_seen_from_the_checkpoint() {
        let place = std::env::temp_dir().join(format!("cowslip-between-{}", std::process::id()));
        for folder in ["days/monday", "weeks"] {
            std::fs::create_dir_all(place.join(folder)).unwrap();
        }
        for (from, expected) in [
            ("days/tuesday", "../monday"),
            ("weeks/next", "../../days/monday"),
            ("other", "../days/monday"),
            ("days/monday/noon", ".."),
        ] {
            let path = path_between(&place.join(from), &place.join("days/monday")).unwrap();
            assert_eq!(path, expected, "{from}");
        }
        std::fs::remove_dir_all(&place).unwrap();
    }
}
