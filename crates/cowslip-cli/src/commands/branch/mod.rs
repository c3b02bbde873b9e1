//! `cowslip branch`: copies of a warm program, made by itself at its branch point.

mod args;
mod copies;
mod running;
mod streams;
mod target;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cowslip::raw::branch::{Reply, Request};
use cowslip_report::json;
use cowslip_report::text::printable;

use crate::exit::{self, CommandResult, Failure, NO, USAGE};
pub(super) use args::Args;
use copies::{Branch, Connection, Report};
use target::Target;
pub(super) use target::is_under_cowslip;

pub(super) fn run(args: &Args) -> CommandResult {
    let Some(program) = args.program.as_deref() else { return Ok(list()) };
    if args.release {
        return release(args, target::find(program, args.timeout)?);
    }
    branch(args, program).map_err(Failure::instead_of_command)
}

/// The reason why a program under `cowslip run` cannot be branched now.
pub(super) fn refusal(pid: i32) -> Option<String> {
    target::find(&pid.to_string(), Duration::ZERO).err().map(|failure| failure.to_string())
}

fn branch(args: &Args, program: &str) -> CommandResult {
    let is_mixed = args.json.as_deref() == Some(Path::new("-")) && args.output.is_none();
    if is_mixed {
        let why = "--json - goes where the copies' output goes: say --output FILE too";
        return Err(Failure::new(USAGE, why));
    }
    let is_asked_for = args.running || args.net || args.promote || !args.private.is_empty();
    if let Some(pid) = target::as_it_runs(program, is_asked_for)? {
        let report = running::branch(args, pid)?;
        return finish(args, &report, pid, None);
    }
    if is_asked_for {
        return Err(Failure::new(
            USAGE,
            "--running, --net, --private and --promote need a process number",
        ));
    }
    let target = target::find(program, args.timeout)?;
    let began = Instant::now();
    let (pid, name) = (target.pid, target.name.clone());
    let branch = Branch::make(args, target, began)?;
    let report = branch.attend()?;
    finish(args, &report, pid, name.as_deref())
}

fn finish(args: &Args, report: &Report, pid: i32, name: Option<&str>) -> CommandResult {
    if let Some(file) = &args.json {
        let whole = report.to_json(pid, name);
        json::write(&whole, file).map_err(exit::io("write what became of the copies"))?;
    }
    Ok(ExitCode::from(report.worst()))
}

fn release(args: &Args, target: Target) -> CommandResult {
    let pid = target.pid;
    let connection = Connection::new(target);
    connection.send(Request::Release, &[])?;
    match connection.next_within(args.timeout, None)? {
        Some(Reply::Released) => Ok(ExitCode::SUCCESS),
        _ => Err(Failure::new(NO, format!("process {pid} did not say that it goes on"))),
    }
}

fn list() -> ExitCode {
    for target in target::all() {
        let program = fs::read_to_string(format!("/proc/{}/comm", target.pid)).unwrap_or_default();
        let name = target.name.as_deref().unwrap_or("-");
        outln!("{:>8}  {:<32}  {}", target.pid, name, printable(program.trim_end()));
    }
    ExitCode::SUCCESS
}
