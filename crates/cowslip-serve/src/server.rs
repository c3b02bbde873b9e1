//! The socket, the users that may connect, and the number of clients at a time.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cowslip::image::served::{self, Answer, Request};
use cowslip_sys::{AsFd, BorrowedFd, Errno, process, socket};

use crate::clients::{Clients, PATIENCE};
use crate::lock::Lock;
use crate::metrics::count;
use crate::options::Options;
use crate::residents::Residents;

/// Device and inode.
type FileId = (u64, u64);

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    /// The socket's path and file id, if this process made it.
    made: Option<(PathBuf, FileId)>,
    options: Options,
    residents: Arc<Residents>,
    tell: fn(&str),
}

impl Server {
    /// Makes a socket at `path`, of mode 0600. A socket that a killed server left is replaced. `tell` gets messages for
    /// a log.
    ///
    /// # Errors
    /// `AddrInUse` if a server listens there, `AlreadyExists` if something else is at `path`; `WouldBlock` if another
    /// process of this user holds the lock by which its servers begin one after the other; the system's.
    pub fn bind(path: &Path, options: Options, tell: fn(&str)) -> io::Result<Self> {
        let locked = Lock::take(path, PATIENCE)?;
        let listener = match socket::listen_privately(path) {
            Err(Errno::ADDRINUSE) if is_left_over(path) => {
                fs::remove_file(path)?;
                socket::listen_privately(path)
            }
            Err(Errno::ADDRINUSE) if !is_socket(path) => {
                let message = "there is something else than a socket";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            bound => bound,
        }?;
        let mut server = Self::on(UnixListener::from(listener), options, tell);
        server.made = Some((path.to_owned(), file_id(path)?));
        drop(locked);
        Ok(server)
    }

    /// A server on a socket that another process made, and removes.
    pub fn on(listener: UnixListener, options: Options, tell: fn(&str)) -> Self {
        let residents = Residents::new(&options, tell);
        Self { listener, made: None, options, residents: Arc::new(residents), tell }
    }

    /// Loads the images and serves them until `stop` can be read. Clients are answered from the beginning: one that
    /// restores an image that is being loaded is lent the loaded part, and one that asks for a template waits. At the
    /// end the requests that have arrived are answered, lending and waiting end, and a load in progress is abandoned.
    ///
    /// # Errors
    /// The system's, if it cannot wait.
    pub fn run(&self, stop: BorrowedFd<'_>) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        let residents = Arc::clone(&self.residents);
        let loader = thread::Builder::new().name("cowslip-loader".into());
        loader.spawn(move || residents.load_all())?;
        self.accept(stop)
    }

    fn accept(&self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let Options { most_clients, .. } = self.options;
        let mut clients = Clients::new(Arc::clone(&self.residents), most_clients, self.tell);
        let mut is_refused = false;
        let served = loop {
            let (mut awaited, wait) = clients.awaited();
            awaited.extend([self.listener.as_fd(), stop]);
            let mut ready = match process::wait_many_readable(&awaited, wait) {
                Ok(ready) => ready,
                Err(errno) => break Err(errno.into()),
            };
            if ready.pop() == Some(true) {
                break Ok(());
            }
            let has_client = ready.pop() == Some(true);
            clients.attend();
            if !has_client {
                continue;
            }
            match self.listener.accept() {
                Ok((client, _)) if is_of_us(&client) => clients.add(client),
                Ok(_) => count(&self.residents.metrics.refused_peers),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => {
                    // Too many open files, most likely: those of clients will close.
                    if !std::mem::replace(&mut is_refused, true) {
                        (self.tell)(&format!("accept a client: {error}"));
                    }
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            }
            is_refused = false;
        };
        self.residents.close();
        clients.end();
        served
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Another server may have put its own socket there.
        if let Some((path, id)) = &self.made
            && file_id(path).is_ok_and(|now| now == *id)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn file_id(path: &Path) -> io::Result<FileId> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Returns true for a socket at `path` that no process listens to any more.
fn is_left_over(path: &Path) -> bool {
    is_socket(path) && socket::connect_at_once(path).is_err_and(|errno| errno == Errno::CONNREFUSED)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// Returns true if a process of this user, or of root, is at the other end.
fn is_of_us(client: &UnixStream) -> bool {
    socket::peer_uid(client.as_fd()).is_ok_and(|uid| uid == 0 || uid == process::effective_uid())
}

/// The default socket: the one that `COWSLIP_SERVE` names, or a place in the user's runtime directory, or root's.
pub fn default_socket() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let in_runtime =
        || variable("XDG_RUNTIME_DIR").map(|runtime| runtime.join("cowslip-serve.socket"));
    let of_root = || PathBuf::from("/run/cowslip-serve.socket");
    variable(served::VARIABLE).or_else(in_runtime).unwrap_or_else(of_root)
}

/// Counters of the server at `path`, in Prometheus' format.
///
/// # Errors
/// The socket's; `ResourceBusy` if the server has too many clients.
pub fn metrics_of(path: &Path) -> io::Result<String> {
    let mut stream = served::connect(path)?;
    if Request::Metrics.ask(&stream)? != Answer::Follows {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
