//! `cowslip start`: asks for a copy, lends it its streams, and ends as it does.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use cowslip_report::json;
use cowslip_sys::{AsFd, Errno, OwnedFd, process, socket};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::{MOST_MESSAGE_BYTES, StartArgs, VERSION, prefix};
use crate::commands::kept;
use crate::commands::passed_on::PassedOn;
use crate::commands::signals::unless_ignored;
use crate::exit::{self, CommandResult, Failure, USAGE, VANISHED};

pub(super) fn run(args: &StartArgs) -> CommandResult {
    match &args.name {
        Some(name) => start(args, name).map_err(Failure::instead_of_command),
        None => Ok(list()),
    }
}

fn start(args: &StartArgs, name: &str) -> CommandResult {
    let failed = |errno: Errno| exit::system(format!("start {name}"))(errno.into());
    let signals = [SIGINT, SIGQUIT, SIGTERM].into_iter().chain(unless_ignored(SIGHUP));
    let mut signals = PassedOn::listen(signals).map_err(exit::system("listen to signals"))?;
    let advice = "`cowslip start --list` has the names";
    let connection = kept::connect(
        &format!("{}{name}", prefix()),
        &format!("warm program {name}"),
        &[process::effective_uid()],
        advice,
    )?;
    let request = request(args)?;
    let folder = File::open(".").map_err(exit::io("open the working directory"))?;
    let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let files = [input.as_fd(), output.as_fd(), error.as_fd(), folder.as_fd()];
    socket::send(connection.as_fd(), &request, &files).map_err(failed)?;
    let mut result = json!({"schema": "cowslip.start/1", "name": name});
    loop {
        let ready = process::wait_many_readable(&[connection.as_fd(), signals.woken()], None)
            .map_err(failed)?;
        if let Some(signal) = signals.take() {
            if result["pid"].is_null() {
                // The program is not warm yet: there is no copy.
                return Ok(ExitCode::from(exit::from_status(ExitStatus::from_raw(signal))));
            }
            let message = json!({"signal": signal}).to_string();
            // If it is gone, the connection shows that.
            let _ = socket::send(connection.as_fd(), message.as_bytes(), &[]);
        }
        if !ready[0] {
            continue;
        }
        let answer = answer(&connection, name)?;
        if let Some(error) = answer["error"].as_str() {
            return Err(Failure::new(exit::FAILED, error));
        }
        if answer["pid"].is_number() {
            result["pid"] = answer["pid"].clone();
            result["running_ns"] = answer["running_ns"].clone();
        }
        if let Some(status) = answer["status"].as_i64() {
            let status = ExitStatus::from_raw(status as i32);
            result["exit_code"] = json!(status.code());
            result["signal"] = json!(status.signal());
            if let Some(file) = &args.json {
                json::write(&result, file).map_err(exit::io("write the result"))?;
            }
            return Ok(ExitCode::from(exit::from_status(status)));
        }
    }
}

fn request(args: &StartArgs) -> Result<Vec<u8>, Failure> {
    let text = |word: &OsStr| word.to_string_lossy().into_owned();
    let environment: serde_json::Map<String, Value> =
        std::env::vars_os().map(|(name, value)| (text(&name), text(&value).into())).collect();
    // Relative ones are this command's.
    let private: Vec<_> = args
        .private
        .iter()
        .map(std::path::absolute)
        .collect::<Result<_, _>>()
        .map_err(exit::io("find the working directory"))?;
    let request = json!({
        "version": VERSION,
        "net": args.net,
        "private": private.iter().map(|folder| text(folder.as_os_str())).collect::<Vec<_>>(),
        "arguments": args.arguments.iter().map(|word| text(word)).collect::<Vec<_>>(),
        "environment": environment,
        "folder": std::env::current_dir().map_err(exit::io("find the working directory"))?,
    });
    let request = request.to_string().into_bytes();
    if request.len() > MOST_MESSAGE_BYTES {
        let why = format!("arguments and environment of {} bytes are too long", request.len());
        return Err(Failure::new(USAGE, why));
    }
    Ok(request)
}

fn answer(connection: &OwnedFd, name: &str) -> Result<Value, Failure> {
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    let received = socket::receive(connection.as_fd(), &mut buffer);
    let len = received.map_or(0, |(len, _)| len);
    serde_json::from_slice(&buffer[..len]).map_err(|_| {
        Failure::new(VANISHED, format!("{name} is no longer warm, and its copy has ended"))
    })
}

fn list() -> ExitCode {
    kept::names(&prefix()).iter().for_each(|name| outln!("{name}"));
    ExitCode::SUCCESS
}
