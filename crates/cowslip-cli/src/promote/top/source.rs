//! Where the numbers come from: a daemon's metrics, or looks of our own, told in the same words.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use super::snapshot::Snapshot;
use crate::exit::{self, CORRUPT, Failure, VANISHED};
use crate::promote::args::TopArgs;
use crate::promote::config::Plan;
use crate::promote::session::Session;
use crate::promote::{daemon, metrics};

/// Where the packaged configuration has the daemon serve.
const USUAL: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9464);
const PATIENCE: Duration = Duration::from_secs(2);
const MOST_BYTES: u64 = 64 << 20;
/// Between the two looks of a table that is printed once.
const SETTLE: Duration = Duration::from_millis(500);

pub(super) enum Source {
    Daemon(SocketAddr),
    File(PathBuf),
    Looks(Box<Session>),
}

impl Source {
    pub(super) fn of(args: &TopArgs) -> Result<Self, Failure> {
        if let Some(address) = args.metrics {
            return Ok(Self::Daemon(address));
        }
        if let Some(file) = &args.metrics_file {
            return Ok(Self::File(file.clone()));
        }
        let plan = Plan::watch(&args.who, args.heat, Duration::from_secs(args.interval));
        let who = &args.who;
        let is_named =
            who.all || !(who.pid.is_empty() && who.name.is_empty() && who.cgroup.is_empty());
        if !is_named && scrape(USUAL).is_ok_and(|text| Snapshot::parse(&text).is_some()) {
            return Ok(Self::Daemon(USUAL));
        }
        let mut session = Session::start(plan, None)?;
        session.search()?.check(&session.plan.rules, &session.promoter)?;
        Ok(Self::Looks(Box::new(session)))
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Daemon(address) => format!("the daemon at {address}"),
            Self::File(path) => format!("the daemon that writes {}", path.display()),
            Self::Looks(_) => "looked at only, nothing is promoted".to_owned(),
        }
    }

    pub(super) fn look(&mut self) -> Result<Snapshot, Failure> {
        let text = match self {
            Self::Daemon(address) => scrape(*address).map_err(|error| {
                Failure::new(VANISHED, format!("no daemon answers at {address}: {error}"))
            })?,
            Self::File(path) => std::fs::read_to_string(&*path)
                .map_err(exit::io(format_args!("read {}", path.display())))?,
            Self::Looks(session) => {
                session.search()?;
                session.look(daemon::content_ns(session))?;
                metrics::text(&session.tally)
            }
        };
        let nothing =
            || Failure::new(CORRUPT, format!("{}: no metrics of cowslip promote", self.name()));
        Snapshot::parse(&text).ok_or_else(nothing)
    }

    /// As [`Self::look`], after a first look without which little can be said of a region.
    pub(super) fn settled(&mut self) -> Result<Snapshot, Failure> {
        if let Self::Looks(session) = self {
            session.look(u64::MAX)?;
            session.wait(SETTLE)?;
        }
        self.look()
    }

    /// Until the next look: looks of our own keep to the budget for them.
    pub(super) fn pause(&self, asked: Duration) -> Duration {
        match self {
            Self::Looks(session) => daemon::pause(session),
            Self::Daemon(_) | Self::File(_) => asked,
        }
    }
}

/// The text behind the daemon's address.
fn scrape(address: SocketAddr) -> io::Result<String> {
    let mut server = TcpStream::connect_timeout(&address, PATIENCE)?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    server.write_all(request.as_bytes())?;
    let mut answer = String::new();
    server.take(MOST_BYTES).read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => Err(io::Error::other("it serves no metrics")),
    }
}
