//! Images at URLs: what the program that can reach them does.

#![allow(unreachable_pub, reason = "a part of the library, and of the command")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use cowslip::image::{Image, OnProgress};
use cowslip::units::ByteCount;
use cowslip_serve::Opener;
use serde_json::Value;

use crate::exit::{Failure, USAGE};

/// Opens the image at a URL.
pub type OpenUrl = Box<dyn Fn(&str) -> cowslip::Result<Image> + Send + Sync>;

/// What reaches object stores. What it returns as JSON is what `--json` writes.
pub trait Remote: Sync {
    /// Opens the image at a URL, and those that it needs.
    ///
    /// # Errors
    /// The store's; what lies there is no image.
    fn open(&self, url: &str) -> cowslip::Result<Image>;

    /// What opens images at URLs, and keeps what is read of them in a folder, at most so many bytes. `tell` is told why
    /// one is not kept.
    ///
    /// # Errors
    /// The file system's.
    fn cache(&self, folder: &Path, most_bytes: u64, tell: fn(&str)) -> cowslip::Result<OpenUrl>;

    /// Sends an image, and those that it needs; `latest` is what shall name it.
    ///
    /// # Errors
    /// The store's; the image is damaged.
    fn push(
        &self,
        file: &Path,
        url: &str,
        latest: Option<&str>,
        progress: OnProgress<'_>,
    ) -> cowslip::Result<Value>;

    /// Fetches an image, and those that it needs.
    ///
    /// # Errors
    /// The store's; the image is damaged; the file system's.
    fn pull(&self, url: &str, file: &Path, progress: OnProgress<'_>) -> cowslip::Result<Value>;

    /// The images in a folder.
    ///
    /// # Errors
    /// The store's.
    fn list(&self, url: &str) -> cowslip::Result<Value>;

    /// Merges chains of more than `merge` images of a folder, and deletes the images that none of the youngest
    /// `keep` needs, nor a pointer, nor did so for `grace`; or says only what would be done.
    ///
    /// # Errors
    /// The store's.
    fn prune(
        &self,
        url: &str,
        keep: usize,
        merge: Option<usize>,
        grace: Duration,
        is_dry_run: bool,
        progress: OnProgress<'_>,
    ) -> cowslip::Result<Value>;
}

/// Set in the program that can.
pub(crate) static REMOTE: OnceLock<&dyn Remote> = OnceLock::new();

/// Whether this names something in a store, rather than a file.
pub(crate) fn is_url(word: &OsStr) -> bool {
    let scheme = word.to_str().and_then(|word| word.split_once("://")).map(|(scheme, _)| scheme);
    scheme.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// What reaches a URL.
pub(crate) fn of(url: &str) -> Result<&'static dyn Remote, Failure> {
    let remote = REMOTE.get().filter(|_| is_url(OsStr::new(url)));
    remote.copied().ok_or_else(|| {
        Failure::new(USAGE, format!("{url} is no URL: s3://…, gs://…, az://…, oci://…, https://…"))
    })
}

/// Opens an image, in a file or at a URL.
pub(crate) fn open(image: &Path) -> cowslip::Result<Image> {
    match (REMOTE.get(), image.to_str()) {
        (Some(remote), Some(url)) if is_url(OsStr::new(url)) => remote.open(url),
        _ => Image::open(image),
    }
}

/// What opens images for a server: files, and, if there are any, those at URLs through a folder.
pub(crate) fn opener(
    images: &[PathBuf],
    cache: Option<PathBuf>,
    most: ByteCount,
    tell: fn(&str),
) -> Result<Opener, Failure> {
    let Some(remote) = REMOTE.get().filter(|_| images.iter().any(|it| is_url(it.as_os_str())))
    else {
        return Ok(Opener::default());
    };
    let folder = cache.or_else(default_cache).ok_or_else(|| {
        Failure::new(USAGE, "no home directory to keep images in; name one with --cache")
    })?;
    let open_url = remote.cache(&folder, most.0, tell)?;
    Ok(Opener::new(move |image: &Path| match image.to_str() {
        Some(url) if is_url(image.as_os_str()) => open_url(url),
        _ => Image::open(image),
    }))
}

fn default_cache() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    let home = || {
        let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
        Some(cache?.join("cowslip"))
    };
    named("CACHE_DIRECTORY").or_else(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_no_urls() {
        for url in ["s3://bucket/key", "https://host/key"] {
            assert!(is_url(OsStr::new(url)));
        }
        for file in ["store.image", "./s3://bucket", "://", "a:b", "s3:/bucket"] {
            assert!(!is_url(OsStr::new(file)), "{file}");
        }
    }
}
