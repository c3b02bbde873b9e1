//! Copies of a program that knows nothing of Cowslip, made while it runs, with all its threads.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use cowslip_process::{Copy as RunningCopy, CopyOptions, PrivateFolders, look};
use cowslip_sys::{AsFd, OwnedFd, process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM};

use super::args::Args;
use super::copies::{Copy, Report};
use super::streams::Streams;
use crate::commands::passed_on::PassedOn;
use crate::commands::promote::before_hold;
use crate::commands::signals::unless_ignored;
use crate::exit::{self, Failure, USAGE};

/// Makes the copies of process `pid`, and waits for their end.
pub(super) fn branch(args: &Args, pid: i32) -> Result<Report, Failure> {
    if !args.arguments.is_empty() || !args.env.is_empty() {
        let why = "copies of a program as it runs have its arguments and its environment";
        return Err(Failure::new(USAGE, format!("process {pid}: {why}")));
    }
    let private = PrivateFolders::new(&args.private)?;
    if args.promote {
        before_hold(pid);
    }
    let signals = [SIGINT, SIGQUIT, SIGTERM].into_iter().chain(unless_ignored(SIGHUP));
    let mut signals = PassedOn::listen(signals).map_err(exit::system("listen to signals"))?;
    let mut plan = look(pid)?;
    let shared = plan.keep_private(&private)?;
    if plan.lacks().iter().all(|lack| !lack.is_fatal()) {
        let lacks = plan.lacks().iter().filter(|lack| !lack.is_of_checkpoint());
        lacks.for_each(|lack| errln!("cowslip: {lack}"));
        shared.iter().for_each(|sentence| errln!("cowslip: {sentence}"));
    }
    let mut streams = Streams::new(args, args.copies);
    let files: Vec<_> =
        (0..args.copies).map(|copy| streams.of_copy(copy)).collect::<Result<_, _>>()?;
    let began = Instant::now();
    let mut holder = plan.hold()?;
    let pause = Some(holder.pause());
    let mut start = |streams: &[OwnedFd; 3]| {
        holder.branch(&CopyOptions {
            streams: streams.each_ref().map(|file| file.as_fd()),
            folder: None,
            private: &private,
            has_own_network: args.net,
            job: None,
        })
    };
    let mut running =
        files.iter().map(&mut start).collect::<cowslip_sys::error::Result<Vec<_>>>()?;
    let all_running = Some(began.elapsed());
    if args.net {
        for (copy, process) in running.iter().enumerate() {
            let pid = process.pid();
            errln!("cowslip: copy {copy} is process {pid}: nsenter --net=/proc/{pid}/ns/net");
        }
    }
    // The program's connections, which it shares, are closed with it.
    drop((holder, files));
    let new = |copy: &RunningCopy| Copy { pid: Some(copy.pid()), argument: None, status: None };
    let mut copies: Vec<_> = running.iter().map(new).collect();
    let mut passed_on = None;
    while copies.iter().any(|copy| copy.status.is_none()) {
        let left: Vec<_> =
            (0..copies.len()).filter(|copy| copies[*copy].status.is_none()).collect();
        let mut fds: Vec<_> = left.iter().map(|copy| running[*copy].as_fd()).collect();
        fds.push(signals.woken());
        let ready = process::wait_many_readable(&fds, None)
            .map_err(|errno| exit::system("wait for the copies")(errno.into()))?;
        if let Some(signal) = signals.take() {
            if passed_on.replace(signal).is_some() {
                // They end with this command.
                break;
            }
            // An error means that it has ended.
            left.iter().for_each(|copy| drop(running[*copy].signal(signal)));
        }
        for (copy, _) in left.iter().zip(&ready).filter(|(_, ready)| **ready) {
            // Without an answer, its namespace has been killed, and it too.
            let status = running[*copy].status().unwrap_or(SIGKILL);
            copies[*copy].status = Some(ExitStatus::from_raw(status));
        }
    }
    let is_over = copies.iter().all(|copy| copy.status.is_some());
    Ok(Report { copies, all_running, ended_by: passed_on.filter(|_| !is_over), pause })
}
