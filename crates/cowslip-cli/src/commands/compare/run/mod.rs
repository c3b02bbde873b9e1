//! `cowslip compare run`: both commands in turns, a recording per run, and the differences.

mod args;
mod folders;
mod order;
mod shell;
mod until;

use std::collections::BTreeMap;
use std::fs::File;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use cowslip_compare::recorder::{Recorder, Watch, facts};
use cowslip_compare::recording::EXIT_CODE;
use cowslip_report::Progress;
use cowslip_sys::usage::Usage;

use super::result::{deliver, read};
use crate::commands::signals::Signals;
use crate::exit::{self, CommandResult, Failure};
pub(super) use args::RunArgs;
use folders::{Folders, Side};
use shell::{Ended, Shell};
use until::Until;

/// Runs of each by default, and the most of them with `--until`.
const RUNS: u32 = 10;
const MOST_RUNS: u32 = 200;

pub(super) fn run(args: &RunArgs) -> CommandResult {
    let folders = record(args)?;
    let [good, bad] = folders.both().map(read);
    deliver(good?, bad?, &args.how)
}

/// Runs the commands and returns the recordings; after Ctrl-C those of the finished runs.
fn record(args: &RunArgs) -> Result<Folders, Failure> {
    let folders = Folders::create(&args.output)?;
    let mut session = Session {
        args,
        folders,
        signals: Signals::listen(None).map_err(exit::system("listen for signals"))?,
        facts: facts(),
        ignored: BTreeMap::new(),
        until: args.until.map(|percent| Until::new(percent, &args.how)),
    };
    let mut progress = Progress::new();
    let runs = args.runs.unwrap_or(if args.until.is_some() { MOST_RUNS } else { RUNS });
    let turns = order::turns(args.order, runs, args.seed);
    let warm_up = order::turns(args.order, args.warmup, args.seed ^ 1);
    for (phase, turns, is_recorded) in
        [("warming up", &warm_up, false), ("recording", &turns, true)]
    {
        if turns.is_empty() {
            continue;
        }
        progress.phase(phase);
        for (done, side) in turns.iter().enumerate() {
            progress.set(done as u64, turns.len() as u64);
            if session.turn(*side, is_recorded)? == Ended::Interrupted {
                progress.finish();
                return session.interrupted();
            }
            if is_recorded && session.is_precise(&mut progress)? {
                break;
            }
        }
    }
    progress.finish();
    session.tell_ignored();
    session.tell_precision()?;
    Ok(session.folders)
}

struct Session<'a> {
    args: &'a RunArgs,
    folders: Folders,
    signals: Signals,
    facts: BTreeMap<String, String>,
    /// The number of ignored failures, by side and by exit status.
    ignored: BTreeMap<(&'static str, String), u32>,
    until: Option<Until<'a>>,
}

