//! The instant of a machine that goes on.
//!
//! ```text
//!  stop ─▶ migrate: the devices' state, without RAM ─▶ hold the process: its RAM, frozen ─▶ cont
//!          └────────────── a guard lets the machine go on if this command is killed ─────────┘
//! ```

use std::fs::{self, DirBuilder, Permissions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cowslip_process::{Holder, Loan, Plan, look};
use cowslip_sys::units::VirtRange;
use cowslip_sys::{AsFd, packets};
use serde_json::{Value, json};

use super::copies::private_folder;
use super::disks::{self, Disk};
use super::guard::{self, Guard};
use super::machine::{Machine, words};
use super::qmp::Qmp;
use super::ram::Ram;
use crate::exit::{self, FAILED, Failure, UNSUPPORTED, USAGE, VANISHED};

/// The longest wait for the devices' state.
const SILENCE: Duration = Duration::from_secs(10);
const NAP: Duration = Duration::from_micros(200);
/// Devices have less state.
pub(super) const MOST_BYTES: u64 = 1 << 30;

/// A machine at one instant.
pub(super) struct Taken {
    pub(super) machine: Machine,
    pub(super) devices: Vec<u8>,
    pub(super) ram: Ram,
    /// The time for which the machine was stopped.
    pub(super) pause: Duration,
    /// Keeps the RAM.
    holder: Holder,
    range: VirtRange,
}

impl Taken {
    /// Takes the instant of the machine with its QMP at `socket`. Disks that it writes to get overlays in `overlays`,
    /// which is made; without it the machine is refused.
    pub(super) fn take(socket: &Path, overlays: Option<&Path>) -> Result<Self, Failure> {
        let mut qmp = Qmp::connect(socket)?;
        let peer = packets::peer(qmp.stream().as_fd())
            .map_err(|errno| exit::system("look for the process of a machine")(errno.into()))?;
        let plan = look(peer.pid)?.memory_alone();
        if !plan.has_library() {
            let why = format!("process {} is not under cowslip run", peer.pid);
            let fix = "start QEMU by cowslip run --guest-memory, with memory-backend-memfd";
            return Err(Failure::new(UNSUPPORTED, format!("{why}: {fix}")));
        }
        let mut machine = describe(&mut qmp, peer.pid)?;
        machine.disks = disks::written(&qmp.ask("query-block", json!({}))?)?;
        let overlays = match overlays {
            Some(folder) => {
                disks::check(&machine.disks, &machine.arguments, &machine.folder)?;
                let folder = std::path::absolute(folder).map_err(exit::io("find the folder"))?;
                if folder.to_str().is_none() {
                    let why = "the folder of --disks must have a name in UTF-8";
                    return Err(Failure::new(USAGE, why));
                }
                private_folder(&folder)?;
                folder
            }
            None => {
                disks::refuse(&machine.disks, "see cowslip vm branch --disks")?;
                PathBuf::new()
            }
        };
        let range = VirtRange::new(ram_address(&mut qmp)?, machine.ram_bytes as usize);

        let door = Door::open(peer.pid)?;
        let was_paused = !qmp.is_running()?;
        let guard = Guard::start(&qmp, &door.folder, was_paused)?;
        let before = qmp.ignore_shared(true)?;
        let began = Instant::now();
        let taken = freeze(&mut qmp, plan, &door, (&machine.disks, &overlays));
        let resumed = guard::go_on(&mut qmp, was_paused);
        let pause = began.elapsed();
        // Another migration of the machine would be without its RAM.
        let resumed = resumed.and_then(|()| qmp.ignore_shared(before));
        match &resumed {
            Ok(_) => guard.done(),
            Err(_) => drop(guard),
        }
        let (devices, holder) = taken?;
        resumed.map_err(|failure| in_overlays(failure, &machine.disks, &overlays))?;
        let ram = Ram::new(holder.pid(), range)?;
        Ok(Self { machine, devices, ram, pause, holder, range })
    }
}

impl Taken {
    /// The RAM, for copies to map. `None` where only a copy of it can be had.
    pub(super) fn lend(&self) -> Option<Loan> {
        let lent = self.holder.lend_memory(self.range);
        lent.inspect_err(|error| errln!("cowslip: the machine's memory is copied: {error}")).ok()
    }
}

/// Stops the machine, gives it overlays, and takes its devices' state and its memory.
fn freeze(
    qmp: &mut Qmp,
    plan: Plan,
    door: &Door,
    (disks, overlays): (&[Disk], &Path),
) -> Result<(Vec<u8>, Holder), Failure> {
    qmp.ask("stop", json!({}))?;
    // A migration takes the disks from it.
    disks::freeze(qmp, disks, overlays)?;
    state(qmp, plan, door).map_err(|failure| in_overlays(failure, disks, overlays))
}

/// Tells of a machine's overlays, for a failure after it has them.
pub(super) fn in_overlays(failure: Failure, disks: &[Disk], overlays: &Path) -> Failure {
    match disks {
        [] => failure,
        _ => failure.after(format!("the machine goes on in overlays in {}", overlays.display())),
    }
}

/// Takes the devices' state and the memory of a machine that stands still.
fn state(qmp: &mut Qmp, plan: Plan, door: &Door) -> Result<(Vec<u8>, Holder), Failure> {
    qmp.ask("migrate", json!({"uri": format!("unix:{}", door.path().display())}))?;
    let mut stream = door.accept(qmp)?;
    let mut devices = Vec::new();
    let read = Read::by_ref(&mut stream).take(MOST_BYTES).read_to_end(&mut devices);
    read.map_err(exit::io("read the state of a machine's devices"))?;
    qmp.wait("query-migrate", |state| match state["status"].as_str() {
        Some("completed") => Ok(true),
        Some("failed" | "cancelled") => Err(not_migrated(state)),
        _ => Ok(false),
    })?;
    Ok((devices, plan.hold()?))
}

fn not_migrated(state: &Value) -> Failure {
    let why = state["error-desc"].as_str().unwrap_or("its migration failed");
    Failure::new(FAILED, format!("the machine does not tell its devices' state: {why}"))
}

fn describe(qmp: &mut Qmp, pid: i32) -> Result<Machine, Failure> {
    let memory = qmp.ask("query-memdev", json!({}))?;
    let backend = match memory.as_array().map(Vec::as_slice) {
        Some([one]) if one["share"] == true => one,
        _ => {
            let why = "the machine's RAM is not one memory-backend-memfd with share=on";
            return Err(Failure::new(UNSUPPORTED, why));
        }
    };
    let (id, size) = (backend["id"].as_str(), backend["size"].as_u64());
    let (Some(id), Some(ram_bytes)) = (id, size) else {
        return Err(Failure::new(UNSUPPORTED, "the machine's memory backend has no name"));
    };
    let failed = || exit::io("read the command line of a machine");
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).map_err(failed())?;
    let folder = fs::read_link(format!("/proc/{pid}/cwd")).map_err(failed())?;
    let folder = folder.to_string_lossy().into_owned();
    let (arguments, backend) = (words(&cmdline), id.to_owned());
    Ok(Machine { arguments, folder, backend, ram_bytes, disks: Vec::new() })
}

