//! A process that lets a machine go on if the command that stopped it is killed.
//!
//! Its standard input is a pipe from the command, its standard output the connection to the machine.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Instant;

use cowslip_sys::{AsFd, OwnedFd};
use serde_json::json;

use super::qmp::{Qmp, SILENCE};
use crate::exit::{self, CommandResult, Failure};

/// The hidden subcommand.
pub(super) const NAME: &str = "guard";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The command's folder, which is removed with it
    folder: PathBuf,
    /// The machine stood still before
    #[arg(long)]
    paused: bool,
}

/// Watches the command while the machine is stopped. Dropped before it is [`Self::done`], as by a panic, it lets the machine go
/// on.
pub(super) struct Guard {
    child: Child,
    pipe: ChildStdin,
}

impl Guard {
    pub(super) fn start(qmp: &Qmp, folder: &Path, is_paused: bool) -> Result<Self, Failure> {
        let failed = || exit::io("start the process that lets the machine go on");
        let program = std::env::current_exe().map_err(failed())?;
        let stream = OwnedFd::from(qmp.stream().try_clone().map_err(failed())?);
        let mut command = Command::new(program);
        // In a group of its own: a kill of the command's group must not reach it.
        command
            .args(["vm", NAME])
            .arg(folder)
            .args(is_paused.then_some("--paused"))
            .process_group(0);
        command.stdin(Stdio::piped()).stdout(stream).stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed())?;
        Ok(Self { pipe: child.stdin.take().expect("it is piped"), child })
    }

    /// Ends it: the machine goes on.
    pub(super) fn done(mut self) {
        let _ = self.pipe.write_all(b".");
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

/// Waits for the end of the command, and lets the machine go on if it was not expected.
pub(super) fn run(args: &Args) -> CommandResult {
    let mut word = [0];
    if matches!(std::io::stdin().read(&mut word), Ok(1)) {
        return Ok(ExitCode::SUCCESS);
    }
    let stream = std::io::stdout().as_fd().try_clone_to_owned();
    let stream = stream.map_err(exit::io("take the connection to the machine"))?;
    let mut qmp = Qmp::on(UnixStream::from(stream))?;
    let _ = fs::remove_dir_all(&args.folder);
    // A machine that is silent may stop later, if it was asked to. One that has ended answers at once.
    loop {
        let asked = Instant::now();
        match go_on(&mut qmp, args.paused) {
            Err(_) if asked.elapsed() >= SILENCE => {}
            gone_on => break gone_on?,
        }
    }
    qmp.ignore_shared(false)?;
    Ok(ExitCode::SUCCESS)
}

/// Ends a migration that may be under way, and lets the machine run, unless it stood still before.
pub(super) fn go_on(qmp: &mut Qmp, was_paused: bool) -> Result<(), Failure> {
    let _ = qmp.ask("migrate_cancel", json!({}));
    let ended = |state: &serde_json::Value| {
        Ok(!["setup", "active", "device", "cancelling"].iter().any(|word| state["status"] == *word))
    };
    qmp.wait("query-migrate", ended)?;
    if was_paused { Ok(()) } else { qmp.ask("cont", json!({})).map(drop) }
}
