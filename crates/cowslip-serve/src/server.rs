//! The socket: who may have what, and how many at a time.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cowslip::image::served::{self, Answer, Request};
use cowslip::units::ByteCount;
use cowslip_sys::{AsFd, BorrowedFd, Errno, process, socket};

use crate::metrics::count;
use crate::residents::Residents;

/// A client has so long for each thing that it says or takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is served, to how many.
#[derive(Clone, Debug)]
pub struct Options {
    /// The images.
    pub images: Vec<PathBuf>,
    /// Clients at a time; who comes beyond that is told so.
    pub most_clients: usize,
    /// Memory of the images held; the least recently used goes first.
    pub most_memory: ByteCount,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    /// The socket's place, if this process made it.
    path: Option<PathBuf>,
    options: Options,
    residents: Arc<Residents>,
    tell: fn(&str),
}

impl Server {
    /// Makes a socket at `path`, of mode 0600. One that a server left which was killed is replaced. `tell` is what is done
    /// with messages for a log.
    ///
    /// # Errors
    /// `AddrInUse` if a server listens there, or something else is at `path`; the system's.
    pub fn bind(path: &Path, options: Options, tell: fn(&str)) -> io::Result<Self> {
        let listener = match socket::listen_privately(path) {
            Err(Errno::ADDRINUSE) if is_left_over(path) => {
                fs::remove_file(path)?;
                socket::listen_privately(path)
            }
            bound => bound,
        }?;
        let mut server = Self::on(UnixListener::from(listener), options, tell);
        server.path = Some(path.to_owned());
        Ok(server)
    }

    /// A server on a socket that somebody else made, and removes.
    pub fn on(listener: UnixListener, options: Options, tell: fn(&str)) -> Self {
        let residents = Residents::new(options.images.clone(), options.most_memory.0);
        Self { listener, path: None, options, residents: Arc::new(residents), tell }
    }

    /// Loads the images and serves them until `stop` can be read. Clients are answered from the beginning: who asks for an
    /// image that is being loaded waits for that. At the end they are waited for.
    ///
    /// # Errors
    /// The system's, if it cannot wait.
    pub fn run(&self, stop: BorrowedFd<'_>) -> io::Result<()> {
        self.listener.set_nonblocking(true)?;
        let closing = Arc::new(AtomicBool::new(false));
        let loader = {
            let (residents, tell) = (Arc::clone(&self.residents), self.tell);
            let closing = Arc::clone(&closing);
            thread::Builder::new()
                .name("cowslip-load".into())
                .spawn(move || residents.load_all(&tell, &|| !closing.load(Relaxed)))?
        };
        let served = self.accept(stop);
        closing.store(true, Relaxed);
        let _ = loader.join();
        served
    }

    fn accept(&self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let mut clients: Vec<JoinHandle<()>> = Vec::new();
        let served = loop {
            let mut ready = [false; 2];
            if let Err(errno) =
                process::wait_readable(&[self.listener.as_fd(), stop], &mut ready, None)
            {
                break Err(errno.into());
            }
            if ready[1] {
                break Ok(());
            }
            clients.retain(|thread| !thread.is_finished());
            let client = match self.listener.accept() {
                Ok((client, _)) => client,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => {
                    // Too many open files, most likely: those of clients close.
                    (self.tell)(&format!("accept a client: {error}"));
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
            if clients.len() >= self.options.most_clients {
                count(&self.residents.metrics.busy);
                let _ = client.set_nonblocking(true);
                let _ = Answer::Busy.write(&client);
                continue;
            }
            let (residents, tell) = (Arc::clone(&self.residents), self.tell);
            let thread = thread::Builder::new().name("cowslip-client".into());
            let started = thread.spawn(move || {
                // What a client does wrong, or does not wait for, is its own affair.
                let _ = answer(&client, &residents, tell);
            });
            match started {
                Ok(thread) => clients.push(thread),
                Err(error) => (self.tell)(&format!("start a thread for a client: {error}")),
            }
        };
        clients.into_iter().for_each(|thread| drop(thread.join()));
        served
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a socket at `path` is one that nobody listens to any more.
fn is_left_over(path: &Path) -> bool {
    let refused = UnixStream::connect(path).map_err(|error| error.kind());
    refused.is_err_and(|kind| kind == io::ErrorKind::ConnectionRefused)
}

fn answer(mut client: &UnixStream, residents: &Residents, tell: fn(&str)) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let uid = socket::peer_uid(client.as_fd())?;
    if uid != 0 && uid != process::effective_uid() {
        count(&residents.metrics.refused_peers);
        return Ok(());
    }
    let request = Request::read(client)?;
    count(&residents.metrics.requests);
    match request {
        Request::Template { image, arena } => match residents.get((image, arena), &tell) {
            Ok(template) => {
                Answer::Follows.write(client)?;
                let sent =
                    template.send(client).map_err(|error| io::Error::other(error.to_string()));
                sent?;
                // Closed by the other side when it has the template, which this one keeps until then.
                let _ = client.read(&mut [0]);
                count(&residents.metrics.templates);
                Ok(())
            }
            Err(refusal) => refusal.write(client),
        },
        Request::Metrics => {
            Answer::Follows.write(client)?;
            client.write_all(residents.text().as_bytes())
        }
        _ => Answer::NotHeld.write(client),
    }
}

/// Where a server listens that was told nothing else: what `COWSLIP_SERVE` names, or a place in the user's runtime
/// directory, or root's.
pub fn default_socket() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let in_runtime =
        || variable("XDG_RUNTIME_DIR").map(|runtime| runtime.join("cowslip-serve.socket"));
    let of_root = || PathBuf::from("/run/cowslip-serve.socket");
    variable(served::VARIABLE).or_else(in_runtime).unwrap_or_else(of_root)
}

/// What the server at `path` has done, in Prometheus' format.
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
