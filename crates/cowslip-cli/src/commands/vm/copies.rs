//! Machines made of one instant.

use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use cowslip_process::Loan;
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::{AsFd, AsRawFd, OwnedFd, process};
use serde_json::{Value, json};

use super::disks;
use super::instant::ram_address;
use super::machine::Machine;
use super::qmp::Qmp;
use crate::commands::signals::Signals;
use crate::exit::{self, CommandResult, FAILED, Failure};

/// The longest start of a machine.
const PATIENCE: Duration = Duration::from_secs(30);
const NAP: Duration = Duration::from_millis(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// RAM that machines map privately.
pub(super) fn ram_file(bytes: u64) -> Result<OwnedFd, Failure> {
    let failed = exit::system("make a file in memory for RAM");
    memfile::memfd("cowslip-vm-ram", MemfdKind::Shmem, bytes).map_err(|errno| failed(errno.into()))
}

/// Writes a piece of RAM to its file.
pub(super) fn write_ram(file: &OwnedFd, piece: &[u8], at: u64) -> cowslip::Result<()> {
    if piece.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    memfile::write_at(file.as_fd(), piece, at)
        .map_err(|errno| cowslip::Error::from_errno("write RAM to a file in memory", errno))
}

/// Machines that end with this.
pub(super) struct Copies(Vec<Copy>);

struct Copy {
    child: Child,
    place: PathBuf,
    qmp: Option<Qmp>,
}

impl Copies {
    /// Starts `count` machines in folders of their own in `folder`, which is made. They stand still. Their RAM is a file's, but
    /// for parts of a loan.
    pub(super) fn start(
        machine: &Machine,
        count: u32,
        (ram, loan): (&OwnedFd, Option<&Loan>),
        devices: &[u8],
        folder: &Path,
    ) -> Result<Self, Failure> {
        // Opened by each machine itself.
        let ram = format!("/proc/{}/fd/{}", std::process::id(), ram.as_raw_fd());
        private_folder(folder)?;
        let folder = std::path::absolute(folder).map_err(exit::io("find the folder"))?;
        let mut copies = Self(Vec::new());
        for number in 0..count {
            let place = folder.join(number.to_string());
            private_folder(&place)?;
            disks::overlay(&machine.disks, &machine.folder, &place)?;
            let words = machine.copy(number, &place, Path::new(&ram))?;
            let log =
                File::create_new(place.join("log")).and_then(|log| Ok((log.try_clone()?, log)));
            let (out, log) = log.map_err(exit::io("make a log"))?;
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).current_dir(&machine.folder);
            command.stdin(Stdio::null()).stdout(out).stderr(log);
            // Also if this command is killed.
            process::end_with_this_thread(&mut command);
            let failed = exit::io(format!("start {}", words[0]));
            copies.0.push(Copy { child: command.spawn().map_err(failed)?, place, qmp: None });
        }
        for copy in &mut copies.0 {
            copy.load(devices, loan).map_err(|failure| copy.failed(failure))?;
        }
        Ok(copies)
    }

    /// Lets all of them run.
    pub(super) fn go_on(&mut self) -> Result<(), Failure> {
        for copy in &mut self.0 {
            if let Some(qmp) = &mut copy.qmp {
                qmp.ask("cont", json!({}))?;
            }
            // Another client may use the socket.
            copy.qmp = None;
        }
        Ok(())
    }

    /// Says where they are.
    pub(super) fn print(&self) {
        for (number, copy) in self.0.iter().enumerate() {
            outln!("copy {number}: process {}, {}", copy.child.id(), copy.place.display());
        }
    }

    /// The same for programs.
    pub(super) fn to_json(&self) -> Value {
        let copies = self.0.iter().enumerate();
        copies
            .map(|(number, copy)| {
                json!({"number": number, "pid": copy.child.id(), "folder": copy.place})
            })
            .collect()
    }

    /// Waits for their ends.
    pub(super) fn wait(mut self) -> CommandResult {
        let failed = || exit::io("wait for machines");
        let mut signals = Signals::listen(None).map_err(failed())?;
        let mut code = 0;
        while !self.0.is_empty() && !signals.stops() {
            let mut left = Vec::new();
            for mut copy in std::mem::take(&mut self.0) {
                match copy.child.try_wait().map_err(failed())? {
                    Some(status) => code = code.max(exit::from_status(status)),
                    None => left.push(copy),
                }
            }
            self.0 = left;
            if !self.0.is_empty() {
                signals.wait(BETWEEN_LOOKS).map_err(failed())?;
            }
        }
        Ok(ExitCode::from(code))
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        for copy in &mut self.0 {
            let _ = copy.child.kill();
            let _ = copy.child.wait();
        }
    }
}

impl Copy {
    /// Gives it its RAM, and its devices' state.
    fn load(&mut self, devices: &[u8], loan: Option<&Loan>) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        let late = || Failure::new(FAILED, format!("it has not started in {PATIENCE:?}"));
        let socket = self.place.join("qmp");
        while UnixStream::connect(&socket).is_err() {
            let ended = self.child.try_wait().map_err(exit::io("wait for a machine"))?;
            if let Some(status) = ended {
                return Err(Failure::new(FAILED, format!("it ended at once: {status}")));
            }
            if Instant::now() > deadline {
                return Err(late());
            }
            std::thread::sleep(NAP);
        }
        let mut qmp = Qmp::connect(&socket)?;
        if let Some(loan) = loan {
            loan.map_in(self.child.id() as i32, ram_address(&mut qmp)?)?;
        }
        qmp.ignore_shared(true)?;
        let incoming = self.place.join("devices");
        qmp.ask("migrate-incoming", json!({"uri": format!("unix:{}", incoming.display())}))?;
        let failed = || exit::io("send a machine its devices' state");
        let mut stream = UnixStream::connect(&incoming).map_err(failed())?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed())?;
        stream.write_all(devices).map_err(failed())?;
        drop(stream);
        qmp.wait("query-status", |state| Ok(state["status"] != "inmigrate"))?;
        let _ = fs::remove_file(&incoming);
        self.qmp = Some(qmp);
        Ok(())
    }

    /// The failure, with the end of its log.
    fn failed(&self, failure: Failure) -> Failure {
        let path = self.place.join("log");
        let log = fs::read_to_string(&path).unwrap_or_default();
        let last = log.lines().last().unwrap_or("its log is empty");
        failure.after(format!("start a copy: {last} ({})", path.display()))
    }
}

/// Makes a folder that is the user's alone.
pub(super) fn private_folder(path: &Path) -> Result<(), Failure> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.map_err(exit::io(format!("make the folder {}", path.display())))
}

/// A duration in milliseconds, for people.
pub(super) fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
