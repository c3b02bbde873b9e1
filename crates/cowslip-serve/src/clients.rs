//! Clients, from the connection to its end.
//!
//! ```text
//!   accepted ─▶ Hearing ── request ──▶ held? ──yes──▶ told at once ─▶ Taking ── closed ──▶ gone
//!                  │ PATIENCE            │ no                           │ PATIENCE
//!                  ▼                     ▼                              ▼
//!                 gone           a thread: loads, lends                gone
//! ```
//! One thread accepts clients, reads requests and answers; it waits for no client. The limit counts all three kinds.
//!
//! An answered client maps the readers' token of the template, and then closes the connection. Until then the server
//! keeps the template: descriptors on their way over a socket keep nothing alive.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cowslip::Template;
use cowslip::image::served::{self, Answer, Request};
use cowslip_sys::{AsFd, BorrowedFd};

use crate::metrics::count;
use crate::residents::{Resident, Residents};

/// Time for a client's request, and then for each further message.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Regions of the largest template that the accepting thread sends: 32 bytes each, which fit into the smallest buffer that a
/// socket can have (`SO_SNDBUF`, `socket(7)`).
const MOST_REGIONS_AT_ONCE: usize = 64;

pub(crate) struct Clients {
    residents: Arc<Residents>,
    most: usize,
    tell: fn(&str),
    hearing: Vec<Hearing>,
    taking: Vec<Taking>,
    threads: Vec<Thread>,
}

/// A client with a part of its request.
struct Hearing {
    stream: UnixStream,
    said: [u8; Request::BYTES],
    len: usize,
    until: Instant,
}

/// A client with its answer, until it closes the connection.
struct Taking {
    stream: UnixStream,
    _template: Arc<Template>,
    until: Instant,
}

/// A client with a thread of its own.
struct Thread {
    /// Owned by the thread.
    stream: Weak<UnixStream>,
    thread: JoinHandle<()>,
}

/// The next state of a client.
enum Heard {
    Later(Hearing),
    Request(UnixStream, Request),
    /// The client is gone, or sent something else.
    Nothing,
}

impl Clients {
    pub(crate) fn new(residents: Arc<Residents>, most: usize, tell: fn(&str)) -> Self {
        Self { residents, most, tell, hearing: vec![], taking: vec![], threads: vec![] }
    }

    /// Serves a client that was accepted just now.
    pub(crate) fn add(&mut self, stream: UnixStream) {
        self.threads.retain(|client| !client.thread.is_finished());
        let count_now = self.hearing.len() + self.taking.len() + self.threads.len();
        if stream.set_nonblocking(true).is_err() {
            // This thread would wait for it.
            return;
        }
        if count_now >= self.most {
            count(&self.residents.metrics.busy);
            let _ = Answer::Busy.write(&stream);
            return;
        }
        let until = Instant::now() + PATIENCE;
        self.hear(Hearing { stream, said: [0; Request::BYTES], len: 0, until });
    }

    /// The connections that may become readable, and the time until the first of them times out.
    pub(crate) fn awaited(&self) -> (Vec<BorrowedFd<'_>>, Option<Duration>) {
        let hearing = self.hearing.iter().map(|peer| (peer.stream.as_fd(), peer.until));
        let all = hearing.chain(self.taking.iter().map(|peer| (peer.stream.as_fd(), peer.until)));
        let (streams, ends): (Vec<_>, Vec<_>) = all.unzip();
        let first = ends.into_iter().min();
        (streams, first.map(|end| end.saturating_duration_since(Instant::now())))
    }

    /// Reads from every connection, and drops the clients that are done or timed out.
    pub(crate) fn attend(&mut self) {
        let now = Instant::now();
        self.taking.retain(|client| client.until > now && is_open(&client.stream));
        for client in std::mem::take(&mut self.hearing) {
            self.hear(client);
        }
        self.hearing.retain(|client| client.until > now);
    }

