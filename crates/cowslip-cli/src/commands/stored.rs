//! Checkpoints of processes in object stores.
//!
//! One is written to a folder first: a process is held for milliseconds, and a store takes its time. A memory in plain is read
//! from the store while its process runs; an encrypted one is fetched before.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use cowslip::image::OnProgress;
use cowslip_criu::{Kept, Keys, PrivateFolder};

use crate::exit::{Failure, USAGE};
use crate::remote::is_url;

/// The place of a new checkpoint.
pub(super) enum Destination<'a> {
    Folder(&'a Path),
    /// A store, and the folder from which it is sent.
    Store {
        url: &'a str,
        folder: PathBuf,
        _parent: PrivateFolder,
    },
}

impl<'a> Destination<'a> {
    /// Finds out that it can be written to, before a process is held.
    pub(super) fn find(output: &'a Path, has_bases: bool) -> Result<Self, Failure> {
        let url = output.to_str().filter(|_| is_url(output.as_os_str()));
        let Some(url) = url else { return Ok(Self::Folder(output)) };
        if has_bases {
            let message = "--base is for folders: a checkpoint in a store is whole".to_owned();
            return Err(Failure::new(USAGE, message));
        }
        stores::check_new(url)?;
        let parent = PrivateFolder::create()?;
        Ok(Self::Store { url, folder: parent.path().join("checkpoint"), _parent: parent })
    }

    /// The folder to write.
    pub(super) fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder,
            Self::Store { folder, .. } => folder,
        }
    }

    /// Sends the folder, which is whole, to its store.
    pub(super) fn take(&self, progress: OnProgress<'_>) -> cowslip::Result<()> {
        match self {
            Self::Folder(_) => Ok(()),
            Self::Store { url, folder, .. } => stores::send(url, folder, progress),
        }
    }
}

/// A checkpoint in a store.
pub(super) struct Stored(stores::Found);

impl Stored {
    /// Opens what is at a URL; `None` for a file, and for another object.
    pub(super) fn open(image: &Path) -> Result<Option<Self>, Failure> {
        match image.to_str().filter(|_| is_url(image.as_os_str())) {
            Some(url) => Ok(stores::find(url)?.map(Self)),
            None => Ok(None),
        }
    }

    /// Opens the checkpoint, with files in a folder.
    pub(super) fn fetch(
        &self,
        folder: &Path,
        keys: &Keys,
        stop: &AtomicBool,
    ) -> Result<Kept, Failure> {
        stores::fetch(&self.0, folder, keys, stop)
    }
}

#[cfg(feature = "remote")]
mod stores {
    use std::ops::ControlFlow;
    use std::sync::atomic::Ordering::Relaxed;

    use cowslip::ErrorKind;
    use cowslip::image::Progress as Done;
    use cowslip_criu::StoredFiles;
    use cowslip_remote::Bundle;
    use cowslip_report::Progress;

    use super::*;

    pub(super) type Found = Bundle;

    pub(super) fn check_new(url: &str) -> Result<(), Failure> {
        Ok(cowslip_remote::check_new(url, &mut |_| ControlFlow::Continue(()))?)
    }

    pub(super) fn send(url: &str, folder: &Path, progress: OnProgress<'_>) -> cowslip::Result<()> {
        let paths = StoredFiles::make(folder)?.paths(folder);
        let files: Vec<_> = paths.iter().map(|(name, path)| (*name, path.as_path())).collect();
        cowslip_remote::push_files(url, &files, progress).map(drop)
    }

    pub(super) fn find(url: &str) -> cowslip::Result<Option<Bundle>> {
        Bundle::open(url)
    }

    pub(super) fn fetch(
        bundle: &Bundle,
        folder: &Path,
        keys: &Keys,
        stop: &AtomicBool,
    ) -> Result<Kept, Failure> {
        let of_checkpoint = [StoredFiles::PLAIN, StoredFiles::ENCRYPTED];
        let has = |files: &StoredFiles| {
            let mut names = files.others.iter().chain([&files.memory]);
            names.all(|name| bundle.len_bytes(name).is_some())
        };
        let Some(files) = of_checkpoint.into_iter().find(has) else {
            let error = cowslip::Error::new(ErrorKind::Corrupt, "restore a process");
            return Err(error.because("the files at this URL are no checkpoint's").into());
        };
        let mut names = files.others.to_vec();
        if !files.is_image {
            names.push(files.memory);
        }
        let mut progress = Progress::new();
        progress.phase("fetching the checkpoint");
        bundle.fetch(&names, folder, &mut |done: Done| {
            progress.set_bytes(done.done_bytes, done.total_bytes);
            if stop.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        progress.finish();
        Ok(match files.is_image {
            true => Kept::open_stored(folder, cowslip_remote::open(&bundle.url(files.memory))?)?,
            false => Kept::open(folder, keys, &[])?,
        })
    }
}

#[cfg(not(feature = "remote"))]
mod stores {
    use super::*;
    use crate::remote::absent;

    /// There is none.
    pub(super) enum Found {}

    pub(super) fn check_new(url: &str) -> Result<(), Failure> {
        Err(absent(url))
    }

    pub(super) fn send(_: &str, _: &Path, _: OnProgress<'_>) -> cowslip::Result<()> {
        Ok(())
    }

    pub(super) fn find(url: &str) -> Result<Option<Found>, Failure> {
        Err(absent(url))
    }

    pub(super) fn fetch(
        found: &Found,
        _: &Path,
        _: &Keys,
        _: &AtomicBool,
    ) -> Result<Kept, Failure> {
        match *found {}
    }
}
