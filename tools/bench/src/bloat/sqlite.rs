//! The pattern of a document store on a real SQLite in memory: insert, delete most, serve.
//!
//! MongoDB itself is not packaged. The program is C, has glibc give back deleted memory (`malloc_trim`), and checks
//! every document that it reads.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::report::Row;

use super::daemon::Daemon;
use super::group::Group;
use super::line_protocol::LineProtocol;
use super::policy::HugePagePolicy;
use super::settings::{Settings, System};
use super::target::{mapped, part_of_resident, sleep, until_huge};
use super::{BYTES_CHANGED, Bench, MIB, Options, Result};
use crate::error::Error;
use crate::program::Folder;
use crate::rows::median;

const READS: &str = "sqlite_read";
const SOURCE: &str = include_str!("sqlite.c");
const NEEDS: &str = "apt-get install gcc libsqlite3-dev";
const DELETED_PERCENT: u32 = 70;
const DOCUMENT_BYTES: f64 = 1024.0;
const COVERED: f64 = 0.85;
const COVERING: Duration = Duration::from_secs(60);
const SETTLING: Duration = Duration::from_secs(15);
const TURN_MS: u32 = 1000;
const MOST_ROUNDS: u32 = 5;

struct Entry {
    policy: HugePagePolicy,
    program: LineProtocol,
    group: Result<Group>,
    daemon: Option<Daemon>,
    rates: Vec<f64>,
    changed_bytes: f64,
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64 / 2;
    let folder = Folder::new("bloat-sqlite")?;
    let program = folder.compile("sqlite", SOURCE, &["-lsqlite3"], NEEDS, bench.stop);
    let mut entries = Vec::new();
    for policy in HugePagePolicy::RIVALS {
        bench.progress.phase(&format!("SQLite: {}", policy.name()));
        let entry = program.as_ref().map_err(Error::clone).and_then(|program| {
            let entry = Entry::start(bench, policy, program, bytes, system);
            entry.and_then(|mut entry| entry.empty(bench, bytes).map(|()| entry))
        });
        match entry {
            Ok(entry) => entries.push(entry),
            Err(Error::Failed(why)) => {
                bench.report.row(Row::skipped(policy.name(), READS, why).size_bytes(bytes));
            }
            Err(error) => return Err(error),
        }
    }
    system.set(&Settings::NEVER)?;
    let rounds = options.runs.min(MOST_ROUNDS);
    for round in 0..=rounds {
        bench.progress.phase(&format!("SQLite: round {round} of {rounds}"));
        for entry in &mut entries {
            let rate = entry.read(bench)?;
            if round > 0 {
                entry.rates.push(rate);
            }
        }
    }
    for entry in entries {
        let name = entry.policy.name();
        let rate = median(&entry.rates).unwrap_or(f64::NAN);
        let row = Row::new(name, READS, "p50", rate, "1/s").size_bytes(bytes);
        bench.report.row(row.n(entry.rates.len() as u64));
        let row =
            Row::new(name, BYTES_CHANGED, "value", entry.changed_bytes, "bytes").size_bytes(bytes);
        bench.report.row(row.variant("SQLite"));
        entry.daemon.map_or(Ok(()), |daemon| daemon.end(bench.stop).map(drop))?;
    }
    Ok(())
}

impl Entry {
    /// Starts a program with its documents, under the settings of a policy.
    fn start(
        bench: &Bench<'_>,
        policy: HugePagePolicy,
        program: &Path,
        bytes: u64,
        system: &System,
    ) -> Result<Self> {
        system.set(&policy.settings()?)?;
        let mut command = Command::new(program);
        command.args([(bytes / MIB).to_string(), DELETED_PERCENT.to_string()]);
        command.envs(policy.environment().iter().copied());
        let mut program = LineProtocol::start(&mut command)?;
        let group = Group::new().and_then(|group| group.add(program.pid()).map(|()| group));
        program.answer(bench.stop)?;
        let daemon = match policy {
            HugePagePolicy::Cowslip => {
                let daemon = Daemon::start(&[program.pid()], &[], "")?;
                let enough_bytes = part_of_resident(program.pid(), COVERED)?;
                until_huge(program.pid(), enough_bytes, COVERING, bench.stop)?;
                Some(daemon)
            }
            _ => None,
        };
        Ok(Self { policy, program, group, daemon, rates: Vec::new(), changed_bytes: 0.0 })
    }

    fn empty(&mut self, bench: &mut Bench<'_>, bytes: u64) -> Result<()> {
        self.push_memory(bench, bytes, "filled")?;
        self.program.ask("delete")?;
        self.program.answer(bench.stop)?;
        sleep(SETTLING / 2, bench.stop)?;
        if self.policy == HugePagePolicy::Reclaim {
            self.group.as_ref().map_or(Ok(()), Group::reclaim)?;
        }
        sleep(SETTLING / 2, bench.stop)?;
        self.push_memory(bench, bytes, "settled")
    }

    fn push_memory(&self, bench: &mut Bench<'_>, bytes: u64, when: &str) -> Result<()> {
        let seen = mapped(self.program.pid())?;
        let name = self.policy.name();
        let held = match &self.group {
            Ok(group) => Row::new(name, "sqlite_memory", "value", group.bytes()? as f64, "bytes"),
            Err(error) => Row::skipped(name, "sqlite_memory", error.to_string()),
        };
        let rss = Row::new(name, "sqlite_rss", "value", seen.resident_bytes as f64, "bytes");
        let huge = Row::new(name, "sqlite_huge", "value", seen.huge_bytes as f64, "bytes");
        [held, rss, huge].into_iter().for_each(|row| {
            bench.report.row(row.size_bytes(bytes).variant(when));
        });
        Ok(())
    }

    /// Documents a second.
    fn read(&mut self, bench: &Bench<'_>) -> Result<f64> {
        self.program.ask(&format!("serve {TURN_MS}"))?;
        let said = self.program.answer(bench.stop)?;
        let counts = said.split_once(' ').and_then(|(reads, changed)| {
            Some((reads.parse::<f64>().ok()?, changed.parse::<f64>().ok()?))
        });
        let why = || Error::Failed(format!("the program printed {said:?}"));
        let (reads, changed) = counts.ok_or_else(why)?;
        self.changed_bytes += changed * DOCUMENT_BYTES;
        Ok(reads * 1000.0 / f64::from(TURN_MS))
    }
}