/// The place of the machine's RAM in its process.
pub(super) fn ram_address(qmp: &mut Qmp) -> Result<usize, Failure> {
    let asked = json!({"command-line": "gpa2hva 0"});
    let answer = qmp.ask("human-monitor-command", asked)?;
    let address = answer.as_str().and_then(|text| {
        let (_, hexadecimal) = text.trim().rsplit_once(" is 0x")?;
        usize::from_str_radix(hexadecimal, 16).ok()
    });
    address.ok_or_else(|| {
        Failure::new(UNSUPPORTED, format!("the machine has no RAM at its address 0: {answer}"))
    })
}

/// The socket to which a machine sends its devices' state.
struct Door {
    listener: UnixListener,
    folder: PathBuf,
    pid: i32,
}

impl Door {
    fn open(pid: i32) -> Result<Self, Failure> {
        let failed = || exit::io("make a socket for the devices' state");
        let folder = std::env::temp_dir().join(format!("cowslip-vm-{}", std::process::id()));
        // The machine may be another user's: it may connect. A connection of another process is refused.
        DirBuilder::new().mode(0o711).create(&folder).map_err(failed())?;
        let socket = folder.join("devices");
        let listener = UnixListener::bind(&socket).and_then(|listener| {
            fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
            listener.set_nonblocking(true).map(|()| listener)
        });
        let listener =
            listener.map_err(failed()).inspect_err(|_| _ = fs::remove_dir_all(&folder))?;
        Ok(Self { listener, folder, pid })
    }

    fn path(&self) -> PathBuf {
        self.folder.join("devices")
    }

    fn accept(&self, qmp: &mut Qmp) -> Result<UnixStream, Failure> {
        let failed = || exit::io("accept the devices' state");
        let deadline = Instant::now() + SILENCE;
        while Instant::now() < deadline {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let peer = packets::peer(stream.as_fd());
                    if peer.is_ok_and(|peer| peer.pid == self.pid) {
                        stream.set_nonblocking(false).map_err(failed())?;
                        stream.set_read_timeout(Some(SILENCE)).map_err(failed())?;
                        return Ok(stream);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let state = qmp.ask("query-migrate", json!({}))?;
                    if state["status"] == "failed" {
                        return Err(not_migrated(&state));
                    }
                    std::thread::sleep(NAP);
                }
                Err(error) => return Err(failed()(error)),
            }
        }
        Err(Failure::new(VANISHED, "the machine does not tell its devices' state"))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