impl Session<'_> {
    /// One run, with the commands before and after it.
    fn turn(&mut self, side: Side, is_recorded: bool) -> Result<Ended, Failure> {
        let (prepare, cleanup) = (self.args.prepare.as_deref(), self.args.cleanup.as_deref());
        if self.hook("prepare", prepare)? == Ended::Interrupted {
            return Ok(Ended::Interrupted);
        }
        let ended = if is_recorded { self.recorded(side)? } else { self.plain(side)? };
        if ended == Ended::Interrupted {
            return Ok(ended);
        }
        self.hook("cleanup", cleanup)
    }

    fn hook(&mut self, what: &str, command: Option<&str>) -> Result<Ended, Failure> {
        let Some(command) = command else { return Ok(Ended::Itself) };
        let mut shell = self.shell(command)?;
        let ended = shell.wait(&mut self.signals)?;
        let (status, _) = shell.reap()?;
        if ended == Ended::Itself && !status.success() {
            return Err(failed(&format!("command of --{what}"), command, status, ""));
        }
        Ok(ended)
    }

    fn plain(&mut self, side: Side) -> Result<Ended, Failure> {
        let mut shell = self.shell(self.command(side))?;
        let ended = shell.wait(&mut self.signals)?;
        let (status, _) = shell.reap()?;
        self.check(side, ended, status)
    }

    fn recorded(&mut self, side: Side) -> Result<Ended, Failure> {
        let command = self.command(side);
        let mut facts = self.facts.clone();
        facts.insert("command".to_owned(), command.to_owned());
        let part = self.folders.part(side);
        let failed = || exit::io(format!("record {}", part.display()));
        let interval = Duration::from_secs_f64(self.args.interval);
        let file = File::create(&part).map_err(failed())?;
        let recorder = Recorder::start(file, &facts, Watch::Command, interval).map_err(failed())?;
        let start = Instant::now();
        let mut shell = self.shell(command)?;
        recorder.follow(shell.pid());
        let ended = shell.wait(&mut self.signals)?;
        let wall = start.elapsed();
        let writer = recorder.stop().map_err(failed())?;
        let (status, usage) = shell.reap()?;
        let ended = self.check(side, ended, status)?;
        if ended == Ended::Itself {
            writer.finish(totals(wall, status, &usage)).map_err(failed())?;
            let file = self.folders.keep(side)?;
            if let Some(until) = &mut self.until {
                until.add(side, &file)?;
            }
            if !status.success() {
                *self.ignored.entry((side.name(), status.to_string())).or_insert(0) += 1;
            }
        }
        Ok(ended)
    }

    fn check(&self, side: Side, ended: Ended, status: ExitStatus) -> Result<Ended, Failure> {
        if ended == Ended::Interrupted || status.success() || self.args.ignore_failure {
            return Ok(ended);
        }
        let advice = " (--show-output shows what it says, --ignore-failure keeps such runs)";
        Err(failed(&format!("{} command", side.name()), self.command(side), status, advice))
    }

    /// Reports how the kept runs that failed ended.
    fn tell_ignored(&self) {
        for ((side, how), runs) in &self.ignored {
            errln!("cowslip: {runs} {side} runs ended with {how}");
        }
    }

    /// Returns true if the result is as precise as `--until` asks.
    fn is_precise(&self, progress: &mut Progress) -> Result<bool, Failure> {
        let Some(until) = &self.until else { return Ok(false) };
        let width = until.width()?;
        if let Some(width) = width {
            progress.rename(&format!("recording, interval {}", percent_wide(width)));
        }
        Ok(until.is_reached(width))
    }

    /// Reports the precision that `--until` has come to.
    fn tell_precision(&self) -> Result<(), Failure> {
        let Some(until) = &self.until else { return Ok(()) };
        let width = until.width()?;
        let after = format!("after {} runs of each", until.runs());
        match width {
            Some(width) if until.is_reached(Some(width)) => {
                errln!("cowslip: the interval is {} {after}", percent_wide(width));
            }
            Some(width) => errln!(
                "cowslip: the interval is still {} {after}; more --runs make it narrower",
                percent_wide(width)
            ),
            None => errln!("cowslip: {after} the interval is not judged yet; it needs ten"),
        }
        Ok(())
    }

    fn command(&self, side: Side) -> &str {
        match side {
            Side::Good => &self.args.good,
            Side::Bad => &self.args.bad,
        }
    }

    fn shell(&self, command: &str) -> Result<Shell, Failure> {
        Shell::start(command, self.args.show_output)
    }

    fn interrupted(self) -> Result<Folders, Failure> {
        let [good, bad] = self.folders.kept();
        let said = format!("interrupted after {good} good and {bad} bad runs");
        if good < 2 || bad < 2 {
            let why =
                format!("{said}: too few to compare; they are in {}", self.args.output.display());
            return Err(Failure::new(exit::NOT_THE_COMMAND, why));
        }
        self.tell_ignored();
        errln!("cowslip: {said}, which are compared");
        Ok(self.folders)
    }
}

fn percent_wide(width: f64) -> String {
    format!("{} % wide", cowslip_report::units::fixed(100.0 * width, 2))
}

/// A command that failed, with the exit code that `env(1)` would pass on.
fn failed(what: &str, command: &str, status: ExitStatus, advice: &str) -> Failure {
    let (code, why) = match exit::of(status) {
        exit::CANNOT_RUN => (exit::CANNOT_RUN, ": it cannot be run"),
        exit::NOT_FOUND => (exit::NOT_FOUND, ": it is not there"),
        _ => (exit::NOT_THE_COMMAND, ""),
    };
    Failure::new(code, format!("the {what} ended with {status}{why}: {command}{advice}"))
}

/// The totals of the whole run, and its exit code.
fn totals(wall: Duration, status: ExitStatus, usage: &Usage) -> BTreeMap<String, f64> {
    let values = [
        (EXIT_CODE, f64::from(exit::of(status))),
        ("wall_seconds", wall.as_secs_f64()),
        ("rusage.user_seconds", usage.user.as_secs_f64()),
        ("rusage.system_seconds", usage.system.as_secs_f64()),
        ("rusage.minor_faults", usage.minor_faults as f64),
        ("rusage.major_faults", usage.major_faults as f64),
        ("rusage.max_resident_bytes", usage.max_resident_bytes as f64),
        ("rusage.voluntary_switches", usage.voluntary_switches as f64),
        ("rusage.involuntary_switches", usage.involuntary_switches as f64),
    ];
    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
