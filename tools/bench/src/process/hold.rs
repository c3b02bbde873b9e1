//! Programs with many threads, held beside their own fork and CRIU's dump.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cowslip::units::ByteCount;
use cowslip_process::look;
use cowslip_sys::process;
use signal_hook::consts::SIGUSR1;

use super::{COPIES, COWSLIP, CRIU, FORK, PAUSE, copies};
use crate::bench::Bench;
use crate::criu;
use crate::error::{Error, Result, during};
use crate::host::warm;
use crate::interrupt::Interrupt;
use crate::program::{Folder, Running};
use crate::report::Row;
use crate::rows::push_durations;

const SOURCE: &str = include_str!("threads.c");
const NEEDS: &str = "apt-get install gcc libc6-dev";
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_micros(200);
/// Threads, memory, and the variant.
const PROGRAMS: [(u32, ByteCount, &str); 4] = [
    (5, ByteCount::mib(64), "5 threads"),
    (MANY, ByteCount::mib(64), OF_MANY),
    (256, ByteCount::mib(64), "256 threads"),
    (64, ByteCount::gib(8), OF_MUCH_MEMORY),
];
const MANY: u32 = 42;
pub(super) const OF_MANY: &str = "42 threads";
pub(super) const OF_MUCH_MEMORY: &str = "64 threads, 8 GiB";
/// CRIU's dumps are long.
const DUMPS: u32 = 3;

pub(super) fn measure(bench: &mut Bench<'_>, runs: u32) -> Result<()> {
    let folder = Folder::new("process")?;
    let program = folder.compile("threads", SOURCE, &["-lpthread"], NEEDS, bench.stop)?;
    let criu = criu::check();
    for (threads, size, variant) in PROGRAMS {
        bench.progress.phase(&format!("a program of {variant}"));
        warm(size, bench.stop)?;
        let program = Program::start(&program, &folder, threads, size, bench.stop)?;
        let like = |name| Row::new(name, PAUSE, "", 0.0, "ns").variant(variant);
        let (mut forks, mut pauses, mut running) = (Vec::new(), Vec::new(), Vec::new());
        for round in bench.clock.rounds(1.0 / PROGRAMS.len() as f64, 3, 1 + runs) {
            bench.stop.check()?;
            let fork = program.fork()?;
            let began = Instant::now();
            let mut holder = look(program.running.id())?.hold()?;
            let made = copies(&mut holder, false)?;
            let all_running = began.elapsed();
            // The first round warms up.
            if round > 0 {
                forks.push(fork);
                pauses.push(holder.pause().as_nanos() as f64);
                running.push(all_running.as_nanos() as f64);
            }
            drop((made, holder));
        }
        push_durations(bench.report, &like(FORK), &forks);
        push_durations(bench.report, &like(COWSLIP), &pauses);
        let row = Row::new(COWSLIP, COPIES, "", 0.0, "ns").variant(variant);
        push_durations(bench.report, &row, &running);
        match criu.clone().and_then(|()| program.dumps(&folder, bench)) {
            Ok(dumps) => push_durations(bench.report, &like(CRIU), &dumps),
            Err(Error::Failed(why)) => {
                bench.report.row(Row::skipped(CRIU, PAUSE, why).variant(variant));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

struct Program<'a> {
    running: Running,
    output: PathBuf,
    stop: &'a Interrupt,
}

impl<'a> Program<'a> {
    fn start(
        program: &Path,
        folder: &Folder,
        threads: u32,
        size: ByteCount,
        stop: &'a Interrupt,
    ) -> Result<Self> {
        let output = folder.path().join("threads.out");
        let mut command = std::process::Command::new(program);
        command.args([threads.to_string(), (size.0 >> 20).to_string()]);
        let running = Running::start(&mut command, &output, &folder.path().join("threads.err"))?;
        let started = Self { running, output, stop };
        started.line(0)?;
        Ok(started)
    }

    /// The time of one fork that it makes.
    fn fork(&self) -> Result<f64> {
        let before = self.lines()?.len();
        process::signal(self.running.id(), SIGUSR1).map_err(during("signal a program"))?;
        let line = self.line(before)?;
        line.parse().map_err(during("read the time of a fork"))
    }

    fn lines(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(&self.output).map_err(during("read a program's output"))?;
        let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        Ok(whole.map(str::to_owned).collect())
    }

    /// Waits for a line.
    fn line(&self, at: usize) -> Result<String> {
        let began = Instant::now();
        loop {
            self.stop.check()?;
            if let Some(line) = self.lines()?.into_iter().nth(at) {
                return Ok(line);
            }
            if began.elapsed() > PATIENCE {
                return Err(Error::Failed("a program of many threads does not answer".to_owned()));
            }
            thread::sleep(LOOK);
        }
    }

    /// The times of dumps, for all of which the program is stopped.
    fn dumps(&self, folder: &Folder, bench: &Bench<'_>) -> Result<Vec<f64>> {
        let images = folder.path().join("criu");
        let mut dumps = Vec::new();
        for _ in bench.clock.rounds(0.1, 1, DUMPS) {
            let _ = fs::remove_dir_all(&images);
            fs::create_dir(&images).map_err(during("make a directory"))?;
            let pid = self.running.id().to_string();
            let mut dump = criu::command("dump", Some(&images));
            let began = Instant::now();
            criu::finish(dump.args(["--shell-job", "--leave-running", "--tree", &pid]))?;
            dumps.push(began.elapsed().as_nanos() as f64);
        }
        Ok(dumps)
    }
}
