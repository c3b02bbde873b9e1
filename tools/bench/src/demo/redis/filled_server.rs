//! A server with keys in it and clients that wait for their turn.

use std::path::Path;

use super::Error;
use super::Progress;
use super::keyspace::Shape;
use super::load::Client;
use super::memory::Mapped;
use super::resp::Connection;
use super::server::{Directory, Server};
use super::setup::ServerSetup;
use crate::interrupt::Interrupt;

/// The least share of memory on huge pages for a setup that needs them.
const MIN_COVERAGE: f64 = 0.5;

/// A running server that holds write number 0 of every key.
#[derive(Debug)]
pub(crate) struct FilledServer {
    pub(crate) server: Server,
    pub(crate) control: Connection,
    pub(crate) clients: Vec<Client>,
    pub(crate) pid: u64,
}

impl FilledServer {
    /// Starts a program in a directory, fills it with keys, and connects this many clients.
    pub(crate) fn start(
        setup: &ServerSetup,
        (program, directory): (&Path, Directory),
        (shape, clients): (Shape, usize),
        stop: &Interrupt,
        progress: Progress<'_>,
    ) -> Result<Self, Error> {
        let server = Server::start(setup, program, directory, stop)?;
        let mut control = server.connect()?;
        let pid = control.info("server")?.number("process_id")?;
        shape.fill(&mut control, stop, &format!("{}: fill", setup.title), progress)?;

        let coverage = Mapped::from_pid(pid)?.coverage();
        if setup.needs_huge_pages && coverage < MIN_COVERAGE {
            return Err(Error::NotStarted {
                server: setup.title.to_owned(),
                why: format!("huge pages map only {:.0} % of its memory", coverage * 100.0),
                log: String::new(),
            });
        }
        let client = |index| {
            let keys = shape.keys / clients;
            Ok(Client::new(server.connect()?, (index, clients), keys, shape.value_bytes))
        };
        let clients = (0..clients).map(client).collect::<Result<_, Error>>()?;
        Ok(Self { server, control, clients, pid })
    }

    /// The time of the last save's fork, and Redis's count of copied bytes; an error if the save failed.
    pub(crate) fn last_save(&mut self) -> Result<(u64, u64), Error> {
        let info = self.control.info("persistence")?;
        if info.text("rdb_last_bgsave_status") != Some("ok") {
            let reply = format!("a failed save; the log: {}", self.server.last_words());
            return Err(Error::BadReply { request: "BGSAVE", reply });
        }
        let cow_bytes = info.number("rdb_last_cow_size")?;
        let fork_ns = self.control.info("stats")?.number("latest_fork_usec")? * 1000;
        Ok((fork_ns, cow_bytes))
    }
}
