//! `cowslip attach`: what each command can do with a running process.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use cowslip_process::{Fate, Lack, Plan, look};
use cowslip_promote::Target;
use cowslip_report::text::{align, printable};
use cowslip_report::{json, sink};
use cowslip_sys::capabilities::{self, CapabilitySet, SETCAP};
use cowslip_sys::error::{Error, ErrorKind};
use cowslip_trace::record::{PermissionStatus, permission_for};
use serde_json::json;

use super::numbers::whole;
use super::{branch, checkpoint, status};
use crate::exit::{self, CommandResult, NO};

const EXAMPLES: &str = "Examples:
  cowslip attach 4711
  cowslip attach 4711 --json | jq -r '.commands[] | select(.works) | .command'

The process is looked at, and not touched. Exit code 1: no command can do anything with it.";

/// Say what each command can do with a running process, and what a copy of it would lack
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The process
    #[arg(value_parser = whole(1..=i32::MAX))]
    pid: i32,
    /// The criu program, for checkpoints
    #[arg(long, value_name = "PROGRAM", default_value = "criu")]
    criu: PathBuf,
    /// Write the table as JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A command, and the reason why it can do nothing.
struct Row {
    command: &'static str,
    refused: Option<String>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let target = Target::open(args.pid, 1);
    if let Err(error) = &target
        && error.kind() == ErrorKind::Vanished
    {
        return Err(target.expect_err("it is one").into());
    }
    let name = std::fs::read_to_string(format!("/proc/{}/comm", args.pid)).unwrap_or_default();
    let name = printable(name.trim_end());
    let is_ours = branch::is_under_cowslip(args.pid);
    let plan = look(args.pid);
    let lacks = plan.as_ref().map_or(&[][..], |plan| plan.lacks());
    let copied = match &plan {
        Err(error) => Some(error.to_string()),
        Ok(_) => lacks.iter().find(|lack| lack.is_fatal()).map(Lack::to_string),
    };
    let branched = match is_ours {
        // By --running.
        true => branch::refusal(args.pid).and(copied.clone()),
        false => copied.clone(),
    };
    let row = |command, refused| Row { command, refused };
    let rows = [
        row("status", status::refusal(args.pid)),
        row("trace --pid", traced(args.pid)),
        row("promote --pid", promoted(target.map(drop))),
        row("branch", branched),
        row("mark, rollback", copied.clone()),
        row("checkpoint", copied.or_else(|| hidden(&plan)).or_else(|| checkpointed(args))),
    ];
    if let Some(file) = &args.json {
        let of_row = |row: &Row| json!({"command": row.command, "works": row.refused.is_none(), "why": row.refused});
        let table = json!({
            "schema": "cowslip.attach/1",
            "pid": args.pid,
            "name": name,
            "is_under_cowslip": is_ours,
            "commands": rows.iter().map(of_row).collect::<Vec<_>>(),
            "lacks": lacks.iter().map(checkpoint::to_json).collect::<Vec<_>>(),
        });
        json::write(&table, file).map_err(exit::io("write the table"))?;
    } else {
        sink::print(&text(args.pid, &name, &rows, lacks)).map_err(exit::io("print the table"))?;
    }
    let is_any = rows.iter().any(|row| row.refused.is_none());
    Ok(ExitCode::from(if is_any { 0 } else { NO }))
}

/// The reason for which a program that can be copied cannot be written.
fn hidden(plan: &Result<Plan, Error>) -> Option<String> {
    let hides_files = plan.as_ref().is_ok_and(Plan::hides_files);
    hides_files.then(|| "it is under cowslip run without --backing base".to_owned())
}

fn text(pid: i32, name: &str, rows: &[Row], lacks: &[Lack]) -> String {
    let words = |row: &Row| {
        let answer = if row.refused.is_none() { "works" } else { "does not" };
        [row.command, answer, row.refused.as_deref().unwrap_or_default()].map(str::to_owned).into()
    };
    let lines = |rows: Vec<Vec<String>>| -> String {
        align(&rows).iter().map(|line| line.trim_end().to_owned() + "\n").collect()
    };
    let mut text = format!("{name} ({pid})\n{}", lines(rows.iter().map(words).collect()));
    if !lacks.is_empty() {
        let of_lack = |lack: &Lack| {
            let kind = match lack.thing.fate {
                Fate::Refused => "refused",
                Fate::Lacking => "lacking",
                Fate::LackingInCheckpoint => "checkpoint",
            };
            vec![kind.to_owned(), lack.to_string()]
        };
        text += &format!(
            "a copy is not as the process:\n{}",
            lines(lacks.iter().map(of_lack).collect())
        );
    }
    text
}

fn traced(pid: i32) -> Option<String> {
    match permission_for(pid) {
        PermissionStatus::Available => None,
        PermissionStatus::Denied { fix } => {
            Some(format!("not permitted{}", fix.map_or(String::new(), |fix| format!(": {fix}"))))
        }
        PermissionStatus::Unsupported => {
            Some("this kernel has no events of page faults".to_owned())
        }
        PermissionStatus::Unknown { errno } => Some(format!("error {errno}")),
    }
}

fn promoted(opened: Result<(), Error>) -> Option<String> {
    let may = capabilities::effective().is_ok_and(|set| set.contains(CapabilitySet::SYS_NICE));
    match opened {
        Err(error) => Some(error.to_string()),
        Ok(()) => (!may).then(|| format!("CAP_SYS_NICE is missing: {SETCAP}")),
    }
}

fn checkpointed(args: &Args) -> Option<String> {
    let started = Command::new(&args.criu).arg("--version").output();
    let criu = args.criu.display();
    started.err().map(|error| format!("{criu}: {error}; apt-get install criu"))
}
