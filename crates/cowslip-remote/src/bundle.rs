//! Files that belong together, at one URL of a store: there as a whole or not at all.
//!
//! ```text
//!  URL                      a small object that names the others; written last, and never replaced
//!  URL.files/ID/NAME, …     the files, by an identity that no other writer has
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use cowslip::image::{ImageSink, OnProgress, Progress};
use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::error::file_error;
use cowslip_sys::process;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{Error as StoreError, ObjectStoreExt, PutMode, PutOptions};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::attend::{attended, broken_off};
use crate::errors::{has_no_bucket, store_error};
use crate::location::{Location, Purpose};
use crate::object::{Object, persistently, read_small};
use crate::runtime::{block_on, runtime};
use crate::upload::Upload;

const PUSH: &str = "write files to a store";
const PULL: &str = "read files of a store";
const SCHEMA: &str = "cowslip.bundle/1";
const ANY_SCHEMA: &str = "cowslip.bundle/";
/// Longer objects name no files.
const MOST_BYTES: u64 = 64 << 10;
const PIECE_BYTES: u64 = 16 << 20;
const PIECES_AT_ONCE: usize = 8;
/// For the removal of files that belong to nothing.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The object at the URL.
#[derive(Serialize, Deserialize)]
struct Manifest {
    schema: String,
    /// The folder of the files, in `URL.files`.
    id: String,
    /// Their lengths.
    files: BTreeMap<String, u64>,
}

impl Manifest {
    /// `None` if the object is another.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let manifest: Self = serde_json::from_slice(bytes).ok()?;
        manifest.schema.starts_with(ANY_SCHEMA).then_some(manifest)
    }

    /// Fails with the reason why its names are no names of files.
    fn check(&self) -> std::result::Result<(), String> {
        let is_name = |name: &str| {
            let mut letters = name.bytes();
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
            !name.starts_with('.') && !name.is_empty() && letters.all(is_plain)
        };
        if self.schema != SCHEMA {
            return Err(format!("its schema is {:?}, not {SCHEMA:?}", self.schema));
        }
        match [&self.id].into_iter().chain(self.files.keys()).find(|name| !is_name(name)) {
            Some(name) => Err(format!("{name:?} is no name of a file")),
            None => Ok(()),
        }
    }
}

fn place(location: &Location, id: &str, name: &str) -> Location {
    location.beside(&format!("{}.files", location.file_name())).within(id).within(name)
}

fn exists(location: &Location) -> Error {
    Error::new(ErrorKind::Usage, PUSH).of_file(&location.name()).because("it exists")
}

/// Checks that files can be pushed to a URL.
///
/// # Errors
/// [`ErrorKind::Usage`] if there is an object, or it is no URL; [`ErrorKind::Unsupported`] for a store that cannot be written;
/// the store's.
pub fn check_new(url: &str, progress: OnProgress<'_>) -> Result<()> {
    attended(progress, |cancel, _| {
        let location = Location::parse_for(url, Purpose::Write, cancel)?;
        if location.file_name().is_empty() || url.ends_with('/') {
            return Err(Error::new(ErrorKind::Usage, PUSH)
                .of_file(&location.name())
                .because("it names no object, but a folder"));
        }
        if location.parts().is_none() {
            return Err(Error::new(ErrorKind::Unsupported, PUSH)
                .of_file(&location.name())
                .because("only s3, gs and az can be written to"));
        }
        let is_there = block_on(location.cancel(), async {
            match location.store().get(&location.key).await {
                Ok(_) => Ok(true),
                Err(error @ StoreError::NotFound { .. }) if !has_no_bucket(&error) => Ok(false),
                Err(error) => Err(store_error(PUSH, &location.name(), &error)),
            }
        })?;
        if is_there { Err(exists(&location)) } else { Ok(()) }
    })
}

/// Sends files, by their names, to a URL at which there is no object, and returns their bytes. They are there once all are; if
/// it fails, those that were sent are removed again. `progress` is called as in [`push`](crate::push()).
///
/// # Errors
/// Those of [`check_new`]; the store's; [`ErrorKind::Busy`] if `progress` broke it off; the file system's.
pub fn push_files(url: &str, files: &[(&str, &Path)], progress: OnProgress<'_>) -> Result<u64> {
    attended(progress, |cancel, progress| {
        let location = Location::parse_for(url, Purpose::Write, cancel)?;
        let mut random = [0; 8];
        process::fill_random(&mut random).map_err(|errno| Error::from_errno(PUSH, errno))?;
        let id = format!("{:016x}", u64::from_ne_bytes(random));
        let sent = Sent { location: &location, id: &id, names: Vec::new() };
        sent.send(files, progress)
    })
}

