//! The RAM of images for machines of Firecracker, or of another monitor that hands its userfaultfd over in the same way.
//!
//! ```text
//!   monitor ── regions as JSON, its userfaultfd ──▶ [handler]  a thread for each machine
//!   its threads ──a page is missing──▶ kernel ──▶ [handler] ── content of an image, restored lazily ──▶ page
//! ```
//! The monitor maps memory, registers it for missing pages, connects, and sends one message (Firecracker's
//! `docs/snapshotting/handling-page-faults-on-snapshot-resume.md`). A page is filled when a thread waits for it, with
//! pages around it. A machine whose memory is to be whole gets all pages in the background, and is then left to the
//! kernel: it needs the handler no more.
//!
//! Clients are strangers: each number of the message is checked, pages are written only where the client said and where
//! its process registered them, and it gets the content of the image alone.

mod content;
mod handshake;
mod machine;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cowslip_sys::{Errno, packets, process, socket};

pub use content::{Content, RAM};
use machine::{End, Machine};

/// Before another connection is accepted where one could not be.
const REST: Duration = Duration::from_millis(10);

/// A handler of page faults that listens.
#[derive(Debug)]
pub struct Handler {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket.
    id: (u64, u64),
}

/// The machines that a [`Handler`] serves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Machines at a time.
    pub most_machines: usize,
    /// All pages are brought in, and the machine is then left to the kernel.
    pub whole: bool,
    /// Gets messages for a log.
    pub tell: fn(&str),
}

impl Handler {
    /// Makes a socket at `path`, of mode 0600. A socket that a killed handler left is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there, or something else is there; the system's.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener = match socket::listen_privately(path) {
            Err(Errno::ADDRINUSE) if is_left_over(path) => {
                fs::remove_file(path)?;
                socket::listen_privately(path)
            }
            bound => bound,
        }?;
        Ok(Self { listener: listener.into(), path: path.to_owned(), id: file_id(path)? })
    }

    /// Serves machines until `stop` can be read, and then until each of them has all of its pages, or has ended.
    ///
    /// # Errors
    /// The system's, if it cannot wait.
    pub fn run(
        &self,
        content: &Arc<Content>,
        options: &Options,
        stop: BorrowedFd<'_>,
    ) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        thread::scope(|scope| {
            let mut machines: Vec<thread::ScopedJoinHandle<'_, ()>> = Vec::new();
            let mut is_told = false;
            loop {
                let awaited = [self.listener.as_fd(), stop];
                let ready = process::wait_many_readable(&awaited, None)?;
                if ready[1] {
                    return Ok(());
                }
                let stream = match self.listener.accept() {
                    Ok((stream, _)) => stream,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) => {
                        if !std::mem::replace(&mut is_told, true) {
                            (options.tell)(&format!("accept a machine: {error}"));
                        }
                        thread::sleep(REST);
                        continue;
                    }
                };
                is_told = false;
                machines.retain(|machine| !machine.is_finished());
                if machines.len() >= options.most_machines {
                    (options.tell)("a machine is refused: there are as many as may be");
                    continue;
                }
                let thread = thread::Builder::new().name("cowslip-machine".into());
                let started = thread.spawn_scoped(scope, || serve(stream, content, options, stop));
                match started {
                    Ok(machine) => machines.push(machine),
                    Err(error) => (options.tell)(&format!("start a thread: {error}")),
                }
            }
        })
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // Another handler may have put its own socket there.
        if file_id(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Returns true for a socket at `path` that no process listens to any more.
fn is_left_over(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket && socket::connect_at_once(path).is_err_and(|errno| errno == Errno::CONNREFUSED)
}

/// Serves one machine until its end.
fn serve(stream: UnixStream, content: &Arc<Content>, options: &Options, stop: BorrowedFd<'_>) {
    let tell = options.tell;
    let Ok(peer) = packets::peer(stream.as_fd()) else { return };
    if peer.uid != 0 && peer.uid != process::effective_uid() {
        tell(&format!("process {} of another user, {}, is refused", peer.pid, peer.uid));
        return;
    }
    let pid = peer.pid;
    let (mappings, uffd) = match handshake::receive(&stream, content.bytes()) {
        Ok(Some(received)) => received,
        Ok(None) => return,
        Err(error) => return tell(&format!("process {pid} is refused: {error}")),
    };
    // Firecracker closes the connection at once: it tells nothing of the process' end.
    drop(stream);
    let life: OwnedFd = match process::pidfd(pid) {
        Ok(life) => life,
        Err(Errno::SRCH) => return,
        Err(errno) => {
            let fix = "run the handler in the PID namespace of its machines, or in one above";
            return tell(&format!("a machine is refused: its end cannot be seen ({errno}): {fix}"));
        }
    };
    let mut machine = Machine::new(uffd, &mappings, Arc::clone(content));
    match machine.serve(life.as_fd(), stop, options.whole) {
        End::Gone | End::Whole => {}
        End::Refused(why) => {
            tell(&format!("process {pid} gets no more pages, and waits at the next: {why}"));
        }
    }
}
