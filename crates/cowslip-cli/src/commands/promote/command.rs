//! `-- COMMAND`: starts a program whose huge pages come from promotion, not from page faults.

use std::ffi::OsString;
use std::process::{Child, Command, ExitCode};
use std::thread;

use cowslip_sys::thp_disable::ThpDisable;
use cowslip_sys::{Errno, reason};
use cowslip_sys::{process, terminal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::args::PromoteArgs;
use super::operator::Console;
use super::{plan, promote};
use crate::commands::passed_on::PassedOn;
use crate::commands::signals::unless_ignored;
use crate::exit::{self, CommandResult, Failure};

pub(super) fn run(args: &PromoteArgs) -> CommandResult {
    start_and_promote(args).map_err(Failure::instead_of_command)
}

fn start_and_promote(args: &PromoteArgs) -> CommandResult {
    // Before the command runs: afterwards, a plan without sense would have to stop it.
    plan::from_args(args, None)?;
    // The command ignores those that this process ignores.
    let signals = [SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter_map(unless_ignored);
    let signals = PassedOn::listen(signals).map_err(exit::system("listen for signals"))?;
    let console = Console::of_parent()?;
    let mut child = start(&args.command)?;
    pass_on(signals, child.id() as i32);
    let promoted = follow(args, console, &child);
    if let Err(failure) = promoted {
        errln!("cowslip: {failure}; the command goes on without promotion");
    }
    let status = child.wait().map_err(exit::system("wait for the command"))?;
    Ok(ExitCode::from(exit::from_status(status)))
}

/// Starts it so that only memory with advice gets huge pages, as far as the kernel can.
fn start(command: &[OsString]) -> Result<Child, Failure> {
    let before = ThpDisable::get();
    let set = match before {
        Ok(ThpDisable::All) => Ok(()), // It stays without huge pages, see `prctl(2)`.
        Ok(_) => ThpDisable::ExceptAdvised.set(),
        Err(errno) => Err(errno),
    };
    let started = Command::new(&command[0]).args(&command[1..]).spawn();
    if let (Ok(before), Ok(())) = (before, set) {
        let _ = before.set();
    }
    if let Err(errno) = set {
        errln!(
            "cowslip: page faults give the command huge pages as the system's settings say: {}",
            why(errno)
        );
    }
    started.map_err(|error| {
        Failure::new(exit::not_run(&error), format!("cannot run {}: {error}", command[0].display()))
    })
}

fn why(errno: Errno) -> &'static str {
    match errno {
        Errno::INVAL => "this kernel has no PR_THP_DISABLE_EXCEPT_ADVISED (Linux 6.18 has)",
        errno => reason(errno),
    }
}

/// Passes on the signals that end a command. Keys of a terminal send theirs to both already.
fn pass_on(mut signals: PassedOn, pid: i32) {
    thread::spawn(move || {
        while process::wait_readable(&[signals.woken()], &mut [false], None).is_ok() {
            let Some(signal) = signals.take() else { continue };
            if !([SIGINT, SIGQUIT].contains(&signal) && terminal::is_foreground()) {
                let _ = process::signal(pid, signal);
            }
        }
    });
}

/// Promotes it and its descendants, and further targets, until it ends.
fn follow(args: &PromoteArgs, mut console: Box<Console>, child: &Child) -> Result<(), Failure> {
    let pid = child.id() as i32;
    let pidfd =
        process::pidfd(pid).map_err(|errno| exit::system("watch the command")(errno.into()))?;
    console.follow(pidfd);
    promote(plan::from_args(args, Some(pid))?, console, args, Some(pid)).map(drop)
}
