//! The socket at which this process is found, in a directory that only its user can enter.

use core::time::Duration;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use cowslip::raw::branch::{DIRECTORY, Request, file_name, parse_file_name};
use cowslip_sys::reserved_fd::ReservedFd;
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd, packets, process, socket};

/// Access for the user only.
const MODE_OF_DIRECTORY: u32 = 0o700;
const OTHERS: u32 = 0o077;

const ROOT: u32 = 0;

pub(crate) struct Listener {
    socket: ReservedFd,
    path: PathBuf,
    /// Its directory goes with it.
    is_alone: bool,
}

impl Listener {
    /// In the first directory where that can be: `$XDG_RUNTIME_DIR`, `/run` for root, `/tmp`, and there, if another user took the
    /// directory's name, one with an unforeseeable name.
    pub(super) fn open(name: Option<&str>) -> Result<Self, Errno> {
        let file = file_name(process::pid(), name);
        let user = process::effective_uid();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let runtime = runtime.filter(|path| path.is_absolute()).map(|path| path.join(DIRECTORY));
        let run = (user == ROOT).then(|| Path::new("/run").join(DIRECTORY));
        let shared = Path::new("/tmp").join(format!("{DIRECTORY}-{user}"));
        let unforeseen = RandomState::new().build_hasher().finish();
        let alone = Path::new("/tmp").join(format!("{DIRECTORY}-{user}-{unforeseen:016x}"));
        let open = |directory: PathBuf, is_alone| {
            prepare(&directory, user)?;
            let path = directory.join(&file);
            let socket = ReservedFd::hold(packets::listen(&path)?);
            Ok(Self { socket, path, is_alone })
        };
        let mut usual = runtime.into_iter().chain(run).chain([shared]);
        usual
            .find_map(|directory| open(directory, false).ok())
            .map_or_else(|| open(alone, true), Ok)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Called in a child: the listener is its parent's.
    pub(super) fn leave(&self, shares_descriptors: bool) {
        if shares_descriptors {
            self.socket.leave_open();
        } else {
            self.socket.close_early();
        }
    }

    /// Removes the socket's name.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
        if let Some(directory) = self.path.parent().filter(|_| self.is_alone) {
            let _ = fs::remove_dir(directory);
        }
    }

    /// Returns the next request and its connection. Returns `None` if there is none, or if the peer sent none or is not
    /// allowed to.
    ///
    /// # Errors
    /// The kernel's, if the socket no longer accepts connections.
    pub(crate) fn next_request(
        &self,
        patience: Duration,
    ) -> Result<Option<(OwnedFd, Request<'static>)>, Errno> {
        let connection = match packets::accept(self.as_fd()) {
            Ok(connection) => connection,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let peer = packets::peer(connection.as_fd())?;
        if ![ROOT, process::effective_uid()].contains(&peer.uid) {
            return Ok(None);
        }
        if packets::wait(connection.as_fd(), Some(patience)) != Ok(true) {
            return Ok(None);
        }
        let mut buffer = [0; 64];
        let Ok((length, _)) = socket::receive(connection.as_fd(), &mut buffer) else {
            return Ok(None);
        };
        let request = match Request::parse(&buffer[..length]) {
            Some(Request::Branch { version, copies }) => Request::Branch { version, copies },
            Some(Request::Release) => Request::Release,
            _ => return Ok(None),
        };
        // The program may have closed its standard streams.
        Ok(cowslip_sys::supervision::above_streams(connection)
            .ok()
            .map(|connection| (connection, request)))
    }
}

/// Creates the directory, or checks that it is the user's alone, and removes sockets that ended processes left behind.
fn prepare(directory: &Path, user: u32) -> Result<(), Errno> {
    match DirBuilder::new().mode(MODE_OF_DIRECTORY).create(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(errno_of(error));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(directory).map_err(errno_of)?;
    if !found.is_dir() || found.uid() != user || found.mode() & OTHERS != 0 {
        return Err(Errno::PERM);
    }
    for entry in fs::read_dir(directory).map_err(errno_of)?.flatten() {
        let name = entry.file_name();
        let is_socket = name.to_str().and_then(parse_file_name).is_some();
        if is_socket && packets::connect(&entry.path()).err() == Some(Errno::CONNREFUSED) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
