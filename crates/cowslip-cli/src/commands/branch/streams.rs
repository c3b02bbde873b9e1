//! The standard streams of the copies: files by a pattern, or this command's own.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use cowslip_sys::atomic_file::{BY_UMASK, create_in_place};
use cowslip_sys::{AsFd, OwnedFd};

use super::args::Args;
use crate::exit::{self, Failure};

/// Opens the files for the copies, each file once.
pub(super) struct Streams<'a> {
    args: &'a Args,
    is_alone: bool,
    open: HashMap<(PathBuf, bool), File>,
}

impl<'a> Streams<'a> {
    pub(super) fn new(args: &'a Args, count: u32) -> Self {
        Self { args, is_alone: count == 1, open: HashMap::new() }
    }

    /// The streams of one copy: input, output, errors.
    pub(super) fn of_copy(&mut self, copy: u32) -> Result<[OwnedFd; 3], Failure> {
        let own = |fd: io::Result<OwnedFd>| fd.map_err(exit::system("hand on a standard stream"));
        let args = self.args;
        let input = match &args.input {
            Some(pattern) => self.file(pattern, copy, false)?,
            None if self.is_alone => own(io::stdin().as_fd().try_clone_to_owned())?,
            None => self.file("/dev/null", copy, false)?,
        };
        let output = match &args.output {
            Some(pattern) => self.file(pattern, copy, true)?,
            None => own(io::stdout().as_fd().try_clone_to_owned())?,
        };
        let error = match &args.error {
            Some(pattern) => self.file(pattern, copy, true)?,
            None => own(io::stderr().as_fd().try_clone_to_owned())?,
        };
        Ok([input, output, error])
    }

    fn file(&mut self, pattern: &str, copy: u32, is_written: bool) -> Result<OwnedFd, Failure> {
        let path = name(pattern, copy);
        let failed = |error| exit::io(format!("open {}", path.display()))(error);
        if pattern.contains(NUMBER) {
            return open(&path, is_written).map(OwnedFd::from).map_err(failed);
        }
        let key = (path.clone(), is_written);
        let file = match self.open.get(&key) {
            Some(file) => file.try_clone().map_err(failed)?,
            None => {
                let file = open(&path, is_written).map_err(failed)?;
                self.open.insert(key, file.try_clone().map_err(failed)?);
                file
            }
        };
        Ok(file.into())
    }
}

/// The placeholder for the copy's number.
const NUMBER: &str = "%i";

fn name(pattern: &str, copy: u32) -> PathBuf {
    PathBuf::from(pattern.replace(NUMBER, &copy.to_string()))
}

fn open(path: &Path, is_written: bool) -> io::Result<File> {
    if is_written { create_in_place(path, BY_UMASK) } else { File::open(path) }
}
