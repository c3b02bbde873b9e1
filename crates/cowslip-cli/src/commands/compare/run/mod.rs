//! `cowslip compare run`: both commands in turns, a recording per run, and the differences.

mod args;
mod folders;
mod once;
mod order;
mod shell;
mod until;
mod why;

use std::collections::BTreeMap;

use cowslip_report::Progress;
use cowslip_sys::atomic_file::{BY_UMASK, create_in_place};

use super::result::{Found, deliver, read};
use crate::exit::{self, CommandResult, Failure};
use args::Why;
pub(super) use args::{RunArgs, Way};
use folders::{Folders, Side};
pub(super) use once::Once;
pub(super) use shell::Ended;
use until::Until;
use why::Wanted;

/// Runs of each by default, and the most of them with `--until`.
const RUNS: u32 = 10;
const MOST_RUNS: u32 = 200;

pub(super) fn run(args: &RunArgs) -> CommandResult {
    let (folders, ended) = record(args)?;
    let [good, bad] = folders.both().map(|folder| read(folder, &[]));
    let (good, bad) = (good?, bad?);
    let (alpha, relevant) = (args.settings.alpha, args.settings.relevant());
    let wanted = match args.why {
        Why::Auto if ended == Ended::Itself => why::worth_it(&good, &bad, alpha, relevant),
        Why::Always if ended == Ended::Itself => Wanted { functions: true, calls: true },
        _ => Wanted::default(),
    };
    let mut found = Found::default();
    if wanted.functions || wanted.calls {
        let mut once = Once::new(&args.way)?;
        // The runs that are compared are there, whatever fails here.
        if wanted.functions {
            found.profile = why::functions(args, &mut once, alpha).unwrap_or_else(|failure| {
                errln!("cowslip: no functions: {failure}");
                None
            });
        }
        if wanted.calls {
            found.calls = why::calls(args, &mut once, alpha).unwrap_or_else(|failure| {
                errln!("cowslip: no system calls: {failure}");
                None
            });
        }
    }
    deliver(good, bad, &found, &args.settings)
}

/// Runs the commands and returns the recordings; after Ctrl-C those of the finished runs.
fn record(args: &RunArgs) -> Result<(Folders, Ended), Failure> {
    let folders = Folders::create(&args.output)?;
    let mut session = Session {
        args,
        folders,
        once: Once::new(&args.way)?,
        ignored: BTreeMap::new(),
        until: args.until.map(|percent| Until::new(percent, &args.settings)),
    };
    let mut progress = Progress::new();
    let runs = args.runs.unwrap_or(if args.until.is_some() { MOST_RUNS } else { RUNS });
    let turns = order::turns(args.order, runs, args.seed);
    let warm_up = order::turns(args.order, args.way.warmup, args.seed ^ 1);
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
                return Ok((session.interrupted()?, Ended::Interrupted));
            }
            if is_recorded && session.is_precise(&mut progress)? {
                break;
            }
        }
    }
    progress.finish();
    session.tell_ignored();
    session.tell_precision()?;
    Ok((session.folders, Ended::Itself))
}

struct Session<'a> {
    args: &'a RunArgs,
    folders: Folders,
    once: Once<'a>,
    /// The number of ignored failures, by side and by exit status.
    ignored: BTreeMap<(&'static str, String), u32>,
    until: Option<Until<'a>>,
}

impl<'a> Session<'a> {
    /// One run, with the commands before and after it.
    fn turn(&mut self, side: Side, is_recorded: bool) -> Result<Ended, Failure> {
        if self.once.prepare()? == Ended::Interrupted {
            return Ok(Ended::Interrupted);
        }
        let what = format!("{} command", side.name());
        let command = self.command(side);
        let ended = match is_recorded {
            true => self.recorded(side, &what, command)?,
            false => self.once.plain(&what, command)?,
        };
        if ended == Ended::Interrupted {
            return Ok(ended);
        }
        self.once.cleanup()
    }

    fn recorded(&mut self, side: Side, what: &str, command: &str) -> Result<Ended, Failure> {
        let part = self.folders.part(side);
        let failed = || exit::io(format!("record {}", part.display()));
        let file = create_in_place(&part, BY_UMASK).map_err(failed())?;
        let Some((_, status)) = self.once.recorded(what, command, file, failed)? else {
            return Ok(Ended::Interrupted);
        };
        let file = self.folders.keep(side)?;
        if let Some(until) = &mut self.until {
            until.add(side, &file)?;
        }
        if !status.success() {
            *self.ignored.entry((side.name(), status.to_string())).or_insert(0) += 1;
        }
        Ok(Ended::Itself)
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

    fn command(&self, side: Side) -> &'a str {
        match side {
            Side::Good => &self.args.good,
            Side::Bad => &self.args.bad,
        }
    }

    fn interrupted(self) -> Result<Folders, Failure> {
        let [good, bad] = self.folders.kept();
        let phrase = format!("interrupted after {good} good and {bad} bad runs");
        if good < 2 || bad < 2 {
            let why =
                format!("{phrase}: too few to compare; they are in {}", self.args.output.display());
            return Err(Failure::new(exit::NOT_THE_COMMAND, why));
        }
        self.tell_ignored();
        errln!("cowslip: {phrase}, which are compared");
        Ok(self.folders)
    }
}

fn percent_wide(width: f64) -> String {
    format!("{} % wide", cowslip_report::units::fixed(100.0 * width, 2))
}
