//! A client of QMP, QEMU's line protocol.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::exit::{FAILED, Failure, VANISHED};

/// The longest silence of a machine that is asked.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
/// Between questions about something that takes milliseconds.
const NAP: Duration = Duration::from_micros(200);
/// No answer is longer.
const MOST_BYTES: usize = 16 << 20;

/// A connection to the monitor of a machine.
#[derive(Debug)]
pub(super) struct Qmp {
    lines: BufReader<UnixStream>,
    asked: u64,
}

fn silent(error: std::io::Error) -> Failure {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Failure::new(VANISHED, format!("the machine's QMP has been silent for {SILENCE:?}"))
        }
        _ => Failure::new(VANISHED, format!("the machine's QMP: {error}")),
    }
}

impl Qmp {
    /// Connects to the socket of a machine.
    pub(super) fn connect(socket: &Path) -> Result<Self, Failure> {
        let connected = UnixStream::connect(socket);
        let stream = connected.map_err(|error| {
            let why = format!("connect to the QMP of a machine at {}: {error}", socket.display());
            Failure::new(VANISHED, why)
        })?;
        let mut qmp = Self::on(stream)?;
        let greeting = qmp.line()?;
        if greeting.get("QMP").is_none() {
            let why = format!("{} is no QMP: it says {greeting}", socket.display());
            return Err(Failure::new(VANISHED, why));
        }
        qmp.ask("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// A connection that is negotiated already.
    pub(super) fn on(stream: UnixStream) -> Result<Self, Failure> {
        stream.set_read_timeout(Some(SILENCE)).map_err(silent)?;
        stream.set_write_timeout(Some(SILENCE)).map_err(silent)?;
        // Numbers of answers to other processes on this connection are smaller.
        let asked = u64::from(std::process::id()) << 32;
        Ok(Self { lines: BufReader::new(stream), asked })
    }

    pub(super) fn stream(&self) -> &UnixStream {
        self.lines.get_ref()
    }

    fn line(&mut self) -> Result<Value, Failure> {
        let deadline = Instant::now() + SILENCE;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') && line.len() < MOST_BYTES {
            if Instant::now() > deadline {
                return Err(silent(ErrorKind::TimedOut.into()));
            }
            let part = match self.lines.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                part => part.map_err(silent)?,
            };
            if part.is_empty() {
                break;
            }
            let end = part.iter().position(|byte| *byte == b'\n').map_or(part.len(), |at| at + 1);
            line.extend_from_slice(&part[..end]);
            self.lines.consume(end);
        }
        if line.is_empty() {
            return Err(Failure::new(VANISHED, "the machine has ended, or closed its QMP"));
        }
        serde_json::from_slice(&line)
            .map_err(|error| Failure::new(FAILED, format!("the machine's QMP: {error}")))
    }

    /// Runs a command, and returns its answer.
    pub(super) fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, Failure> {
        self.asked += 1;
        let asked = json!({"execute": command, "arguments": arguments, "id": self.asked});
        self.stream().write_all(format!("{asked}\n").as_bytes()).map_err(silent)?;
        let deadline = Instant::now() + SILENCE;
        loop {
            // Events come between, and answers to a process that has ended.
            let mut answer = self.line()?;
            if answer.get("id") != Some(&self.asked.into()) {
                if Instant::now() > deadline {
                    return Err(silent(ErrorKind::TimedOut.into()));
                }
                continue;
            }
            if let Some(error) = answer.get("error") {
                let why = error["desc"].as_str().unwrap_or("no reason");
                return Err(Failure::new(FAILED, format!("the machine refuses {command}: {why}")));
            }
            return Ok(answer["return"].take());
        }
    }

    /// Asks again and again, until `done` says so of the answer.
    pub(super) fn wait(
        &mut self,
        command: &str,
        mut done: impl FnMut(&Value) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + SILENCE;
        while !done(&self.ask(command, json!({}))?)? {
            if Instant::now() > deadline {
                let why = format!("the machine has not carried out {command} within {SILENCE:?}");
                return Err(Failure::new(FAILED, why));
            }
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    pub(super) fn is_running(&mut self) -> Result<bool, Failure> {
        Ok(self.ask("query-status", json!({}))?["running"] == true)
    }

    /// Leaves shared memory out of migrations, or no longer. Returns the former setting.
    pub(super) fn ignore_shared(&mut self, wanted: bool) -> Result<bool, Failure> {
        const NAME: &str = "x-ignore-shared";
        let all = self.ask("query-migrate-capabilities", json!({}))?;
        let mut all = all.as_array().into_iter().flatten();
        let before = all.any(|one| one["capability"] == NAME && one["state"] == true);
        if before != wanted {
            let one = json!({"capability": NAME, "state": wanted});
            self.ask("migrate-set-capabilities", json!({"capabilities": [one]}))?;
        }
        Ok(before)
    }
}
