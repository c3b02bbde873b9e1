//! A hundred processes that restore one image on one machine: the time until the last has it, and the memory of all of
//! them.
//!
//! `resident` is a clone of the template in `cowslip serve`, `mmap` the file mapped privately: the page cache that a
//! machine gives to programs without further requests.

use std::fs;
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Lines, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::report::{Report, Row};
use cowslip::Place;
use cowslip::image::Image;

use super::baselines::{Baseline, Prepared};
use super::read::{self, WRONG};
use super::sample::{Sample, View, place_of, prepare};
use super::{Bench, Error, Result};
use crate::error::during;
use crate::program;
use crate::rows::{median, push_durations};

pub(super) const RESTORED: &str = "workers_restored";
pub(super) const MEMORY: &str = "workers_memory_over_image_per_worker";
pub(super) const HUNDRED: &str = "100 workers";
const WORKERS: usize = 100;
const MOST_ROUNDS: u32 = 3;
/// The longest time until the server has loaded the image.
const PATIENCE: Duration = Duration::from_secs(120);

/// The image and the source of one worker's restore.
#[derive(clap::Args, Debug)]
pub struct WorkerArgs {
    image: PathBuf,
    /// From the server at this socket
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Its content alone, mapped if no server is named
    #[arg(long)]
    flat: PathBuf,
}

/// `cowslip-bench restore-worker`: reports each step, and does the next when it is told to.
///
/// # Errors
/// [`Error::Failed`] if the restore is impossible.
pub fn run(args: &WorkerArgs) -> Result<()> {
    let image = Image::open(&args.image)?;
    let Some(socket) = &args.socket else {
        let bytes = place_of(&image)?.len;
        let loaded = Baseline::Mmap.load(Prepared::Nothing, &args.flat, bytes)?;
        return work(View(loaded.memory().range()));
    };
    let clone = image.template_via(socket, 0)?.map(Place::Anywhere)?;
    // The clone begins at the first memory that was handed out.
    work(View(clone.range()))
}

fn work(view: View) -> Result<()> {
    black_box(view.page_word(0));
    tell("restored")?;
    read::read(view, 0);
    tell("read")?;
    tell(&view.wrong_bytes().to_string())
}

/// Reports a step, and waits until it may go on.
pub(crate) fn tell(what: &str) -> Result<()> {
    let said = writeln!(io::stdout(), "{what}").and_then(|()| io::stdout().flush());
    said.and_then(|()| io::stdin().read_exact(&mut [0])).map_err(during("talk to the bench"))
}

/// Results of one round.
struct Round {
    restored_ns: f64,
    read_ns: f64,
    memory_bytes: f64,
    /// Only for workers with a server.
    wrong_bytes: Option<f64>,
}

pub(super) fn measure(bench: &mut Bench<'_>, sample: &Sample, rounds: u32) -> Result<()> {
    let server = Server::start(sample)?;
    let methods = [("resident", Some(server.socket.as_path())), ("mmap", None)];
    let mut seen = methods.map(|_| Vec::new());
    for round in bench.clock.rounds(1.0, 1, rounds.min(MOST_ROUNDS)) {
        bench.progress.phase(&format!("restore: {WORKERS} workers, round {}", round + 1));
        for ((_, socket), seen) in methods.iter().zip(&mut seen) {
            prepare(&sample.flat(), false)?;
            seen.push(measure_once(sample, *socket, &server)?);
            bench.stop.check()?;
        }
    }
    for ((name, _), rounds) in methods.iter().zip(&seen) {
        push(bench.report, name, rounds, sample.bytes());
    }
    Ok(())
}

fn measure_once(sample: &Sample, socket: Option<&Path>, server: &Server) -> Result<Round> {
    let this = program::this()?;
    let began = Instant::now();
    let mut workers = Vec::with_capacity(WORKERS);
    for _ in 0..WORKERS {
        let mut command = Command::new(&this);
        command.arg("restore-worker").arg(sample.image());
        command.arg("--flat").arg(sample.flat());
        if let Some(socket) = socket {
            command.arg("--socket").arg(socket);
        }
        workers.push(Worker::start(&mut command)?);
    }
    for worker in &mut workers {
        worker.expect("restored")?;
    }
    let restored_ns = began.elapsed().as_nanos() as f64;
    let began = Instant::now();
    workers.iter_mut().try_for_each(Worker::go_on)?;
    for worker in &mut workers {
        worker.expect("read")?;
    }
    let read_ns = began.elapsed().as_nanos() as f64;
    let pids = workers.iter().map(|worker| worker.child.id());
    let pids = pids.chain(socket.map(|_| server.child.id()));
    let memory_bytes = pids.map(memory_of).sum::<Result<u64>>()? as f64;
    let wrong_bytes = socket.map(|_| wrong_bytes(&mut workers)).transpose()?;
    Ok(Round { restored_ns, read_ns, memory_bytes, wrong_bytes })
}

