//! The command around a session: signals end it, and standard error says what happens.

use std::io;
use std::path::Path;
use std::time::Duration;

use cowslip::host::Answer;
use cowslip_promote::session::{Notice, Operator};
use cowslip_sys::{AsFd, OwnedFd};
use signal_hook::consts::SIGHUP;

use super::{gain, report};

use crate::commands::signals::Signals;
use crate::exit::{self, Failure};
use cowslip_report::{sink, text};

/// Signals end it or make it read its plan again; events are reported on standard error.
pub(super) struct Console {
    signals: Signals,
    /// A command whose end ends the session, until then.
    command: Option<OwnedFd>,
    has_ended: bool,
}

impl Console {
    pub(super) fn listen() -> Result<Box<Self>, Failure> {
        Self::new(Signals::listen(Some(SIGHUP)))
    }

    /// A console beside a command that is started after it.
    pub(super) fn of_parent() -> Result<Box<Self>, Failure> {
        Self::new(Signals::listen_as_parent(SIGHUP))
    }

    fn new(signals: io::Result<Signals>) -> Result<Box<Self>, Failure> {
        let signals = signals.map_err(exit::system("listen for signals"))?;
        Ok(Box::new(Self { signals, command: None, has_ended: false }))
    }

    /// Ends the session with this process.
    pub(super) fn follow(&mut self, command: OwnedFd) {
        self.command = Some(command);
    }
}

impl Operator for Console {
    fn tell(&mut self, notice: &Notice<'_>) {
        // The names of processes are other users' to choose.
        errln!("cowslip: {}", text::printable(&sentence(notice)));
    }

    fn stops(&self) -> bool {
        self.has_ended || self.signals.stops()
    }

    fn takes_reload(&mut self) -> bool {
        self.signals.triggers()
    }

    fn wait(&mut self, time: Duration) -> io::Result<()> {
        let command: Vec<_> = self.command.iter().map(AsFd::as_fd).collect();
        self.has_ended |= self.signals.wait_or(time, &command)?;
        Ok(())
    }

    fn write_metrics(&mut self, file: &Path, text: &str) -> io::Result<()> {
        sink::write(file, text)
    }
}

/// Writes notices to standard error, and leaves signals alone.
pub(super) struct Log;

impl Operator for Log {
    fn tell(&mut self, notice: &Notice<'_>) {
        errln!("cowslip: {}", text::printable(&sentence(notice)));
    }

    fn write_metrics(&mut self, file: &Path, text: &str) -> io::Result<()> {
        sink::write(file, text)
    }
}

/// The rest of the sentence of an answer.
fn hint(answer: &Answer) -> String {
    match answer {
        Answer::Denied { hint } => format!(": {hint}"),
        Answer::Unknown { errno } => format!(": error {errno}"),
        Answer::Unsupported | Answer::Available => String::new(),
    }
}

/// Targets that a shortage names.
const NAMED: usize = 5;

fn scarce(holders: &[(String, u64)]) -> String {
    let held = holders.iter().filter(|(_, huge)| *huge > 0);
    let mut named: Vec<_> =
        held.clone().take(NAMED).map(|(name, huge)| format!("{name} has {huge}")).collect();
    match held.count().saturating_sub(NAMED) {
        0 => {}
        others => named.push(format!("{others} more have some")),
    }
    if named.is_empty() {
        named.push("no target has any".to_owned());
    }
    format!(
        "huge pages are scarce: free memory is in pieces, and the kernel cannot join them; {}; shared by weight from now on",
        named.join(", ")
    )
}

fn sentence(notice: &Notice<'_>) -> String {
    match notice {
        Notice::HeatFrom(source) => format!("heat is known {}", source.sentence()),
        Notice::HeatNotFrom(source, why) => format!("not {}: {why}", source.sentence()),
        Notice::HeatNowFrom(source) => {
            format!("heat is known {} from now on", source.sentence())
        }
        Notice::MetricsAt(address) => format!("metrics at http://{address}/metrics"),
        Notice::Promoting([]) => "promoting nobody yet".to_owned(),
        Notice::Promoting(names) => format!("promoting {}", names.join(", ")),
        Notice::Found(name) => format!("found {name}"),
        Notice::TooMany(processes) => format!(
            "{} left out: the limit of open files (ulimit -n, LimitNOFILE=) has no room for them",
            text::count(*processes, "process")
        ),
        Notice::MetricsNotWritten(why) => {
            format!("the metrics' file stays as it is for now: {why}")
        }
        Notice::GroupMissing(path, errno) => {
            format!("control group {}: {errno}; it is waited for", path.display())
        }
        Notice::AllEnded => "every process has ended".to_owned(),
        Notice::LeftAlone(target) => {
            format!("{} ({}) is left alone: {}", target.name, target.process.pid, target.error)
        }
        Notice::Reloaded => "read the configuration again".to_owned(),
        Notice::ReloadFailed(why) => format!("goes on as before: {why}"),
        Notice::Measured(name, measurement) => gain::sentence(name, measurement),
        Notice::FileText(mount, answer) => {
            let mount = mount.display();
            format!("huge pages of text on {mount}: {}{}", answer.word(), hint(answer))
        }
        Notice::NoReclaim(group, reply) => {
            let hint = hint(&reply.answer);
            let (group, answer) = (group.display(), reply.answer.word());
            format!("no reclaim in {group}, huge pages are split: {answer}: {}{hint}", reply.detail)
        }
        Notice::PageSize(choice) => report::page_size(choice),
        Notice::Scarce(holders) => scarce(holders),
        Notice::NoLongerScarce => "huge pages are no longer scarce".to_owned(),
        Notice::Changed(regions, coverage) => {
            format!(
                "{} changed, {coverage} of anonymous memory huge now",
                text::count(*regions, "region")
            )
        }
    }
}
