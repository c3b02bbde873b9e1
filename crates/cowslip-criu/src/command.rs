//! The `criu` command: run, and its errors told.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use cowslip::{Error, ErrorKind, Result};
use cowslip_sys::Errno;

use crate::memory::Memory;
use crate::session::{Served, serve};

/// The `criu` program.
#[derive(Clone, Debug)]
pub(crate) struct Criu {
    program: PathBuf,
    pub(crate) version: String,
}

impl Criu {
    /// Finds out which version it is.
    pub(crate) fn find(program: &Path) -> Result<Self> {
        let unusable = |why: String| {
            Error::new(ErrorKind::Unsupported, format!("run {}", program.display()))
                .because(why)
                .advise("install CRIU 4.2 or later (criu.org), or name it by --criu")
        };
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|error| unusable(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
        let version = version.ok_or_else(|| unusable("it does not say its version".into()))?;
        Ok(Self { program: program.to_owned(), version: version.trim().to_owned() })
    }

    /// One of its actions, with images in a folder, and a folder for its log and its sockets.
    pub(crate) fn action(&self, action: &str, images: &Path, work: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(action).arg("--images-dir").arg(images).arg("--work-dir").arg(work);
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs an action to its end. Its log, and its output before there is a log, go to files of its folder `work`.
    pub(crate) fn run(&self, command: &mut Command, work: &Path) -> Result<()> {
        const LOG: &str = "action.log";
        const SAID_BEFORE: &str = "action.err";
        command.args(["--log-file", LOG]);
        let action = command.get_args().next().unwrap_or(OsStr::new("")).to_owned();
        let operation = format!("run criu {}", action.display());
        let failed = |error| Error::from_io(&operation, &error);
        // No pipe: the process that is restored may have it for as long as it lives.
        let said = File::create(work.join(SAID_BEFORE)).map_err(failed)?;
        command.stdout(said.try_clone().map_err(failed)?).stderr(said);
        let status = command.status().map_err(failed)?;
        let [text, before] = [LOG, SAID_BEFORE].map(|name| {
            let text = fs::read(work.join(name)).unwrap_or_default();
            // It would be kept with the images.
            let _ = fs::remove_file(work.join(name));
            String::from_utf8_lossy(&text).into_owned()
        });
        if status.success() { Ok(()) } else { Err(failure(operation, &text, &before, status)) }
    }
}

/// The error of an action that failed, with the first lines by which CRIU explains it.
pub(crate) fn failure(operation: String, log: &str, before: &str, status: ExitStatus) -> Error {
    const MOST_LINES: usize = 4;
    const NO_ROOM: &str = "No space left on device";
    const PASSCRED: &str = "Can't get 1:16 opt";
    if before.contains("CAP_CHECKPOINT_RESTORE") {
        return Error::new(ErrorKind::Denied, operation)
            .because("CRIU has neither CAP_SYS_ADMIN nor CAP_CHECKPOINT_RESTORE")
            .advise("run it as root");
    }
    if let Some(signal) = status.signal() {
        let why = format!("it was ended by signal {signal}");
        return Error::new(ErrorKind::Busy, operation).because(why);
    }
    if log.contains(NO_ROOM) {
        return Error::from_io(operation, &Errno::NOSPC.into());
    }
    let errors = log.lines().filter_map(|line| line.split_once("Error ")).map(|(_, text)| text);
    let told: Vec<_> = errors.chain(before.lines()).take(MOST_LINES).collect();
    let because = if told.is_empty() { status.to_string() } else { told.join("; ") };
    let error = Error::new(ErrorKind::Unsupported, operation).because(because);
    if log.contains(PASSCRED) {
        return error.advise("this kernel needs CRIU 4.2 or later for programs with sockets");
    }
    error
}

/// Runs `criu lazy-pages` with its options, and serves it over its standard input until it ends. `meanwhile` gets the
/// running command.
///
/// # Errors
/// The start's.
pub fn run_served<T>(
    memory: &Memory,
    command: &mut Command,
    tell: &(dyn Fn(&str) + Sync),
    meanwhile: impl FnOnce(&mut Child) -> T,
) -> io::Result<(T, ExitStatus, Served)> {
    let (mut ours, theirs) = UnixStream::pair()?;
    command.args(["--page-server", "--ps-socket", "0"]);
    let mut child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
    // The command holds the other end too, which would never close.
    command.stdin(Stdio::null());
    thread::scope(|scope| {
        let session = scope.spawn(move || {
            serve(memory, &mut ours, tell).unwrap_or_else(|error| {
                tell(&format!("the session ended: {error}"));
                Served::default()
            })
        });
        let answer = meanwhile(&mut child);
        let status = child.wait()?;
        Ok((answer, status, session.join().unwrap_or_default()))
    })
}
