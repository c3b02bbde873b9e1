//! State that a crash must not lose: changes to undo are kept in a file until they are undone. `kill -9`
//! leaves no time for it; the next start undoes them.
//!
//! The files lie in `/run/cowslip`, or where systemd says (`RUNTIME_DIRECTORY`), readable by their owner alone. A file of
//! another user is none: that user could have the system set as is said there. They
//! are of one boot and of one process: another boot has forgotten what was set, and a process that still runs
//! puts it back itself.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use cowslip_sys::{atomic_file, process, procfs, regular};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::model::ProcessId;

/// The content of a file.
#[derive(Debug, Serialize, Deserialize)]
struct CrashState<T> {
    boot_id: String,
    owner: ProcessId,
    left: T,
}

/// The state found in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    Nothing,
    /// Its owner still runs.
    Owned(ProcessId),
    /// Its owner is gone and left this.
    Left(T),
    /// It cannot be read: this file.
    Damaged(PathBuf),
}

/// Keeps `left` under `name`, whole or not at all.
pub(super) fn keep<T: Serialize>(name: &str, left: T) -> io::Result<()> {
    let path = path(name);
    let owner = owner(process::pid()).ok_or_else(|| io::Error::other("/proc is not mounted"))?;
    let state = CrashState { boot_id: boot_id()?, owner, left };
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        refuse_foreign(directory)?;
    }
    atomic_file::replace(&path, &serde_json::to_vec(&state)?, 0o600)
}

/// Returns the state kept under `name`, and drops that of another boot.
pub(super) fn find<T: DeserializeOwned>(name: &str) -> io::Result<Found<T>> {
    let mut file = match regular::open(&path(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        file => file?,
    };
    if file.metadata()?.uid() != process::effective_uid() {
        return Ok(Found::Nothing);
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let Ok(state) = serde_json::from_slice::<CrashState<T>>(&text) else {
        return Ok(Found::Damaged(path(name)));
    };
    if state.boot_id != boot_id()? {
        return forget(name).map(|()| Found::Nothing);
    }
    match owner(state.owner.pid) == Some(state.owner) {
        true => Ok(Found::Owned(state.owner)),
        false => Ok(Found::Left(state.left)),
    }
}

/// A folder of another user's, where this user's file would be at that user's mercy.
fn refuse_foreign(folder: &Path) -> io::Result<()> {
    let there = fs::metadata(folder)?;
    let is_ours = [0, process::effective_uid()].contains(&there.uid()) && there.mode() & 0o022 == 0;
    let message = || format!("another user may change what is in {}", folder.display());
    is_ours.then_some(()).ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, message()))
}

/// It has been put back.
pub(super) fn forget(name: &str) -> io::Result<()> {
    match fs::remove_file(path(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn path(name: &str) -> PathBuf {
    let directory = std::env::var_os("RUNTIME_DIRECTORY");
    PathBuf::from(directory.unwrap_or_else(|| "/run/cowslip".into())).join(name)
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn owner(pid: i32) -> Option<ProcessId> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(ProcessId { pid, start_ticks: procfs::start_ticks(&stat)? })
}