fn wrong_bytes(workers: &mut [Worker]) -> Result<f64> {
    workers.iter_mut().try_for_each(Worker::go_on)?;
    let wrong = workers.iter_mut().map(|worker| {
        let said = worker.said()?;
        said.parse::<f64>()
            .map_err(|_| Error::Failed(format!("a worker said {said:?}, not a number")))
    });
    wrong.sum()
}

/// Memory of a process: its pages, with shared pages in equal parts, and its page tables.
fn memory_of(pid: u32) -> Result<u64> {
    let field = |file: &str, name: &str| {
        let path = format!("/proc/{pid}/{file}");
        let text = fs::read_to_string(&path).map_err(during(format!("read {path}")))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.map(|kib| kib << 10).ok_or_else(|| Error::Failed(format!("{path} has no {name}")))
    };
    Ok(field("smaps_rollup", "Pss:")? + field("status", "VmPTE:")?)
}

fn push(report: &mut Report, name: &str, rounds: &[Round], bytes: u64) {
    let row = |metric| Row::new(name, metric, "", 0.0, "ns").size_bytes(bytes).variant(HUNDRED);
    let column = |value: fn(&Round) -> f64| rounds.iter().map(value).collect::<Vec<_>>();
    push_durations(report, &row(RESTORED), &column(|round| round.restored_ns));
    push_durations(report, &row("workers_read"), &column(|round| round.read_ns));
    let data = bytes as f64;
    let each = |memory: f64| (memory - data) / WORKERS as f64 / data;
    let memory = median(&column(|round| round.memory_bytes)).map(each);
    let wrong = rounds.iter().filter_map(|round| round.wrong_bytes).reduce(f64::max);
    for (metric, unit, value) in [(MEMORY, "ratio", memory), (WRONG, "bytes", wrong)] {
        if let Some(value) = value {
            let row = Row { unit, stat: "value".into(), value: Some(value), ..row(metric) };
            report.row(row.n(rounds.len() as u64));
        }
    }
}

/// A worker, ended when this is dropped.
pub(crate) struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(during("start a worker"))?;
        let stdout = child.stdout.take();
        let stdout = stdout.ok_or_else(|| Error::Failed("a worker has no output".into()))?;
        Ok(Self { child, lines: BufReader::new(stdout).lines() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn said(&mut self) -> Result<String> {
        let line = self.lines.next();
        let line = line.ok_or_else(|| Error::Failed("a worker ended too early".into()))?;
        line.map_err(during("listen to a worker"))
    }

    pub(crate) fn expect(&mut self, what: &str) -> Result<()> {
        match self.said()? {
            said if said == what => Ok(()),
            said => Err(Error::Failed(format!("a worker said {said:?}, not {what:?}"))),
        }
    }

    pub(crate) fn go_on(&mut self) -> Result<()> {
        let told = self.child.stdin.as_mut().map(|stdin| stdin.write_all(&[1]));
        told.unwrap_or(Ok(())).map_err(during("talk to a worker"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that has the image, ended when this is dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(sample: &Sample) -> Result<Self> {
        let socket = sample.folder.path().join("serve.socket");
        let mut command = Command::new(program::cowslip()?);
        command.arg("serve").arg(sample.image()).arg("--socket").arg(&socket);
        let child = command.spawn().map_err(during("start a server"))?;
        let mut server = Self { child, socket };
        let image = Image::open(&sample.image())?;
        let deadline = Instant::now() + PATIENCE;
        // A request for a template waits until all of it is there.
        while let Err(error) = image.template_via(&server.socket, 0) {
            let ended = server.child.try_wait().map_err(during("look after a server"))?;
            if ended.is_some() || Instant::now() > deadline {
                return Err(error.into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
