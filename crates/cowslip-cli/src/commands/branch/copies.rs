//! The copies: this command requests them, hears of them, and ends them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use cowslip::raw::branch::{Reply, Request, TEXT_BYTES, VERSION};
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd, process, socket};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::args::Args;
use super::streams::Streams;
use super::target::Target;
use crate::commands::passed_on::PassedOn;
use crate::commands::signals::unless_ignored;
use crate::exit::{self, FAILED, Failure, NO, NOT_THE_COMMAND, USAGE, VANISHED};

/// A connection to the program, then to the supervisor of its copies.
pub(super) struct Connection {
    pid: i32,
    socket: OwnedFd,
}

impl Connection {
    pub(super) fn new(target: Target) -> Self {
        Self { pid: target.pid, socket: target.connection }
    }

    fn lost(&self) -> Failure {
        Failure::new(VANISHED, format!("process {} ended before it was branched", self.pid))
    }

    pub(super) fn send(
        &self,
        request: Request<'_>,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), Failure> {
        match socket::send(self.socket.as_fd(), &request.to_bytes(), files) {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(self.lost()),
            Err(errno) => Err(exit::system(format!("ask process {}", self.pid))(errno.into())),
        }
    }

    /// Returns `None` if the other side is gone.
    fn next(&self) -> Result<Option<Reply>, Failure> {
        let mut buffer = [0; 64];
        let received = match socket::receive(self.socket.as_fd(), &mut buffer) {
            // Reported once, before earlier messages: the other side went without reading all that it was sent.
            Err(Errno::CONNRESET) => socket::receive(self.socket.as_fd(), &mut buffer),
            received => received,
        };
        match received {
            Ok((0, _)) => Ok(None),
            Ok((length, _)) => Reply::parse(&buffer[..length]).map(Some).ok_or_else(|| {
                let why = "the preload library that it runs with is of another version of Cowslip";
                Failure::new(NO, format!("process {}: {why}", self.pid))
            }),
            Err(errno) => {
                Err(exit::system(format!("hear from process {}", self.pid))(errno.into()))
            }
        }
    }

    /// The first reply; waits for a program that is not at its branch point.
    pub(super) fn next_within(
        &self,
        timeout: Duration,
        signals: Option<&mut PassedOn>,
    ) -> Result<Option<Reply>, Failure> {
        let mut fds = vec![self.socket.as_fd()];
        fds.extend(signals.as_ref().map(|signals| signals.woken()));
        let mut ready = vec![false; fds.len()];
        let waited = process::wait_readable(&fds, &mut ready, Some(timeout));
        waited.map_err(|errno| exit::system("wait for a reply")(errno.into()))?;
        if ready[0] {
            return self.next();
        }
        if let Some(signal) = signals.and_then(PassedOn::take) {
            let why = format!("ended by signal {signal} before process {} was branched", self.pid);
            return Err(Failure::new(NOT_THE_COMMAND, why));
        }
        let why = "is not at its branch point: it did not come there within";
        let seconds = timeout.as_secs_f64();
        Err(Failure::new(NO, format!("process {} {why} {seconds} s; see --timeout", self.pid)))
    }
}

/// The result of a copy.
pub(super) struct Copy {
    pub(super) pid: Option<i32>,
    pub(super) argument: Option<String>,
    pub(super) status: Option<ExitStatus>,
}

/// Copies that are running, or about to run.
pub(super) struct Branch {
    connection: Connection,
    signals: PassedOn,
    copies: Vec<Copy>,
    began: Instant,
}

impl Branch {
    /// Has the program make the copies.
    pub(super) fn make(args: &Args, target: Target, began: Instant) -> Result<Self, Failure> {
        let count = args.copies * args.arguments.len().max(1) as u32;
        let arguments: Vec<Option<&OsStr>> = (0..count as usize)
            .map(|copy| {
                args.arguments.get(copy / args.copies as usize).map(|argument| argument.as_os_str())
            })
            .collect();
        let mut streams = Streams::new(args, count);
        let connection = Connection::new(target);
        connection.send(Request::Branch { version: VERSION, copies: count }, &[])?;
        let signals = [SIGINT, SIGQUIT, SIGTERM].into_iter().chain(unless_ignored(SIGHUP));
        let mut signals = PassedOn::listen(signals).map_err(exit::system("listen to signals"))?;
        match connection.next_within(args.timeout, Some(&mut signals))? {
            Some(Reply::Ready) => {}
            Some(Reply::Failed { errno, started }) => return Err(not_made(errno, started)),
            _ => return Err(connection.lost()),
        }
        for variable in &args.env {
            short_enough("a variable", variable.len())?;
            connection.send(Request::Variable(variable.as_bytes()), &[])?;
        }
        for (copy, argument) in arguments.iter().enumerate() {
            short_enough("an argument", argument.map_or(0, |text| text.len()))?;
            let files = streams.of_copy(copy as u32)?;
            let asked = Request::Copy(argument.map(|text| text.as_bytes()));
            // A supervisor that is gone has sent the reason.
            let _ = connection.send(asked, &files.each_ref().map(|file| file.as_fd()));
        }
        let argument =
            |argument: &Option<&OsStr>| argument.map(|text| text.to_string_lossy().into_owned());
        let copy = |word| Copy { pid: None, argument: argument(word), status: None };
        Ok(Self { connection, signals, copies: arguments.iter().map(copy).collect(), began })
    }

