//! Serves a template to clients that connect to a socket.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cowslip_sys::{AsFd, socket, waiting};

use super::{Peer, Template};

/// Between looks of the thread for its end.
const LOOK: Duration = Duration::from_millis(100);

/// Sends a template to every process that connects to a Unix socket and calls [`Template::receive`], until this is
/// dropped.
///
/// One thread serves. A client that disconnects, or takes longer than a second, gets nothing. For images, which other
/// programs can load, there is `cowslip serve`; this is for memory that one program has frozen and that no file holds.
///
/// ```
/// use std::os::unix::net::UnixStream;
///
/// use cowslip::{Arena, Template, TemplateServer, units::ByteCount};
///
/// let arena = Arena::new(ByteCount::mib(64))?;
/// let table = arena.slice::<u64>(1 << 20)?;
/// let path = std::env::temp_dir().join(format!("doc-server-{}.socket", std::process::id()));
/// let server = TemplateServer::start(arena.freeze()?.into_template()?, &path)?;
///
/// // In any process of this user:
/// let socket = UnixStream::connect(&path)?;
/// // SAFETY: the server is ours.
/// let template = unsafe { Template::receive(&socket) }?;
/// assert_eq!(template.regions().len(), 1);
/// # drop((socket, server));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TemplateServer {
    path: PathBuf,
    /// Device and inode of the socket.
    id: (u64, u64),
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TemplateServer {
    /// Creates a socket at `path`. Only this user and root get the template.
    ///
    /// # Errors
    /// An error of the system, such as [`io::ErrorKind::AddrInUse`] if `path` exists.
    pub fn start(template: Template, path: &Path) -> io::Result<Self> {
        let listener = UnixListener::from(socket::listen_privately(path)?);
        listener.set_nonblocking(true)?;
        let id = file_id(path)?;
        let closing = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&closing);
        let serving = move || serve(&template, &listener, &theirs);
        let thread = thread::Builder::new().name("cowslip-server".into()).spawn(serving);
        let thread = thread.inspect_err(|_| drop(fs::remove_file(path)))?;
        Ok(Self { path: path.to_owned(), id, closing, thread: Some(thread) })
    }
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

fn serve(template: &Template, listener: &UnixListener, closing: &AtomicBool) {
    while !closing.load(Relaxed) {
        let mut ready = [false];
        let waited = waiting::readable(&[listener.as_fd()], &mut ready, Some(LOOK));
        if waited.is_ok() && ready == [false] {
            continue;
        }
        let Ok((mut socket, _)) = listener.accept() else {
            // Without a descriptor for it the client stays in the queue.
            let _ = waiting::nap(LOOK);
            continue;
        };
        // A client that has disconnected, or is too slow, gets nothing.
        let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = socket.set_read_timeout(Some(Duration::from_secs(1)));
        // The socket's mode lets only these connect, unless it is changed.
        let is_ours = Peer::of_this_user(&socket).is_ok();
        if !closing.load(Relaxed) && is_ours && template.send(&socket).is_ok() {
            // The other side closes it when it has the template.
            let _ = socket.read(&mut [0]);
        }
    }
}

impl Drop for TemplateServer {
    fn drop(&mut self) {
        self.closing.store(true, Relaxed);
        // Ends the thread's wait at once, unless the path is another server's by now.
        let _ = UnixStream::connect(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if file_id(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
