//! CRIU on a process of the same size: dumped, restored whole, and restored lazily; and `cowslip checkpoint` beside it.
//!
//! It needs a CRIU as new as the kernel; where `criu check` fails, its message is the reason.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{self, Instant};

use crate::report::Row;
use cowslip_sys::process;
use signal_hook::consts::SIGUSR1;

use super::read::{FIRST_TOUCH, TOTAL, WRONG};
use super::sample::Sample;
use super::{Bench, Error, Result};
use crate::criu;
use crate::error::during;
use crate::interrupt::Interrupt;
use crate::program::{self, Running};
use crate::rows::push_durations;

/// A way to keep a process and to bring it back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Whole,
    Lazy,
    Checkpoint,
}

const WAYS: [(&str, Way); 3] =
    [("criu", Way::Whole), ("criu-lazy", Way::Lazy), ("cowslip-checkpoint", Way::Checkpoint)];
const DUMP: &str = "criu_dump";
const NEEDS: &str = "apt-get install gcc libc6-dev";
const PATIENCE: time::Duration = time::Duration::from_secs(120);
const LOOK: time::Duration = time::Duration::from_millis(1);

/// Results of one round.
struct Seen {
    dump_ns: f64,
    setup_ns: f64,
    first_ns: f64,
    reading_ns: f64,
    wrong_bytes: f64,
}

