//! An unmodified `redis-server` saved under write load, each way of running it beside the others.
//!
//! Every setup gets a server of its own on loopback, filled with the same keys. Then the servers save in turns, with
//! the others idle, so that they share the noise of the machine. A second server reads every saved file, and every key
//! is compared with the writers' logs (`consistency`).

pub(crate) mod consistency;
pub(crate) mod cpu;
mod error;
pub(crate) mod figures;
pub(crate) mod filled_server;
pub(crate) mod keyspace;
pub(crate) mod load;
pub(crate) mod measure;
pub(crate) mod memory;
pub(crate) mod resp;
pub(crate) mod round;
mod rows;
pub(crate) mod running_server;
pub(crate) mod server;
pub(crate) mod setup;
pub(crate) mod value;
pub(crate) mod zipf;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io, slice};

use crate::report::Report;

use crate::host::Span;
use crate::interrupt::Interrupt;
pub use error::Error;
use keyspace::Shape;
use round::Writers;
pub(crate) use rows::PROMISES;
use running_server::{Measured, RunningServer};
use setup::ServerSetup;

/// Receives the progress: a label, the amount done, and the whole.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Length of all values together.
    pub size_bytes: u64,
    /// Length of each value.
    pub value_bytes: usize,
    /// Saves under load in each setup.
    pub saves: usize,
    /// Adds setups with saving children that give way, and one more save each, with still writers.
    pub full: bool,
    /// Connections that write, each a request at a time.
    pub clients: usize,
    /// The `redis-server` to run.
    pub redis_server: PathBuf,
    /// The `cowslip` command.
    pub cowslip: PathBuf,
    /// The parent directory of the servers' directories: it must hold a few saved files.
    pub directory: PathBuf,
}

impl Options {
    /// The smallest run that shows the differences, with this `cowslip` command.
    pub fn new(cowslip: PathBuf) -> Self {
        Self {
            size_bytes: 512 << 20,
            value_bytes: 1024,
            saves: 2,
            full: false,
            clients: 50,
            redis_server: "redis-server".into(),
            cowslip,
            directory: directory(),
        }
    }

    fn setups(&self) -> Vec<ServerSetup> {
        let mut setups = vec![
            ServerSetup::stock_4k(),
            ServerSetup::stock_thp(),
            ServerSetup::cowslip(&self.cowslip),
        ];
        if self.full {
            setups.push(ServerSetup::stock_idle_child());
            setups.push(ServerSetup::cowslip_child_share(&self.cowslip));
        }
        setups
    }

    fn rounds(&self) -> Vec<(String, Writers)> {
        let busy = (1..=self.saves).map(|n| (format!("save {n}"), Writers::Busy));
        let still = self.full.then(|| ("still save".to_owned(), Writers::Still));
        busy.chain(still).collect()
    }
}

/// Results of all setups, without those that measured nothing.
#[derive(Debug)]
pub struct Outcome {
    pub(crate) measured: Vec<Measured>,
    /// Such as `7.0.15`.
    pub(crate) redis_version: String,
    pub(crate) size_bytes: u64,
    pub(crate) clients: usize,
    /// The share of all processors' time that the host gave to others meanwhile.
    pub(crate) stolen_share: f64,
}

impl Outcome {
    /// Returns true if nothing was saved.
    pub fn is_empty(&self) -> bool {
        self.measured.iter().all(|server| server.busy_saves().next().is_none())
    }
}

/// State that all parts of a run share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session<'a> {
    options: &'a Options,
    shape: Shape,
    stop: &'a Interrupt,
}