/// Files that were sent, and are removed unless they are named.
struct Sent<'a> {
    location: &'a Location,
    id: &'a str,
    names: Vec<&'a str>,
}

impl<'a> Sent<'a> {
    fn send(mut self, files: &[(&'a str, &Path)], progress: OnProgress<'_>) -> Result<u64> {
        let mut opened = Vec::new();
        for (name, path) in files {
            let failed = |error| file_error(PUSH, path, error);
            let file = File::open(path).map_err(failed)?;
            let bytes = file.metadata().map_err(failed)?.len();
            opened.push((*name, *path, file, bytes));
        }
        let total_bytes = opened.iter().map(|(.., bytes)| bytes).sum();
        let mut done_bytes = 0;
        let mut buffer = vec![0; PIECE_BYTES as usize];
        for (name, path, file, bytes) in &opened {
            let upload = Upload::begin(&place(self.location, self.id, name), *bytes)?;
            let mut at = 0;
            while at < *bytes {
                let piece = &mut buffer[..PIECE_BYTES.min(bytes - at) as usize];
                file.read_exact_at(piece, at).map_err(|error| file_error(PUSH, path, error))?;
                upload.write_at(piece, at)?;
                at += piece.len() as u64;
                done_bytes += piece.len() as u64;
                if progress(Progress { done_bytes, total_bytes }).is_break() {
                    return Err(broken_off());
                }
            }
            // Its answer may be lost.
            self.names.push(name);
            upload.commit(*bytes)?;
        }
        let files = opened.iter().map(|(name, .., bytes)| ((*name).to_owned(), *bytes)).collect();
        let manifest = Manifest { schema: SCHEMA.to_owned(), id: self.id.to_owned(), files };
        // The object may be there in spite of an error: files that it may name stay.
        let names = std::mem::take(&mut self.names);
        let published = publish(self.location, &manifest);
        if let Err(error) = &published
            && matches!(error.kind(), ErrorKind::Usage | ErrorKind::Denied)
        {
            self.names = names;
        }
        published.map(|()| total_bytes)
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Ok(runtime) = runtime() else { return };
        runtime.block_on(async {
            let removed = stream::iter(&self.names).for_each(|name| async {
                let _ =
                    self.location.store().delete(&place(self.location, self.id, name).key).await;
            });
            let _ = timeout(REMOVAL_TIMEOUT, removed).await;
        });
    }
}

/// Writes the object that names the files, unless another is there.
fn publish(location: &Location, manifest: &Manifest) -> Result<()> {
    let bytes = Bytes::from(serde_json::to_vec(manifest).expect("texts and numbers"));
    let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
    block_on(location.cancel(), async {
        let put = location.store().put_opts(&location.key, bytes.clone().into(), options).await;
        let Err(error) = put else { return Ok(()) };
        // The answer may be lost although it was written.
        match read_small(location).await {
            Ok(Some((there, _))) if there == bytes => Ok(()),
            Ok(Some(_)) => Err(exists(location)),
            _ => Err(store_error(PUSH, &location.name(), &error)),
        }
    })
}

/// Files at a URL.
#[derive(Debug)]
pub struct Bundle {
    location: Location,
    id: String,
    files: BTreeMap<String, u64>,
}

impl Bundle {
    /// Opens what is at a URL; `None` if it is another object, such as an image.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::Corrupt`] if the object is damaged, or one of a later version.
    pub fn open(url: &str) -> Result<Option<Self>> {
        let location = Location::parse(url)?;
        let (object, bytes) = block_on(location.cancel(), Object::open(&location, MOST_BYTES))?;
        let found = Manifest::decode(&bytes).filter(|_| object.len_bytes() <= MOST_BYTES);
        let Some(manifest) = found else { return Ok(None) };
        manifest.check().map_err(|why| {
            Error::new(ErrorKind::Corrupt, PULL).of_file(&location.name()).because(why)
        })?;
        Ok(Some(Self { location, id: manifest.id, files: manifest.files }))
    }

    /// The length of a file; `None` if there is none of that name.
    pub fn len_bytes(&self, name: &str) -> Option<u64> {
        self.files.get(name).copied()
    }

    /// The URL of a file.
    pub fn url(&self, name: &str) -> String {
        place(&self.location, &self.id, name).to_string()
    }

    /// Writes files into a folder. `progress` is called as in [`push`](crate::push()).
    ///
    /// # Errors
    /// The store's; [`ErrorKind::Corrupt`] if there is none of a name, or its length is another; [`ErrorKind::Busy`] if
    /// `progress` broke it off; the file system's.
    pub fn fetch(&self, names: &[&str], folder: &Path, progress: OnProgress<'_>) -> Result<()> {
        attended(progress, |cancel, progress| {
            let location = Location::parse_for(&self.location.to_string(), Purpose::Read, cancel)?;
            let total_bytes = names.iter().filter_map(|name| self.files.get(*name)).sum();
            let mut done_bytes = 0;
            for name in names {
                let mut advance = |more| {
                    done_bytes += more;
                    progress(Progress { done_bytes, total_bytes })
                };
                self.fetch_one(&location, name, &folder.join(name), &mut |more| {
                    advance(more).is_continue()
                })?;
            }
            Ok(())
        })
    }

    fn fetch_one(
        &self,
        location: &Location,
        name: &str,
        path: &Path,
        proceed: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let from = place(location, &self.id, name);
        let corrupt = |why: &str| {
            Error::new(ErrorKind::Corrupt, PULL).of_file(&from.name()).because(why.to_owned())
        };
        let len = self.len_bytes(name).ok_or_else(|| corrupt("it is not among the files"))?;
        let file = File::create_new(path).map_err(|error| file_error(PULL, path, error))?;
        block_on(from.cancel(), async {
            let (object, _) = Object::open(&from, 1).await?;
            if object.len_bytes() != len {
                return Err(corrupt("its length is not as it was written"));
            }
            let starts = (0..len).step_by(PIECE_BYTES as usize);
            let object = &object;
            let pieces = starts.map(|start| async move {
                let range = start..len.min(start + PIECE_BYTES);
                let piece = persistently(object.location(), || read(object, range.clone())).await?;
                Ok::<_, Error>((start, piece))
            });
            let mut pieces = stream::iter(pieces).buffered(PIECES_AT_ONCE);
            while let Some((start, piece)) = pieces.try_next().await? {
                let written = file.write_all_at(&piece, start);
                written.map_err(|error| file_error(PULL, path, error))?;
                if !proceed(piece.len() as u64) {
                    return Err(broken_off());
                }
            }
            Ok(())
        })
    }
}

/// Reads a range of an object.
async fn read(
    object: &Object,
    range: std::ops::Range<u64>,
) -> std::result::Result<Vec<u8>, crate::object::Refused> {
    let len = range.end - range.start;
    let mut stream = object.get(range).await?;
    let mut bytes = Vec::with_capacity(len as usize);
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece.map_err(|error| object.broken(&error))?);
    }
    if bytes.len() as u64 == len { Ok(bytes) } else { Err(object.short()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(schema: &str, id: &str, name: &str) -> Manifest {
        let files = BTreeMap::from([(name.to_owned(), 7)]);
        Manifest { schema: schema.to_owned(), id: id.to_owned(), files }
    }

    #[test]
    fn names_of_files_lead_nowhere_else() {
        assert_eq!(manifest(SCHEMA, "0a", "memory.image").check(), Ok(()));
        for name in ["", ".", "..", "a/b", "/a", "a b", ".hidden", "a\0", "a?b", "ä"] {
            assert!(manifest(SCHEMA, "0a", name).check().is_err(), "{name:?}");
            assert!(manifest(SCHEMA, name, "a").check().is_err(), "{name:?}");
        }
        let later = manifest("cowslip.bundle/2", "0a", "a").check().unwrap_err();
        assert!(later.contains("cowslip.bundle/2"), "{later}");
    }

    #[test]
    fn other_objects_name_no_files() {
        let bytes_of = |manifest: &Manifest| serde_json::to_vec(manifest).unwrap();
        assert!(Manifest::decode(&bytes_of(&manifest(SCHEMA, "0a", "a"))).is_some());
        assert!(Manifest::decode(&bytes_of(&manifest("cowslip.pointer/1", "0a", "a"))).is_none());
        assert!(Manifest::decode(b"COWSLIPI").is_none());
    }
}
