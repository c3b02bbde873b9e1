//! Images at URLs: what the program that can reach them does.

#![allow(unreachable_pub, reason = "a part of the library, and of the command")]

use std::ffi::OsStr;
use std::path::Path;
use std::sync::OnceLock;

use cowslip::image::{Image, OnProgress};
use serde_json::Value;

use crate::exit::{Failure, USAGE};

/// What reaches object stores. What it returns as JSON is what `--json` writes.
pub trait Remote: Sync {
    /// Opens the image at a URL, and those that it needs.
    ///
    /// # Errors
    /// The store's; what lies there is no image.
    fn open(&self, url: &str) -> cowslip::Result<Image>;

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
