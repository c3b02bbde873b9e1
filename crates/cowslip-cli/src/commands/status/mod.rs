//! `cowslip status`: the arenas of a running program, or of all programs.

mod arena;
mod args;
mod every;
mod one;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use cowslip_report::{json, sink};
use serde_json::{Value, json};

use crate::exit::{self, CommandResult, DENIED, Failure, NO, UNSUPPORTED, VANISHED};
use arena::{Arena, Arenas};
pub(super) use args::Args;
use args::Which;

/// Moves to the top left of a terminal, and clears it.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(super) fn run(args: Args) -> CommandResult {
    loop {
        let lines = match &args.which {
            Some(Which::Pid(pid)) => of_program(*pid, &args)?,
            Some(Which::Name(name)) => of_name(name, &args)?,
            None => of_all(every::look(), &args)?,
        };
        if !lines.is_empty() {
            let clear = if args.watch.is_some() && io::stdout().is_terminal() { CLEAR } else { "" };
            let text = format!("{clear}{}\n", lines.join("\n"));
            sink::print(&text).map_err(exit::io("print the status"))?;
        }
        match args.watch {
            Some(seconds) => std::thread::sleep(Duration::from_secs(seconds)),
            None => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// The arenas of a program, which has some.
fn arenas(pid: i32) -> Result<Vec<Arena>, Failure> {
    let Arenas { known: arenas, has_others } =
        Arenas::read(pid).map_err(|error| explain(pid, error))?;
    if arenas.is_empty() && has_others {
        return Err(Failure::new(
            UNSUPPORTED,
            format!(
                "process {pid} runs with another version of Cowslip, whose counters this one does not know: restart \
                 it, or ask with the `cowslip` that it was started with"
            ),
        ));
    }
    if arenas.is_empty() {
        return Err(Failure::new(
            NO,
            format!(
                "process {pid} has no arena: it was not started with `cowslip run`, was left alone by it (its log \
                 says why), or needs no more memory than a fork copies at once (4 MiB)"
            ),
        ));
    }
    Ok(arenas)
}

/// The reason why a program has no status.
pub(super) fn refusal(pid: i32) -> Option<String> {
    arenas(pid).err().map(|failure| failure.to_string())
}

fn of_program(pid: i32, args: &Args) -> Result<Vec<String>, Failure> {
    let arenas = arenas(pid)?;
    if let Some(file) = &args.json {
        let arenas: Vec<Value> = arenas.iter().map(one::to_json).collect();
        let whole = json!({"schema": "cowslip.status/1", "pid": pid, "arenas": arenas});
        json::write(&whole, file).map_err(exit::io("write what is there"))?;
        return Ok(Vec::new());
    }
    Ok(arenas.iter().flat_map(one::lines).collect())
}

/// The one program of a name, or a line for each.
fn of_name(name: &str, args: &Args) -> Result<Vec<String>, Failure> {
    let programs = every::look().map_err(exit::system("look for programs in /proc"))?;
    let programs: Vec<_> = programs.into_iter().filter(|program| program.is_called(name)).collect();
    match programs.as_slice() {
        [] => Err(Failure::new(
            NO,
            format!("no program named {name} has an arena; `cowslip status` lists those that have"),
        )),
        [program] if args.json.is_none() => of_program(program.pid, args),
        _ => of_all(Ok(programs), args),
    }
}

fn of_all(programs: io::Result<Vec<every::Program>>, args: &Args) -> Result<Vec<String>, Failure> {
    let programs = programs.map_err(exit::system("look for programs in /proc"))?;
    if let Some(file) = &args.json {
        let of = |program: &every::Program| {
            let arenas: Vec<Value> = program.arenas.known.iter().map(one::to_json).collect();
            let others = program.arenas.has_others;
            json!({"pid": program.pid, "arenas": arenas, "of_another_version": others})
        };
        let all: Vec<Value> = programs.iter().map(of).collect();
        let whole = json!({"schema": "cowslip.status/1", "programs": all});
        json::write(&whole, file).map_err(exit::io("write what is there"))?;
        return Ok(Vec::new());
    }
    Ok(every::lines(&programs))
}

fn explain(pid: i32, error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(VANISHED, format!("there is no process {pid}")),
        io::ErrorKind::PermissionDenied => Failure::new(
            DENIED,
            format!("may not look into process {pid}: run as its user or as root"),
        ),
        _ if error.raw_os_error() == Some(3) => {
            Failure::new(VANISHED, format!("process {pid} ended meanwhile"))
        }
        _ => exit::system(format_args!("look into process {pid}"))(error),
    }
}