pub(super) fn measure(bench: &mut Bench<'_>, sample: &Sample, rounds: u32) -> Result<()> {
    bench.progress.phase("CRIU: what it says of this kernel");
    let source = include_str!("criu_target.c");
    let compile = || sample.folder.compile("criu-target", source, &[], NEEDS, bench.stop);
    let program = criu::check().and_then(|()| compile());
    for (name, way) in WAYS {
        let mut seen = Vec::new();
        let mut measured = program.as_ref().map(drop).map_err(Error::clone);
        for round in bench.clock.rounds(0.5, 1, rounds) {
            let round = round + 1;
            let (Ok(()), Ok(program)) = (&measured, &program) else { break };
            bench.progress.phase(&format!("{name}, round {round} of {rounds}"));
            let one = Round { sample, program, way, stop: bench.stop }.run();
            measured = one.map(|outcome| seen.push(outcome));
        }
        match measured {
            Ok(()) => push(bench, sample.bytes(), name, &seen),
            Err(Error::Failed(why)) => {
                let row = Row::skipped(name, TOTAL, why).size_bytes(sample.bytes());
                bench.report.row(row.variant("hot"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn push(bench: &mut Bench<'_>, bytes: u64, name: &str, seen: &[Seen]) {
    type Duration = fn(&Seen) -> f64;
    let durations: [(&str, Duration); 4] = [
        (DUMP, |outcome| outcome.dump_ns),
        ("restore_setup", |outcome| outcome.setup_ns),
        (FIRST_TOUCH, |outcome| outcome.setup_ns + outcome.first_ns),
        (TOTAL, |outcome| outcome.setup_ns + outcome.reading_ns),
    ];
    for (metric, duration) in durations {
        let values: Vec<f64> = seen.iter().map(duration).collect();
        let row = Row::new(name, metric, "", 0.0, "ns").size_bytes(bytes).variant("hot");
        push_durations(bench.report, &row, &values);
    }
    let wrong = seen.iter().map(|outcome| outcome.wrong_bytes).fold(0.0, f64::max);
    let row = Row::new(name, WRONG, "value", wrong, "bytes").size_bytes(bytes).variant("hot");
    bench.report.row(row.n(seen.len() as u64));
}

struct Round<'a> {
    sample: &'a Sample,
    program: &'a Path,
    way: Way,
    stop: &'a Interrupt,
}

impl Round<'_> {
    fn run(&self) -> Result<Seen> {
        let images = self.fresh("criu-images")?;
        fs::create_dir(&images).map_err(during("make a directory"))?;
        let [ready, result] = [self.fresh("criu-ready")?, self.fresh("criu-result")?];
        let [out, err] = ["criu-out", "criu-err"].map(|name| self.sample.folder.path().join(name));
        let mut target = Command::new(self.program);
        target.arg(self.sample.bytes().to_string()).args([&ready, &result]);
        let mut target = Running::start(&mut target, &out, &err)?;
        self.wait_for(&ready)?;
        let pid = target.id();

        let began = Instant::now();
        self.keep(pid, &images)?;
        let dump_ns = began.elapsed().as_nanos() as f64;
        if self.way == Way::Checkpoint {
            // It runs on.
            process::end_group(pid, true).map_err(during("end a process"))?;
        }
        target.wait(self.stop)?;

        let began = Instant::now();
        let _server = self.restore(&images)?;
        let restored = Restored { pid };
        let setup_ns = began.elapsed().as_nanos() as f64;
        process::signal(pid, SIGUSR1).map_err(during("signal the restored process"))?;
        self.wait_for(&result)?;
        drop(restored);
        let text = fs::read_to_string(&result).map_err(during("read what it saw"))?;
        let numbers: Vec<f64> =
            text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [first_ns, reading_ns, wrong_bytes] = numbers[..] else {
            return Err(Error::Failed(format!("the restored process wrote {text:?}")));
        };
        Ok(Seen { dump_ns, setup_ns, first_ns, reading_ns, wrong_bytes })
    }

    fn keep(&self, pid: i32, images: &Path) -> Result<()> {
        let pid = pid.to_string();
        if self.way == Way::Checkpoint {
            let mut checkpoint = Command::new(program::cowslip()?);
            checkpoint.args(["checkpoint", &pid, "-o"]).arg(images.join("process"));
            return self.sample.folder.finish(&mut checkpoint, self.stop).map(drop);
        }
        let mut dump = criu::command("dump", Some(images));
        criu::finish(dump.args(["--shell-job", "--tree", &pid]))
    }

    /// Restores the process, and returns what brings its memory, once it runs.
    fn restore(&self, images: &Path) -> Result<Option<Running>> {
        let (out, err) = (images.join("lazy-out"), images.join("lazy-err"));
        let mut restore = criu::command("restore", Some(images));
        restore.args(["--shell-job", "--restore-detached"]);
        match self.way {
            Way::Whole => criu::finish(&mut restore).map(|()| None),
            Way::Lazy => {
                let mut pages = criu::command("lazy-pages", Some(images));
                let server = Running::start(&mut pages, &out, &err)?;
                self.wait_for(&images.join("lazy-pages.socket"))?;
                criu::finish(restore.arg("--lazy-pages"))?;
                Ok(Some(server))
            }
            Way::Checkpoint => {
                let mut command = Command::new(program::cowslip()?);
                command.arg("restore").arg(images.join("process"));
                let mut server = Running::start(&mut command, &out, &err)?;
                let runs = || fs::read_to_string(&out).unwrap_or_default().contains(" runs");
                while !runs() {
                    self.stop.check()?;
                    if server.ended()?.is_some() {
                        let said = fs::read_to_string(&err).unwrap_or_default();
                        return Err(Error::Failed(said.trim().to_owned()));
                    }
                    thread::sleep(LOOK);
                }
                Ok(Some(server))
            }
        }
    }

    /// A path at which no file exists.
    fn fresh(&self, name: &str) -> Result<PathBuf> {
        let path = self.sample.folder.path().join(name);
        let removed = match path.is_dir() {
            true => fs::remove_dir_all(&path),
            false if path.exists() => fs::remove_file(&path),
            false => Ok(()),
        };
        removed.map_err(during("remove what an earlier round left"))?;
        Ok(path)
    }

    fn wait_for(&self, file: &Path) -> Result<()> {
        let began = Instant::now();
        while !file.exists() {
            self.stop.check()?;
            if began.elapsed() > PATIENCE {
                return Err(Error::Failed(format!("{} did not come", file.display())));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// A process that CRIU made, ended with this value.
struct Restored {
    pid: i32,
}

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = process::end_group(self.pid, true);
    }
}
