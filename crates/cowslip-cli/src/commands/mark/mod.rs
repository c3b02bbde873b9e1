//! `cowslip mark` and `cowslip rollback`: a running program, taken back in place to an instant.
//!
//! ```text
//!  cowslip mark PID ──starts──▶ keeper ──holds──▶ holder: the memory, the registers
//!  cowslip rollback PID ──────▶   │ takes the program back, any number of times
//!  cowslip mark PID --drop ───▶   └ ends, as it does when the program ends
//! ```

mod keeper;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use cowslip_report::json;
use cowslip_sys::{AsFd, OwnedFd, process, socket};
use serde_json::Value;

use super::kept;
use super::numbers::whole;
use super::promote::before_hold;
use crate::exit::{self, CommandResult, FAILED, Failure, VANISHED};

const EXAMPLES: &str = "Examples:
  cowslip mark 4711         # this instant
  cowslip rollback 4711     # memory, threads and offsets are those of the instant again; repeatable
  cowslip rollback 4711 --force
  cowslip mark 4711 --drop

The program runs on after each. It need not know Cowslip, and runs without it. Content of files, pipes and connections \
is not taken back. A rollback is refused if threads, mappings of files or descriptors of the instant are gone. With --force, \
threads that have ended are started again.";

/// Mark an instant of a running program, to which `cowslip rollback` takes it back
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The process
    #[arg(value_parser = whole(1..=i32::MAX), required_unless_present = "list")]
    pid: Option<i32>,
    /// Make its memory huge first (`cowslip promote --once`): it stands still for less time then
    #[arg(long)]
    promote: bool,
    /// Forget its mark
    #[arg(long, conflicts_with = "promote")]
    drop: bool,
    /// List the marked processes
    #[arg(long, exclusive = true)]
    list: bool,
    /// Write the result as JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[arg(long, hide = true)]
    keep: bool,
}

/// Take a running program back to the instant of its mark
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RollbackArgs {
    /// The process
    #[arg(value_parser = whole(1..=i32::MAX))]
    pid: i32,
    /// Start threads again that have ended: the program needs root, or CAP_CHECKPOINT_RESTORE
    #[arg(long)]
    force: bool,
    /// Write the result as JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The beginning of the abstract name at which a keeper listens (`unix(7)`).
const NAME: &str = "cowslip-mark-";

fn name(pid: i32) -> String {
    format!("{NAME}{pid}")
}

const ROLL_BACK: &[u8] = b"roll back";
const ROLL_BACK_BY_FORCE: &[u8] = b"roll back by force";
const DROP: &[u8] = b"drop";

pub(super) fn run(args: &Args) -> CommandResult {
    let Some(pid) = args.pid else { return Ok(list()) };
    if args.keep {
        return keeper::run(pid);
    }
    if args.promote {
        before_hold(pid);
    }
    let answer = match args.drop {
        true => ask(pid, DROP)?,
        false => start_keeper(pid)?,
    };
    tell(args.json.as_deref(), &answer, || {
        let threads = &answer["threads"];
        match args.drop {
            true => format!("process {pid} is no longer marked"),
            false => {
                format!("marked {pid}: {threads} threads; it stood still for {}", pause(&answer))
            }
        }
    })
}

pub(super) fn roll_back(args: &RollbackArgs) -> CommandResult {
    let pid = args.pid;
    let answer = ask(pid, if args.force { ROLL_BACK_BY_FORCE } else { ROLL_BACK })?;
    tell(args.json.as_deref(), &answer, || {
        let mib = answer["bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 20);
        format!("rolled back {pid}: {mib:.1} MiB; it stood still for {}", pause(&answer))
    })
}

fn pause(answer: &Value) -> String {
    format!("{:.1} ms", answer["pause_ns"].as_f64().unwrap_or(0.0) / 1e6)
}

fn tell(file: Option<&Path>, answer: &Value, text: impl FnOnce() -> String) -> CommandResult {
    match file {
        Some(file) => json::write(answer, file).map_err(exit::io("write the result"))?,
        None => outln!("{}", text()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the process that keeps the mark, and waits until it has it.
fn start_keeper(pid: i32) -> Result<Value, Failure> {
    let failed = || exit::system("start the process that keeps the mark");
    let (ours, theirs) = UnixStream::pair().map_err(failed())?;
    let program = std::env::current_exe().map_err(failed())?;
    let mut command = Command::new(program);
    command.args(["mark", &pid.to_string(), "--keep"]).stdin(OwnedFd::from(theirs));
    // It outlives this command: Ctrl-C is not for it, and its streams stay open for no reader.
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed())?;
    drop(command);
    let mut line = String::new();
    BufReader::new(ours).read_line(&mut line).map_err(failed())?;
    let Ok(answer) = serde_json::from_str::<Value>(&line) else {
        let status = child.wait().map_err(failed())?;
        return Err(Failure::new(
            FAILED,
            format!("the process that keeps the mark ended: {status}"),
        ));
    };
    checked(answer)
}

/// Sends a request to the keeper of a mark.
fn ask(pid: i32, request: &[u8]) -> Result<Value, Failure> {
    let failed = || exit::system(format!("ask for the mark of process {pid}"));
    let owner = fs::metadata(format!("/proc/{pid}")).map_or(0, |process| process.uid());
    let may_keep = [0, process::effective_uid(), owner];
    let advice = format!("`cowslip mark {pid}` makes one");
    let connection =
        kept::connect(&name(pid), &format!("mark of process {pid}"), &may_keep, &advice)?;
    let sent = socket::send(connection.as_fd(), request, &[]);
    sent.map_err(|errno| failed()(errno.into()))?;
    let mut buffer = vec![0; keeper::MOST_ANSWER_BYTES];
    let (len, _) =
        socket::receive(connection.as_fd(), &mut buffer).map_err(|errno| failed()(errno.into()))?;
    match serde_json::from_slice(&buffer[..len]) {
        Ok(answer) => checked(answer),
        Err(_) => Err(Failure::new(VANISHED, format!("the mark of process {pid} is gone"))),
    }
}

/// An answer that is no error.
fn checked(answer: Value) -> Result<Value, Failure> {
    match (answer["error"].as_str(), answer["code"].as_u64()) {
        (Some(error), code) => {
            let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED);
            Err(Failure::new(code, error))
        }
        _ => Ok(answer),
    }
}

fn list() -> ExitCode {
    kept::names(NAME).iter().for_each(|pid| outln!("{pid}"));
    ExitCode::SUCCESS
}