/// Runs all setups, and adds their results to `report`. It ends soon after `stop` becomes true, with the results so
/// far, and leaves no server and no file behind on any exit path.
///
/// # Errors
/// If nothing can be measured: no `redis-server`, or options that cannot work. A server that does not start is a
/// skipped row; one that fails later a note and a failed request.
pub fn run(
    options: &Options,
    stop: &Interrupt,
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<Outcome, Error> {
    let redis_version = version(&options.redis_server)?;
    let shape = Shape::new(options)?;
    let available_bytes = memory::available_bytes()?;
    if 2 * shape.footprint_bytes() > available_bytes {
        let (needed_mib, available_mib) = (shape.footprint_bytes() >> 19, available_bytes >> 20);
        return Err(Error::BadOption(format!(
            "this size needs {needed_mib} MiB of memory and {available_mib} MiB are available"
        )));
    }
    report.params.insert("redis_version".to_owned(), redis_version.clone().into());

    let session = Session { options, shape, stop };
    let host = |error| Error::io("look at the host")(io::Error::other(error));
    let span = Span::begin().map_err(host)?;
    let setups = options.setups();
    // Each server is filled; each save is made, its effect on the server checked, and verified.
    let steps = setups.len() * (1 + 3 * options.rounds().len());
    let (mut step, mut last) = (0, String::new());
    let mut count_steps = |label: &str, done: u64, of: u64| {
        if last != label {
            step += 1;
            last = label.to_owned();
        }
        progress(&format!("{step}/{steps} {label}"), done, of);
    };
    let mut measured = Vec::new();
    let servers = setups.len() as u64 + 1;
    if servers * shape.footprint_bytes() <= available_bytes / 2 {
        measured = run_group(&setups, session, &mut count_steps, report);
    } else {
        let why = "memory does not hold all Redis servers at once: they ran one after another";
        report.notes.push(why.to_owned());
        for setup in &setups {
            let alone = slice::from_ref(setup);
            measured.extend(run_group(alone, session, &mut count_steps, report));
        }
    }
    if stop.is_set() {
        report.notes.push("Redis: interrupted, the results are not complete".to_owned());
    }
    rows::push_ratios(report, shape.size_bytes(), options.full);
    let stolen_share = span.end().map_err(host)?.stolen_share;
    report.params.insert("stolen_share".to_owned(), stolen_share.into());
    let (size_bytes, clients) = (options.size_bytes, options.clients);
    Ok(Outcome { measured, redis_version, size_bytes, clients, stolen_share })
}

/// Fills a server for each of these setups, then lets them save in turns.
fn run_group(
    setups: &[ServerSetup],
    session: Session<'_>,
    progress: Progress<'_>,
    report: &mut Report,
) -> Vec<Measured> {
    let mut servers = Vec::new();
    for setup in setups {
        match RunningServer::start(setup, session, progress) {
            Ok(server) => servers.push(server),
            Err(Error::Interrupted) => return Vec::new(),
            Err(error) => report.skip(setup.name, "fork", error.to_string()),
        }
    }
    for (label, writers) in session.options.rounds() {
        for server in servers.iter_mut().filter(|server| server.is_well()) {
            match server.save(&label, writers, session, progress) {
                Ok(()) | Err(Error::Interrupted) => {}
                Err(error) => {
                    let measured = &mut server.measured;
                    measured.failed_requests = measured.failed_requests.max(1);
                    let name = measured.setup.name;
                    report.notes.push(format!("{name} failed in {label}: {error}"));
                }
            }
        }
    }
    let measured = servers.into_iter().map(|server| server.measured);
    let measured: Vec<_> =
        measured.filter(|server| !server.saves.is_empty() || server.failed_requests > 0).collect();
    for server in &measured {
        rows::push(report, server, session.shape.size_bytes());
    }
    measured
}

/// The parent directory of servers' directories. Not /tmp, which may be memory: saved files would count as memory that
/// a save takes.
pub(crate) fn directory() -> PathBuf {
    env::var_os("TMPDIR").unwrap_or_else(|| "/var/tmp".into()).into()
}

/// `Err(Interrupted)` once the caller wants to stop.
fn check(stop: &Interrupt) -> Result<(), Error> {
    if stop.is_set() { Err(Error::Interrupted) } else { Ok(()) }
}

/// The number of its version, such as `7.0.15`.
pub(crate) fn version(redis_server: &Path) -> Result<String, Error> {
    let output = Command::new(redis_server).arg("--version").output();
    let output =
        output.map_err(|source| Error::NoServer { program: redis_server.to_owned(), source })?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let number = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    Ok(number.map_or(text.clone(), str::to_owned))
}
