//! One run of a command, recorded or not.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use cowslip_compare::Prices;
use cowslip_compare::recorder::{Recorder, Watch, facts, prices};
use cowslip_compare::recording::EXIT_CODE;
use cowslip_sys::usage::Usage;

use super::args::Way;
use super::shell::{Ended, Shell};
use crate::commands::signals::Signals;
use crate::exit::{self, Failure};

pub(in crate::commands::compare) struct Once<'a> {
    way: &'a Way,
    signals: Signals,
    facts: BTreeMap<String, String>,
    /// Measured before all runs.
    prices: Option<Prices>,
}

impl<'a> Once<'a> {
    /// Runs commands in this way; Ctrl-C ends the running one.
    pub(in crate::commands::compare) fn new(way: &'a Way) -> Result<Self, Failure> {
        let signals = Signals::listen(None).map_err(exit::system("listen for signals"))?;
        Ok(Self { way, signals, facts: facts(), prices: prices() })
    }

    /// The signals that end a run.
    pub(super) fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Runs the command that comes before each run.
    pub(in crate::commands::compare) fn prepare(&mut self) -> Result<Ended, Failure> {
        self.hook("prepare", self.way.prepare.as_deref())
    }

    /// Runs the command that comes after each run.
    pub(in crate::commands::compare) fn cleanup(&mut self) -> Result<Ended, Failure> {
        self.hook("cleanup", self.way.cleanup.as_deref())
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

    /// Runs `command`, called `what` in errors.
    pub(in crate::commands::compare) fn plain(
        &mut self,
        what: &str,
        command: &str,
    ) -> Result<Ended, Failure> {
        let mut shell = self.shell(command)?;
        let ended = shell.wait(&mut self.signals)?;
        let (status, _) = shell.reap()?;
        self.check(what, command, ended, status)
    }

    /// Runs and records `command`. Returns the whole recording; `None` after Ctrl-C. `unwritable` explains an error of
    /// `to`.
    pub(in crate::commands::compare) fn recorded<W, E>(
        &mut self,
        what: &str,
        command: &str,
        to: W,
        unwritable: impl Fn() -> E,
    ) -> Result<Option<(W, ExitStatus)>, Failure>
    where
        W: Write + Send + 'static,
        E: FnOnce(io::Error) -> Failure,
    {
        let mut facts = self.facts.clone();
        facts.insert("command".to_owned(), command.to_owned());
        let interval = Duration::from_secs_f64(self.way.interval);
        let recorder =
            Recorder::start(to, &facts, Watch::Command, interval).map_err(unwritable())?;
        let start = Instant::now();
        let mut shell = self.shell(command)?;
        recorder.follow(shell.pid());
        let ended = shell.wait(&mut self.signals)?;
        let wall = start.elapsed();
        let mut writer = recorder.stop().map_err(unwritable())?;
        if let Some(prices) = self.prices {
            writer.prices(prices).map_err(unwritable())?;
        }
        let (status, usage) = shell.reap()?;
        if self.check(what, command, ended, status)? == Ended::Interrupted {
            return Ok(None);
        }
        let to = writer.finish(totals(wall, status, &usage)).map_err(unwritable())?;
        Ok(Some((to, status)))
    }

    fn check(
        &self,
        what: &str,
        command: &str,
        ended: Ended,
        status: ExitStatus,
    ) -> Result<Ended, Failure> {
        if ended == Ended::Interrupted || status.success() || self.way.ignore_failure {
            return Ok(ended);
        }
        let advice = " (--show-output shows what it says, --ignore-failure keeps such runs)";
        Err(failed(what, command, status, advice))
    }

    fn shell(&self, command: &str) -> Result<Shell, Failure> {
        Shell::start(command, self.way.show_output)
    }
}

/// A command that failed, with the exit code that `env(1)` would pass on.
fn failed(what: &str, command: &str, status: ExitStatus, advice: &str) -> Failure {
    let (code, why) = match exit::from_status(status) {
        exit::CANNOT_RUN => (exit::CANNOT_RUN, ": it cannot be run"),
        exit::NOT_FOUND => (exit::NOT_FOUND, ": it is not there"),
        _ => (exit::NOT_THE_COMMAND, ""),
    };
    Failure::new(code, format!("the {what} ended with {status}{why}: {command}{advice}"))
}

/// The totals of the whole run, and its exit code.
fn totals(wall: Duration, status: ExitStatus, usage: &Usage) -> BTreeMap<String, f64> {
    let values = [
        (EXIT_CODE, f64::from(exit::from_status(status))),
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
