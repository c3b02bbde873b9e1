//! An unmodified `redis-server` saved under write load, each way of running it beside the others.
//!
//! Every setup gets a server of its own on loopback, filled with the same keys. Then the setups
//! save in turns, the others idle, so that they share the noise of the machine. Every saved file
//! is read by a second server and compared, key by key, with what the writers know (`cut`).

mod cut;
mod error;
mod keyspace;
mod load;
mod measure;
pub(crate) mod memory;
pub(crate) mod resp;
mod round;
mod rows;
mod running_server;
pub(crate) mod server;
pub(crate) mod setup;
pub(crate) mod value;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, slice};

use cowslip_report::Report;

pub use error::Error;
use keyspace::Shape;
use round::Writers;
use running_server::RunningServer;
use setup::{COWSLIP, ServerSetup};

/// Told what goes on: a label, how much of it is done, and of how much.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of all values together.
    pub size_bytes: u64,
    /// Of each value.
    pub value_bytes: usize,
    /// Saves under load of each setup; one more has the writers still.
    pub saves: usize,
    /// Connections that write, each a request at a time.
    pub clients: usize,
    /// The `redis-server` to run.
    pub redis_server: PathBuf,
    /// The `cowslip` command.
    pub cowslip: Option<PathBuf>,
    /// Where the servers get their directories: it must hold a few saved files.
    pub directory: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            size_bytes: 1 << 30,
            value_bytes: 1024,
            saves: 5,
            clients: 50,
            redis_server: "redis-server".into(),
            cowslip: None,
            directory: env::temp_dir(),
        }
    }
}

/// What all parts of a run share.
#[derive(Debug, Clone, Copy)]
struct Session<'a> {
    options: &'a Options,
    shape: Shape,
    stop: &'a AtomicBool,
}

/// Runs all setups and adds what they did to `report`. When `stop` becomes true it ends soon, with
/// what there is until then; no server and no file is left behind on any way out.
///
/// # Errors
/// When there is nothing to measure at all: no `redis-server`, or options that cannot work. A
/// setup that does not start is a skipped row; one that fails later a note and a failed request.
pub fn run(
    options: &Options,
    stop: &AtomicBool,
    progress: Progress<'_>,
    report: &mut Report,
) -> Result<(), Error> {
    let redis_version = version(&options.redis_server)?;
    let shape = Shape::new(options)?;
    let available_bytes = memory::available_bytes()?;
    if 2 * shape.footprint_bytes() > available_bytes {
        let (needed_mib, available_mib) = (shape.footprint_bytes() >> 19, available_bytes >> 20);
        return Err(Error::BadOption(format!(
            "this size needs {needed_mib} MiB of memory and {available_mib} MiB are available"
        )));
    }
    report.params.insert("redis_version".to_owned(), redis_version.into());

    let session = Session { options, shape, stop };
    let setups = setups(options, report);
    let servers = setups.len() as u64 + 1;
    if servers * shape.footprint_bytes() <= available_bytes / 2 {
        run_group(&setups, session, progress, report);
    } else {
        let why = "memory does not hold all Redis setups at once: they ran one after another";
        report.notes.push(why.to_owned());
        for setup in &setups {
            run_group(slice::from_ref(setup), session, progress, report);
        }
    }
    if stop.load(Ordering::Relaxed) {
        report.notes.push("Redis: interrupted, the results are not complete".to_owned());
    }
    rows::push_ratios(report, shape.size_bytes());
    Ok(())
}

fn setups(options: &Options, report: &mut Report) -> Vec<ServerSetup> {
    let mut setups = vec![ServerSetup::stock_4k(), ServerSetup::stock_thp()];
    match &options.cowslip {
        Some(command) => {
            setups.push(ServerSetup::cowslip(command));
            report.notes.push(
                "Redis under cowslip saves in children that give way, and get a quarter of a processor in any case \
                 (`cowslip run --child-share=25`): their saves take longer; stock Redis has no such option"
                    .to_owned(),
            );
        }
        None => report.skip(COWSLIP, "fork", "no cowslip command was given"),
    }
    let why = "does not apply: Redis's allocator, jemalloc, cannot use hugetlb pages";
    report.skip("stock-hugetlb", "fork", why);
    setups
}

/// Fills the servers of these setups, then lets them save in turns.
fn run_group(
    setups: &[ServerSetup],
    session: Session<'_>,
    progress: Progress<'_>,
    report: &mut Report,
) {
    let mut servers = Vec::new();
    for setup in setups {
        match RunningServer::start(setup, session, progress) {
            Ok(server) => servers.push(server),
            Err(Error::Interrupted) => return,
            Err(error) => report.skip(setup.name, "fork", error.to_string()),
        }
    }
    let busy = (1..=session.options.saves).map(|n| (format!("save {n}"), Writers::Busy));
    for (label, writers) in busy.chain([("still save".to_owned(), Writers::Still)]) {
        for server in servers.iter_mut().filter(|server| server.is_well()) {
            match server.save(&label, writers, session, progress) {
                Ok(()) | Err(Error::Interrupted) => {}
                Err(error) => {
                    server.failed_requests = server.failed_requests.max(1);
                    report.notes.push(format!("{} failed in {label}: {error}", server.name));
                }
            }
        }
    }
    for server in servers.iter().filter(|c| !c.saves.is_empty() || !c.is_well()) {
        rows::push(report, server, session.shape.size_bytes());
    }
}

/// `Err(Interrupted)` once the caller wants to stop.
fn check(stop: &AtomicBool) -> Result<(), Error> {
    if stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}

fn version(redis_server: &Path) -> Result<String, Error> {
    let output = Command::new(redis_server).arg("--version").output();
    let output =
        output.map_err(|source| Error::NoServer { program: redis_server.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
