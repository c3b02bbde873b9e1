//! `cowslip promote` as a process of its own, as an operator runs it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use cowslip_sys::process::{end_group, stop_group};
use serde::Deserialize;

use super::target::cpu_ns;
use crate::error::{Error, Result, during};
use crate::interrupt::Interrupt;
use crate::program::{self, Folder, Running};

/// A promoter that runs until this value is dropped.
#[derive(Debug)]
pub(super) struct Daemon {
    running: Running,
    report: PathBuf,
    folder: Folder,
}

/// Results of a promoter, summed over all processes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Deeds {
    pub(super) promotions: u64,
    pub(super) longest_stall_ns: u64,
}

#[derive(Deserialize)]
struct Report {
    processes: Vec<Process>,
}

#[derive(Deserialize)]
struct Process {
    promotions: u64,
    longest_stall_ns: u64,
}

impl Daemon {
    /// Starts it for `pids`, with further options and with these settings in its configuration file.
    pub(super) fn start(pids: &[i32], options: &[&str], settings: &str) -> Result<Self> {
        let folder = Folder::new("bloat-daemon")?;
        let config = folder.write("promote.toml", &format!("[settings]\n{settings}"))?;
        let report = folder.path().join("report.json");
        let mut command = Command::new(program::cowslip()?);
        command.arg("promote").args(options).arg("--json").arg(&report);
        if !settings.is_empty() {
            command.arg("--config").arg(config);
        }
        for pid in pids {
            command.arg("--pid").arg(pid.to_string());
        }
        let (out, err) = (folder.path().join("out"), folder.path().join("err"));
        let running = Running::start(&mut command, &out, &err)?;
        Ok(Self { running, report, folder })
    }

    /// Processor time used so far.
    pub(super) fn cpu_ns(&self) -> Result<u64> {
        cpu_ns(self.running.id())
    }

    /// Stops it where it is, or lets it go on.
    pub(super) fn stop(&self, stopped: bool) -> Result<()> {
        stop_group(self.running.id(), stopped).map_err(during("stop the promoter for a while"))
    }

    /// Asks it to end.
    pub(super) fn end(self, stop: &Interrupt) -> Result<Deeds> {
        let asked = end_group(self.running.id(), false);
        asked.map_err(during("end the promoter"))?;
        self.wait(stop)
    }

    /// Waits until it has ended by itself, and returns its results.
    pub(super) fn wait(mut self, stop: &Interrupt) -> Result<Deeds> {
        let status = self.running.wait(stop)?;
        if !status.success() {
            let said = fs::read_to_string(self.folder.path().join("err")).unwrap_or_default();
            let last = said.lines().last().unwrap_or_default();
            return Err(Error::Failed(format!("cowslip promote ended with {status}: {last}")));
        }
        let text = fs::read_to_string(&self.report).map_err(during("read what it did"))?;
        let report: Report = serde_json::from_str(&text).map_err(during("read what it did"))?;
        let all = report.processes.iter();
        Ok(all.fold(Deeds::default(), |sum, process| Deeds {
            promotions: sum.promotions + process.promotions,
            longest_stall_ns: sum.longest_stall_ns.max(process.longest_stall_ns),
        }))
    }
}
