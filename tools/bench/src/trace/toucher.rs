//! The traced program, and the commands that trace it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::program::{self, Folder};

const SOURCE: &str = include_str!("touch.c");
const NEEDS: &str = "apt-get install gcc libc6-dev";
/// 64 MiB a thread.
const PAGES: u64 = 16_384;

/// A program of its own, with threads that touch pages.
pub(super) struct Toucher {
    pub(super) folder: Folder,
    program: PathBuf,
}

/// Work of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Work {
    pub(super) threads: u64,
    /// Number of times that each thread touches its pages.
    pub(super) rounds: u64,
    /// Time between two faults of a thread; 0 for none.
    pub(super) period_ns: u64,
}

/// Results of the program.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Touched {
    pub(super) faults: u64,
    pub(super) ns: u64,
}

impl Touched {
    pub(super) fn per_second(self) -> f64 {
        self.faults as f64 * 1e9 / self.ns as f64
    }
}

impl Toucher {
    pub(super) fn new(stop: &Interrupt) -> Result<Self> {
        let folder = Folder::new("trace")?;
        let program = folder.compile("touch", SOURCE, &["-lpthread"], NEEDS, stop)?;
        Ok(Self { folder, program })
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program after the words of `tracer`.
    pub(super) fn under(&self, mut tracer: Command, work: Work) -> Command {
        tracer.arg(&self.program);
        let numbers = [work.threads, PAGES, work.rounds, work.period_ns];
        tracer.args(numbers.map(|number| number.to_string()));
        tracer
    }

    pub(super) fn plain(&self, work: Work) -> Command {
        let mut env = Command::new("env");
        env.arg("--");
        self.under(env, work)
    }

    /// The program under perf, recording page faults.
    pub(super) fn under_perf(&self, work: Work, output: &Path) -> Command {
        let mut perf = Command::new("perf");
        perf.args(["record", "-q", "-e", "page-faults", "-d", "-c", "1", "-o"]).arg(output);
        perf.arg("--");
        self.under(perf, work)
    }

    /// The program under `cowslip trace`, which writes its numbers to `json`.
    pub(super) fn under_cowslip(
        &self,
        work: Work,
        output: &Path,
        json: &Path,
        options: &[&str],
    ) -> Result<Command> {
        let mut trace = Command::new(program::cowslip()?);
        trace.args(["trace", "-o"]).arg(output).arg("--json").arg(json).args(options).arg("--");
        Ok(self.under(trace, work))
    }

    /// Runs one of the commands to its end.
    pub(super) fn run(&self, command: &mut Command, stop: &Interrupt) -> Result<Touched> {
        parse(&self.folder.finish(command, stop)?)
    }
}

pub(super) fn parse(printed: &str) -> Result<Touched> {
    let numbers = printed.trim().split_once(' ').and_then(|(faults, ns)| {
        Some(Touched { faults: faults.parse().ok()?, ns: ns.parse().ok().filter(|&ns| ns > 0)? })
    });
    numbers.ok_or_else(|| Error::Failed(format!("the traced program printed {printed:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        let touched = parse("1000 2000000\n").unwrap();
        assert_eq!(touched, Touched { faults: 1000, ns: 2_000_000 });
        assert!((touched.per_second() - 500_000.0).abs() < 1e-6);
        for wrong in ["", "7", "7 0", "a b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