    fn hear(&mut self, client: Hearing) {
        match client.hear() {
            Heard::Later(client) => self.hearing.push(client),
            Heard::Nothing => {}
            Heard::Request(stream, request) => {
                count(&self.residents.metrics.requests);
                self.answer(stream, request);
            }
        }
    }

    fn answer(&mut self, stream: UnixStream, request: Request) {
        let held = match request {
            Request::Template { image, arena } | Request::Content { image, arena } => {
                self.residents.held((image, arena))
            }
            _ => None,
        };
        let Some(template) =
            held.filter(|template| template.regions().len() <= MOST_REGIONS_AT_ONCE)
        else {
            match Thread::start(stream, request, Arc::clone(&self.residents)) {
                Ok(thread) => self.threads.push(thread),
                Err(error) => (self.tell)(&format!("start a thread for a client: {error}")),
            }
            return;
        };
        count(&self.residents.metrics.templates);
        if served::hand_out(&template, &stream).is_ok() {
            let until = Instant::now() + PATIENCE;
            self.taking.push(Taking { stream, _template: template, until });
        }
    }

    /// Answers the requests that have arrived, and waits for the threads.
    pub(crate) fn end(mut self) {
        self.attend();
        self.threads.iter().for_each(Thread::hear_no_more);
        self.threads.into_iter().for_each(|client| drop(client.thread.join()));
    }
}

impl Hearing {
    fn hear(mut self) -> Heard {
        loop {
            match self.stream.read(&mut self.said[self.len..]) {
                Ok(0) => return Heard::Nothing,
                Ok(more) => self.len += more,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => return Heard::Later(self),
                    _ => return Heard::Nothing,
                },
            }
            if self.len == Request::BYTES {
                let request = Request::parse(&self.said);
                return request
                    .map_or(Heard::Nothing, |request| Heard::Request(self.stream, request));
            }
        }
    }
}

fn is_open(mut stream: &UnixStream) -> bool {
    let closed = stream.read(&mut [0]);
    closed.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

impl Thread {
    fn start(stream: UnixStream, request: Request, residents: Arc<Residents>) -> io::Result<Self> {
        let stream = Arc::new(stream);
        let theirs = Arc::downgrade(&stream);
        let thread = thread::Builder::new().name("cowslip-client".into());
        let thread = thread.spawn(move || {
            // An error is the client's: it sent something else, or went.
            let _ = answer(&stream, request, &residents);
        })?;
        Ok(Self { stream: theirs, thread })
    }

    /// Lets the thread answer the requests that have arrived, and end.
    fn hear_no_more(&self) {
        if let Some(stream) = self.stream.upgrade() {
            let _ = stream.shutdown(Shutdown::Read);
        }
    }
}

fn answer(mut client: &UnixStream, request: Request, residents: &Arc<Residents>) -> io::Result<()> {
    client.set_nonblocking(false)?;
    client.set_write_timeout(Some(PATIENCE))?;
    client.set_read_timeout(Some(PATIENCE))?;
    let failed = |error: cowslip::Error| io::Error::other(error.to_string());
    let wait = || Answer::Pending.write(client);
    let found = match request {
        Request::Template { image, arena } => residents.get((image, arena), false, wait),
        Request::Content { image, arena } => residents.get((image, arena), true, wait),
        Request::Metrics => {
            Answer::Follows.write(client)?;
            return client.write_all(residents.text().as_bytes());
        }
        _ => Err(Answer::NotHeld),
    };
    match found {
        Ok(Resident::Whole(template)) => {
            count(&residents.metrics.templates);
            served::hand_out(&template, client).map_err(failed)?;
            // The client closes the connection when it has the template, which is kept until then.
            let _ = client.read(&mut [0]);
            Ok(())
        }
        Ok(Resident::Loading(loading)) => {
            count(&residents.metrics.lent);
            Answer::Loading.write(client)?;
            loading.lend(client).map_err(failed)
        }
        Err(refusal) => refusal.write(client),
    }
}
