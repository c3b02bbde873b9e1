//! Finds the libraries that `run` preloads: in files, or in a command that `cargo install` built.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use cowslip_sys::process::effective_uid;
use cowslip_sys::{atomic_file, regular};

use crate::exit::{self, DENIED, Failure, NO};

const LIBRARY: &str = "libcowslip_preload.so";
const MALLOC: &str = "libcowslip_malloc.so";

/// The libraries' bytes, and a hash that distinguishes builds.
struct Embedded {
    hash: u64,
    preload: &'static [u8],
    malloc: &'static [u8],
}

// `EMBEDDED`, as build.rs writes it.
include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// The preloaded libraries: Cowslip's and, beside it, the bundled malloc.
pub(in crate::commands) fn libraries() -> Result<[PathBuf; 2], Failure> {
    let library = library()?;
    let malloc = library.with_file_name(MALLOC);
    Ok([library, malloc])
}

/// The preload library: the one that `COWSLIP_LIBRARY` names, else beside this program, in `../lib/cowslip`, or
/// unpacked.
fn library() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("COWSLIP_LIBRARY") {
        return Ok(super::absolute(Path::new(&path)));
    }
    let here = std::env::current_exe().ok();
    let folder = here.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
    let places = [folder.join(LIBRARY), folder.join("../lib/cowslip").join(LIBRARY)];
    if let Some(place) = places.iter().find(|place| place.is_file()) {
        return Ok(place.clone());
    }
    if let Some(embedded) = EMBEDDED {
        return unpack(&embedded, &cache()?);
    }
    Err(Failure::new(
        NO,
        format!(
            "cannot find {LIBRARY} (looked at {} and {}); build it with `cargo build --release` or set \
             COWSLIP_LIBRARY",
            places[0].display(),
            places[1].display()
        ),
    ))
}

/// The folder for unpacked libraries: root's is found by other users' programs as well.
fn cache() -> Result<PathBuf, Failure> {
    if effective_uid() == 0 {
        return Ok("/var/cache/cowslip".into());
    }
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    cache.map(|cache| cache.join("cowslip")).ok_or_else(|| {
        let why = "there is no folder to unpack the libraries to; set XDG_CACHE_HOME or HOME";
        Failure::new(NO, why)
    })
}

/// Unpacks both libraries to a folder of this build's own, each whole or not at all, and returns the path of the first.
fn unpack(embedded: &Embedded, cache: &Path) -> Result<PathBuf, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let folder = cache.join(format!("{version}-{:016x}", embedded.hash));
    let what = || format!("unpack the libraries to {}", folder.display());
    let mode = if effective_uid() == 0 { 0o755 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(mode).create(&folder).map_err(exit::io(what()))?;
    for folder in [cache, &folder] {
        let metadata = fs::symlink_metadata(folder).map_err(exit::io(what()))?;
        if let Some(why) = why_unsafe(&metadata) {
            return Err(Failure::new(
                DENIED,
                format!(
                    "{} is not for libraries: {why}; remove it, or set COWSLIP_LIBRARY",
                    folder.display()
                ),
            ));
        }
    }
    for (name, bytes) in [(LIBRARY, embedded.preload), (MALLOC, embedded.malloc)] {
        let path = folder.join(name);
        if !holds(&path, bytes) {
            atomic_file::replace(&path, bytes, 0o644).map_err(exit::io(what()))?;
        }
    }
    Ok(folder.join(LIBRARY))
}

/// The reason why another user might change a folder's content, if there is one.
fn why_unsafe(folder: &Metadata) -> Option<&'static str> {
    if !folder.is_dir() {
        Some("it is no directory")
    } else if folder.uid() != effective_uid() {
        Some("it is another user's")
    } else if folder.mode() & 0o022 != 0 {
        Some("others may write to it")
    } else {
        None
    }
}

/// Returns true if a file has these bytes and can be read.
fn holds(path: &Path, bytes: &[u8]) -> bool {
    let has = |found: io::Result<Vec<u8>>| found.is_ok_and(|found| found == bytes);
    fs::symlink_metadata(path).is_ok_and(|file| file.len() == bytes.len() as u64)
        && has(regular::read(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const BYTES: Embedded = Embedded { hash: 7, preload: b"preloaded", malloc: b"allocates" };

    struct Cache(PathBuf);

    impl Cache {
        fn new(name: &str) -> Self {
            let name = format!("cowslip-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn refusal(&self) -> String {
            unpack(&BYTES, &self.0).expect_err("it is not safe").to_string()
        }
    }

    impl Drop for Cache {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn both_libraries_are_unpacked_once_and_again_when_they_are_damaged() {
        let cache = Cache::new("unpack");
        let library = unpack(&BYTES, &cache.0).unwrap();
        let malloc = library.with_file_name(MALLOC);
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let first = inode(&library);
        assert_eq!(fs::read(&library).unwrap(), BYTES.preload);
        assert_eq!(fs::read(&malloc).unwrap(), BYTES.malloc);
        assert_eq!(fs::metadata(&cache.0).unwrap().mode() & 0o022, 0);

        // The same length with other content, and a shorter file.
        fs::write(&malloc, b"ALLOCATES").unwrap();
        assert_eq!(unpack(&BYTES, &cache.0).unwrap(), library);
        assert_eq!(fs::read(&malloc).unwrap(), BYTES.malloc);
        assert_eq!(inode(&library), first, "what is right is left alone");
        fs::write(&library, b"pre").unwrap();
        unpack(&BYTES, &cache.0).unwrap();
        assert_eq!(fs::read(&library).unwrap(), BYTES.preload);
    }

    #[test]
    fn builds_do_not_share_a_folder() {
        let cache = Cache::new("builds");
        let other = Embedded { hash: 8, preload: b"another", malloc: b"build's" };
        let (one, two) = (unpack(&BYTES, &cache.0).unwrap(), unpack(&other, &cache.0).unwrap());
        assert_ne!(one, two);
        assert_eq!(fs::read(one).unwrap(), BYTES.preload);
    }

    #[test]
    fn a_folder_that_others_may_change_is_refused() {
        let cache = Cache::new("unsafe");
        unpack(&BYTES, &cache.0).unwrap();
        fs::set_permissions(&cache.0, PermissionsExt::from_mode(0o777)).unwrap();
        assert!(cache.refusal().contains("others may write to it"), "{}", cache.refusal());

        let link = Cache::new("link");
        fs::set_permissions(&cache.0, PermissionsExt::from_mode(0o700)).unwrap();
        symlink(&cache.0, &link.0).unwrap();
        assert!(link.refusal().contains("it is no directory"), "{}", link.refusal());
        fs::remove_file(&link.0).unwrap();

        if effective_uid() != 0 {
            println!("SKIPPED: root: only it can give a folder away");
            return;
        }
        std::os::unix::fs::chown(&cache.0, Some(65534), None).unwrap();
        assert!(cache.refusal().contains("it is another user's"), "{}", cache.refusal());
    }
}
