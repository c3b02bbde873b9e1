//! State that a crash must not lose: changes to undo are kept in a file until they are undone. `kill -9`
//! leaves no time for it; the next start undoes them.
//!
//! The files lie in `/run/cowslip`, or in systemd's `RUNTIME_DIRECTORY`, readable by their owner alone. Each
//! belongs to one boot and one process: a reboot undoes the changes, and a process that still runs undoes its
//! own.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use cowslip_sys::{atomic_file, process, procfs};
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
    }
    atomic_file::replace(&path, &serde_json::to_vec(&state)?, 0o600)
}

/// Returns the state kept under `name`, and drops that of another boot.
pub(super) fn find<T: DeserializeOwned>(name: &str) -> io::Result<Found<T>> {
    let text = match fs::read(path(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        text => text?,
    };
    let Ok(it) = serde_json::from_slice::<CrashState<T>>(&text) else {
        return Ok(Found::Damaged(path(name)));
    };
    if it.boot_id != boot_id()? {
        return forget(name).map(|()| Found::Nothing);
    }
    match owner(it.owner.pid) == Some(it.owner) {
        true => Ok(Found::Owned(it.owner)),
        false => Ok(Found::Left(it.left)),
    }
}

/// Removes the file, once its changes are undone.
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