    /// Waits for the copies to end. The first signal goes to them; the second ends them, and this command.
    pub(super) fn attend(mut self) -> Result<Report, Failure> {
        let mut all_running = None;
        let mut passed_on = None;
        while self.copies.iter().any(|copy| copy.status.is_none()) {
            let mut ready = [false; 2];
            let both = [self.connection.socket.as_fd(), self.signals.woken()];
            process::wait_readable(&both, &mut ready, None)
                .map_err(|errno| exit::system("wait for the copies")(errno.into()))?;
            if let Some(signal) = self.signals.take() {
                if passed_on.replace(signal).is_some() {
                    // Closing the connection ends them.
                    break;
                }
                // If no supervisor receives it, the connection shows that.
                let _ = self.connection.send(Request::Signal(signal), &[]);
            }
            if !ready[0] {
                continue;
            }
            match self.connection.next()? {
                Some(Reply::Running { copy, pid }) => {
                    if let Some(copy) = self.copy(copy) {
                        copy.pid = Some(pid);
                    }
                    if self.copies.iter().all(|copy| copy.pid.is_some()) {
                        all_running = all_running.or(Some(self.began.elapsed()));
                    }
                }
                Some(Reply::Ended { copy, status }) => {
                    if let Some(copy) = self.copy(copy) {
                        copy.status = Some(ExitStatus::from_raw(status));
                    }
                }
                Some(Reply::Failed { errno, started }) => return Err(not_made(errno, started)),
                Some(Reply::Ready | Reply::Released) => {}
                None => {
                    let why =
                        "the process that answers for the copies was killed, and they with it";
                    return Err(Failure::new(VANISHED, why));
                }
            }
        }
        let is_over = self.copies.iter().all(|copy| copy.status.is_some());
        Ok(Report {
            copies: self.copies,
            all_running,
            ended_by: passed_on.filter(|_| !is_over),
            pause: None,
        })
    }

    fn copy(&mut self, number: u32) -> Option<&mut Copy> {
        self.copies.get_mut(number as usize)
    }
}

fn short_enough(what: &str, length: usize) -> Result<(), Failure> {
    if length < TEXT_BYTES {
        return Ok(());
    }
    Err(Failure::new(
        USAGE,
        format!("{what} of {length} bytes is too long: {TEXT_BYTES} are the limit"),
    ))
}

fn not_made(errno: i32, started: u32) -> Failure {
    let errno = Errno::from_raw_os_error(errno);
    let why = match errno {
        Errno::PROTO => {
            "the preload library that it runs with is of another version of Cowslip".to_owned()
        }
        Errno::AGAIN => {
            "too many processes (`ulimit -u`, or the limit of its control group)".to_owned()
        }
        errno => std::io::Error::from(errno).to_string(),
    };
    let rest =
        if started > 0 { format!("; {started} were made, and are ended") } else { String::new() };
    Failure::new(FAILED, format!("the copies could not be made: {why}{rest}"))
}

/// The results of all copies.
pub(super) struct Report {
    pub(super) copies: Vec<Copy>,
    /// From the request until the last of them ran.
    pub(super) all_running: Option<Duration>,
    /// The signal after which this command stopped waiting.
    pub(super) ended_by: Option<i32>,
    /// The time for which the program stood still, where that is known.
    pub(super) pause: Option<Duration>,
}

impl Report {
    /// The highest exit code.
    pub(super) fn worst(&self) -> u8 {
        let unseen = self.ended_by.map(ExitStatus::from_raw);
        let codes =
            self.copies.iter().filter_map(|copy| copy.status).chain(unseen).map(exit::from_status);
        codes.max().unwrap_or(NOT_THE_COMMAND)
    }

    pub(super) fn to_json(&self, pid: i32, name: Option<&str>) -> Value {
        let copy = |(index, copy): (usize, &Copy)| {
            let status = copy.status;
            json!({
                "copy": index,
                "pid": copy.pid,
                "argument": copy.argument,
                "exit_code": status.and_then(|status| status.code()),
                "signal": status.and_then(|status| status.signal()),
            })
        };
        let copies: Vec<Value> = self.copies.iter().enumerate().map(copy).collect();
        json!({
            "schema": "cowslip.branch/1",
            "pid": pid,
            "name": name,
            "all_running_ns": self.all_running.map(|time| time.as_nanos() as u64),
            "pause_ns": self.pause.map(|time| time.as_nanos() as u64),
            "copies": copies,
        })
    }
}
