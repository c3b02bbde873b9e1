//! A port for any number of `criu lazy-pages`, of which a limited number is served at a time.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cowslip_sys::{AsFd, BorrowedFd, process};

use crate::memory::Memory;
use crate::session::{self, Served};

/// Sessions at a time; further clients wait for one to end.
const MOST_SESSIONS: usize = 64;

/// A page server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
}

impl Server {
    /// Listens at an address. Any process that can connect there can read the memory: CRIU's protocol knows no
    /// passwords.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` can be read, and until the sessions of that time have ended. `tell` gets messages for a log;
    /// `ended` is called after each session.
    ///
    /// # Errors
    /// The system's, if it cannot wait.
    pub fn run(
        &self,
        memory: &Memory,
        stop: BorrowedFd<'_>,
        tell: &(impl Fn(&str) + Sync),
        ended: &(impl Fn(Served) + Sync),
    ) -> io::Result<()> {
        thread::scope(|scope| {
            let (over, ends) = mpsc::channel();
            let mut sessions = 0;
            loop {
                let mut ready = [false; 2];
                process::wait_readable(&[self.listener.as_fd(), stop], &mut ready, None)?;
                if ready[1] {
                    return Ok(());
                }
                sessions -= ends.try_iter().count();
                if sessions == MOST_SESSIONS && ends.recv().is_ok() {
                    sessions -= 1;
                }
                let stream = match self.listener.accept() {
                    Ok((stream, _)) => stream,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) => {
                        // Too many open files, most likely: those of sessions will close.
                        tell(&format!("accept a client: {error}"));
                        thread::sleep(Duration::from_millis(10));
                        continue;
                    }
                };
                let over = over.clone();
                let session = move || {
                    match talk(memory, stream, tell) {
                        Ok(served) => ended(served),
                        Err(error) => tell(&format!("a session ended: {error}")),
                    }
                    let _ = over.send(());
                };
                let named = thread::Builder::new().name("cowslip-criu".into());
                match named.spawn_scoped(scope, session) {
                    Ok(_) => sessions += 1,
                    Err(error) => tell(&format!("start a thread for a client: {error}")),
                }
            }
        })
    }
}

fn talk(memory: &Memory, mut stream: TcpStream, tell: &impl Fn(&str)) -> io::Result<Served> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    session::serve(memory, &mut stream, tell)
}
