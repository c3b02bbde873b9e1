//! Sources of a snapshot: a daemon's metrics, or our own looks, in the same terms.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use cowslip_sys::error::{Error, ErrorKind, Result};

use super::{Snapshot, scrape, text};
use crate::session::Session;

/// The address at which the packaged configuration has the daemon serve.
const USUAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);
/// The time between the two looks of a table that is printed once.
const SETTLE: Duration = Duration::from_millis(500);

/// A source of metrics.
pub enum Source {
    /// The daemon that serves its metrics here.
    Daemon(SocketAddr),
    /// The daemon that writes its metrics to this file.
    File(PathBuf),
    /// A session that only looks.
    Looks(Box<Session>),
}

impl Source {
    /// The daemon of the packaged configuration, if it runs.
    pub fn usual() -> Option<Self> {
        let text = scrape(USUAL).ok()?;
        Snapshot::parse(&text).map(|_| Self::Daemon(USUAL))
    }

    /// Its name for people.
    pub fn name(&self) -> String {
        match self {
            Self::Daemon(address) => format!("the daemon at {address}"),
            Self::File(path) => format!("the daemon that writes {}", path.display()),
            Self::Looks(_) => "looked at only, nothing is promoted".to_owned(),
        }
    }

    /// The numbers now. `Vanished` if no daemon answers, `Corrupt` if the answer holds no metrics of
    /// Cowslip's.
    pub fn look(&mut self) -> Result<Snapshot> {
        let text = match self {
            Self::Daemon(address) => scrape(*address).map_err(|error| {
                let why = format!("no daemon answers at {address}: {error}");
                Error::new(ErrorKind::Vanished, why)
            })?,
            Self::File(path) => std::fs::read_to_string(&*path)
                .map_err(|error| Error::from_io(format_args!("read {}", path.display()), &error))?,
            Self::Looks(session) => {
                session.search()?;
                session.look(session.content_ns())?;
                text(session.tally())
            }
        };
        Snapshot::parse(&text).ok_or_else(|| {
            let why = format!("{}: no metrics of cowslip promote", self.name());
            Error::new(ErrorKind::Corrupt, why)
        })
    }

    /// Like [`Self::look`], but after a first look, without which little is known of a region.
    pub fn settled(&mut self) -> Result<Snapshot> {
        if let Self::Looks(session) = self {
            session.look(u64::MAX)?;
            session.wait(SETTLE)?;
        }
        self.look()
    }

    /// The time until the next look: our own looks keep to their budget.
    pub fn pause(&self, asked: Duration) -> Duration {
        match self {
            Self::Looks(session) => session.pause(),
            Self::Daemon(_) | Self::File(_) => asked,
        }
    }
}
