//! Images at URLs, by the feature `remote`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use cowslip::image::Image;
use cowslip::units::ByteCount;
use cowslip_serve::Opener;

use crate::exit::Failure;

/// Returns true if this names an object in a store, rather than a file.
pub(crate) fn is_url(word: &OsStr) -> bool {
    let scheme = word.to_str().and_then(|word| word.split_once("://")).map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Opens an image, in a file or at a URL.
pub(crate) fn open(image: &Path) -> Result<Image, Failure> {
    match image.to_str() {
        Some(url) if is_url(image.as_os_str()) => open_url(url),
        _ => Ok(Image::open(image)?),
    }
}

/// The opener of images for a server, of files and, if there are any, of those at URLs through the folder that is
/// returned, too.
pub(crate) fn opener(
    images: &[PathBuf],
    cache: Option<PathBuf>,
    most: ByteCount,
    tell: fn(&str),
) -> Result<(Opener, Option<PathBuf>), Failure> {
    match images.iter().find(|image| is_url(image.as_os_str())) {
        Some(url) => {
            opener_of_urls(url, cache, most, tell).map(|(opener, folder)| (opener, Some(folder)))
        }
        None => Ok((Opener::default(), None)),
    }
}

#[cfg(feature = "remote")]
mod stores {
    use super::*;
    use crate::exit::USAGE;

    pub(super) fn open_url(url: &str) -> Result<Image, Failure> {
        Ok(cowslip_remote::open(url)?)
    }

    pub(super) fn opener_of_urls(
        _: &Path,
        cache: Option<PathBuf>,
        most: ByteCount,
        tell: fn(&str),
    ) -> Result<(Opener, PathBuf), Failure> {
        let folder = cache.or_else(default_cache).ok_or_else(|| {
            Failure::new(USAGE, "no home directory to keep images in; name one with --cache")
        })?;
        let cache = cowslip_remote::Cache::open(&folder, most.0, tell)?;
        let opener = Opener::new(move |image: &Path| match image.to_str() {
            Some(url) if is_url(image.as_os_str()) => cache.image(url),
            _ => Image::open(image),
        });
        Ok((opener, folder))
    }

    fn default_cache() -> Option<PathBuf> {
        let named =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || {
            let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
            Some(cache?.join("cowslip"))
        };
        named("CACHE_DIRECTORY").or_else(home)
    }
}

#[cfg(not(feature = "remote"))]
mod stores {
    use super::*;
    use crate::exit::UNSUPPORTED;

    pub(super) fn open_url(url: &str) -> Result<Image, Failure> {
        Err(absent(url))
    }

    pub(super) fn opener_of_urls(
        url: &Path,
        _: Option<PathBuf>,
        _: ByteCount,
        _: fn(&str),
    ) -> Result<(Opener, PathBuf), Failure> {
        Err(absent(&url.display().to_string()))
    }

    /// The error of everything that reaches a store.
    pub(crate) fn absent(url: &str) -> Failure {
        let why = "this cowslip was built without object stores: build it with the feature `remote`, which \
                   `cargo install --locked --path crates/cowslip-cli` does, or install a package of it";
        Failure::new(UNSUPPORTED, format!("{url}: {why}"))
    }
}

#[cfg(not(feature = "remote"))]
pub(crate) use stores::absent;
use stores::{open_url, opener_of_urls};

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
