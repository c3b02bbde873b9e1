//! Machines of QEMU: kept and copied while they run.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::{COWSLIP, Folder, Ran, run};

const PATIENCE: Duration = Duration::from_secs(120);
/// Numbers between two lines of the guest.
const STEP: u64 = 0x1_0000;

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    found
}

/// Checks the lines that a guest has written, of which the first and the last may be parts, and returns the last number.
fn check(console: &Path) -> Option<u64> {
    let text = fs::read_to_string(console).unwrap_or_default();
    let (_, whole) = text.split_once('\n')?;
    let whole = whole.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let numbers = whole.lines().map(|line| {
        let number = line.strip_suffix(" g").unwrap_or_else(|| panic!("{console:?}: {line}"));
        u64::from_str_radix(number, 16).unwrap_or_else(|_| panic!("{console:?}: {line}"))
    });
    let numbers: Vec<u64> = numbers.collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + STEP == pair[1]), "{console:?}: {numbers:?}");
    numbers.last().copied()
}

/// A machine that counts, see `programs/guest.S`.
struct Machine {
    folder: Folder,
    qemu: Running,
}

impl Machine {
    /// `None`, reported, without QEMU or a compiler.
    fn start(under: &[&str], more: &[&str]) -> Option<Self> {
        if !is_there("qemu-system-x86_64") || !is_there("cc") {
            return None;
        }
        let folder = Folder::new("vm");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/guest.S");
        let mut cc = Command::new("cc");
        cc.args(["-m32", "-nostdlib", "-static", "-Wl,-Ttext=0x100000", "-o"]);
        let compiled = run(cc.arg(folder.0.join("guest")).arg(source));
        assert!(compiled.status.success(), "{}", compiled.stderr);
        let words = [under, &["qemu-system-x86_64"]].concat();
        let mut qemu = Command::new(words[0]);
        qemu.args(&words[1..]).args(["-m", "128", "-display", "none", "-kernel", "guest"]);
        qemu.args(["-object", "memory-backend-memfd,id=ram,size=128M"]);
        qemu.args(["-machine", "q35,memory-backend=ram", "-serial", "file:console"]);
        qemu.args(["-qmp", "unix:qmp,server=on,wait=off"]).args(more);
        qemu.current_dir(&folder.0).stdin(Stdio::null());
        let qemu = Running(qemu.spawn().unwrap());
        let machine = Self { folder, qemu };
        machine.counts_on();
        Some(machine)
    }

    fn under_cowslip() -> Option<Self> {
        Self::start(&[COWSLIP, "run", "--guest-memory", "--"], &[])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    fn vm(&self, words: &[&str]) -> Ran {
        run(Command::new(COWSLIP).arg("vm").args(words).current_dir(&self.folder.0))
    }

    /// Starts a command that ends with its machines.
    fn start_vm(&self, words: &[&str]) -> Running {
        let mut command = Command::new(COWSLIP);
        command.arg("vm").args(words).current_dir(&self.folder.0).stdin(Stdio::null());
        Running(command.stdout(Stdio::null()).spawn().unwrap())
    }

    /// Waits until the guest has counted on from here.
    fn counts_on(&self) {
        counts_on(&self.path("console"));
    }
}

fn counts_on(console: &Path) {
    let before = check(console);
    eventually("a guest counts", || check(console) > before);
}

/// Asserts that these guests went on from one instant: the shorter output is the beginning of the longer.
fn are_of_one_instant(consoles: &[PathBuf]) {
    let texts: Vec<String> =
        consoles.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    for text in &texts {
        let shorter = text.len().min(texts[0].len());
        assert!(shorter > 0 && text[..shorter] == texts[0][..shorter], "{consoles:?}");
    }
}

fn terminate(command: &mut Running) {
    let pid = command.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert!(command.0.wait().unwrap().success());
}

#[test]
fn copies_go_on_from_one_instant_and_so_does_the_machine() {
    let Some(machine) = Machine::under_cowslip() else { return };
    let then = check(&machine.path("console")).unwrap();
    let words = ["branch", "qmp", "-n", "3", "-o", "copies", "--json", "copies.json"];
    let mut copies = machine.start_vm(&words);
    let consoles = ["0", "1", "2"].map(|n| machine.path("copies").join(n).join("serial0"));
    for console in &consoles {
        eventually("a copy counts", || check(console) > Some(then));
    }
    are_of_one_instant(&consoles);
    machine.counts_on();
    let told = fs::read_to_string(machine.path("copies.json")).unwrap();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["schema"], &told["command"]), (&"cowslip.vm/1".into(), &"branch".into()));
    let folders = told["copies"].as_array().unwrap().iter().map(|copy| copy["folder"].as_str());
    let consoles_told: Vec<_> =
        folders.map(|folder| Path::new(folder.unwrap()).join("serial0")).collect();
    assert_eq!(consoles_told, consoles);
    // Again, with memory that is frozen already.
    let mut others = machine.start_vm(&["branch", "qmp", "-o", "others"]);
    let other = machine.path("others/0/serial0");
    eventually("a copy counts", || check(&other) > Some(then));
    terminate(&mut others);
    terminate(&mut copies);
    machine.counts_on();
}

#[test]
fn an_image_is_restored_again_and_again() {
    let Some(mut machine) = Machine::under_cowslip() else { return };
    let kept = machine.vm(&["snapshot", "qmp", "-o", "image", "--compression", "lz4"]);
    assert!(kept.status.success(), "{}", kept.stderr);
    assert!(kept.stdout.contains("stood still for"), "{}", kept.stdout);
    machine.counts_on();
    machine.qemu.0.kill().unwrap();
    machine.qemu.0.wait().unwrap();
    let mut restored = ["one", "other"]
        .map(|folder| (machine.start_vm(&["restore", "image", "-o", folder]), folder));
    let consoles = restored.each_ref().map(|(_, folder)| machine.path(folder).join("0/serial0"));
    consoles.iter().for_each(|console| counts_on(console));
    are_of_one_instant(&consoles);
    restored.iter_mut().for_each(|(restored, _)| terminate(restored));
}

#[test]
fn a_command_that_is_killed_leaves_the_machine_running_and_no_part_of_an_image() {
    let Some(machine) = Machine::under_cowslip() else { return };
    for ms in [0, 2, 5, 10, 20, 30, 50, 80, 150, 300] {
        let mut snapshot = machine.start_vm(&["snapshot", "qmp", "-o", "image"]);
        thread::sleep(Duration::from_millis(ms));
        snapshot.0.kill().unwrap();
        snapshot.0.wait().unwrap();
        machine.counts_on();
        if machine.path("image").exists() {
            let verified =
                run(Command::new(COWSLIP).args(["image", "verify"]).arg(machine.path("image")));
            assert!(verified.status.success(), "{}", verified.stderr);
        }
    }
    let kept = machine.vm(&["snapshot", "qmp", "-o", "image"]);
    assert!(kept.status.success(), "{}", kept.stderr);
    machine.counts_on();
}

#[test]
fn copies_end_with_a_command_that_is_killed() {
    let Some(machine) = Machine::under_cowslip() else { return };
    let mut copies = machine.start_vm(&["branch", "qmp", "-n", "2", "-o", "copies"]);
    let consoles = ["0", "1"].map(|number| machine.path("copies").join(number).join("serial0"));
    consoles.iter().for_each(|console| counts_on(console));
    copies.0.kill().unwrap();
    copies.0.wait().unwrap();
    for number in ["0", "1"] {
        let qmp = machine.path("copies").join(number).join("qmp");
        eventually("it ends", || UnixStream::connect(&qmp).is_err());
    }
    machine.counts_on();
}

#[test]
fn machines_that_cannot_be_copied_are_refused() {
    let Some(machine) = Machine::start(&["env"], &[]) else { return };
    let refused = machine.vm(&["snapshot", "qmp", "-o", "image"]);
    assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("--guest-memory"), "{}", refused.stderr);
    fs::write(machine.path("disk"), vec![0; 1 << 20]).unwrap();
    let under = [COWSLIP, "run", "--guest-memory", "--"];
    let disk = format!("file={},format=raw,if=virtio", machine.path("disk").display());
    let machine = Machine::start(&under, &["-drive", &disk]).unwrap();
    let refused = machine.vm(&["snapshot", "qmp", "-o", "image"]);
    assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("virtio0"), "{}", refused.stderr);
    assert!(!machine.path("image").exists());
    machine.counts_on();
}

/// Runs a command of QEMU's own on the disk of a machine, by its QMP.
fn on_disk(qmp: &Path, command: &str) {
    let stream = UnixStream::connect(qmp).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let line = format!("qemu-io virtio0 \"{command}\"");
    let ask = serde_json::json!({
        "execute": "human-monitor-command", "arguments": {"command-line": line}, "id": 1,
    });
    let mut asked = &stream;
    asked.write_all(b"{\"execute\": \"qmp_capabilities\"}\n").unwrap();
    asked.write_all(format!("{ask}\n").as_bytes()).unwrap();
    let answers = BufReader::new(&stream).lines().map(Result::unwrap);
    let answers = answers.map(|line| serde_json::from_str::<serde_json::Value>(&line).unwrap());
    let answer = answers.into_iter().find(|answer| answer["id"] == 1).unwrap();
    assert_eq!(answer["return"], "", "{answer}");
}

/// The first byte of a disk, whatever its format.
fn first_byte(disk: &Path) -> u8 {
    let raw = disk.with_extension("converted");
    let mut command = Command::new("qemu-img");
    let read = run(command.args(["convert", "-U", "-O", "raw"]).arg(disk).arg(&raw));
    assert!(read.status.success(), "{}", read.stderr);
    fs::read(raw).unwrap()[0]
}

#[test]
fn copies_write_to_disks_of_their_own() {
    if !is_there("qemu-img") {
        return;
    }
    let under = [COWSLIP, "run", "--guest-memory", "--"];
    let disk = std::env::temp_dir().join(format!("cowslip-vm-disk-{}", std::process::id()));
    fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let drive = format!("file={},format=raw,if=virtio", disk.display());
    let Some(machine) = Machine::start(&under, &["-drive", &drive]) else { return };
    on_disk(&machine.path("qmp"), "write -P 0x11 0 64k");
    let words = ["branch", "qmp", "-n", "2", "-o", "copies", "--disks", "disks"];
    let mut copies = machine.start_vm(&words);
    let places = ["0", "1"].map(|number| machine.path("copies").join(number));
    places.iter().for_each(|place| counts_on(&place.join("serial0")));
    on_disk(&machine.path("qmp"), "write -P 0x22 0 64k");
    on_disk(&places[0].join("qmp"), "write -P 0x33 0 64k");
    // Again, of a machine that has an overlay already.
    let mut again = machine.start_vm(&["branch", "qmp", "-o", "again", "--disks", "disks2"]);
    counts_on(&machine.path("again/0/serial0"));
    on_disk(&machine.path("qmp"), "write -P 0x44 0 64k");
    machine.counts_on();
    for running in [&mut copies, &mut again] {
        terminate(running);
    }
    let bytes = [
        (disk.clone(), 0x11),
        (machine.path("disks/disk0.qcow2"), 0x22),
        (places[0].join("disk0.qcow2"), 0x33),
        (places[1].join("disk0.qcow2"), 0x11),
        (machine.path("again/0/disk0.qcow2"), 0x22),
        (machine.path("disks2/disk0.qcow2"), 0x44),
    ];
    for (disk, wanted) in bytes {
        assert_eq!(first_byte(&disk), wanted, "{}", disk.display());
    }
    // Folders that are there are not written to, and the machine keeps its disk.
    for [output, disks] in [["more", "disks"], ["copies", "disks3"]] {
        let refused = machine.vm(&["branch", "qmp", "-o", output, "--disks", disks]);
        assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
        assert!(!refused.stderr.contains("goes on in overlays"), "{}", refused.stderr);
    }
    assert!(!machine.path("disks3").exists());
    let strange = OsStr::from_bytes(b"disks\xff");
    let mut command = Command::new(COWSLIP);
    command.args(["vm", "branch", "qmp", "-o", "more", "--disks"]).arg(strange);
    let refused = run(command.current_dir(&machine.folder.0));
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    // Once it has an overlay, each failure says so.
    let words = ["branch", "qmp", "-o", "none/copies", "--disks", "disks2.1"];
    let failed = machine.vm(&words);
    assert!(failed.stderr.contains("goes on in overlays in "), "{}", failed.stderr);
    machine.counts_on();
    on_disk(&machine.path("qmp"), "write -P 0x55 0 64k");
    assert_eq!(first_byte(&machine.path("disks2.1/disk0.qcow2")), 0x55);
    drop(machine);
    let _ = fs::remove_file(disk.with_extension("converted"));
    fs::remove_file(disk).unwrap();
}

#[test]
fn disks_without_a_file_of_the_command_line_are_refused() {
    let under = [COWSLIP, "run", "--guest-memory", "--"];
    let disk = ["-blockdev", "driver=null-co,node-name=none,size=1048576"];
    let device = ["-device", "virtio-blk-pci,drive=none,id=nothing"];
    let Some(machine) = Machine::start(&under, &[disk, device].concat()) else { return };
    let refused = machine.vm(&["branch", "qmp", "-o", "copies", "--disks", "disks"]);
    assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("no file"), "{}", refused.stderr);
    assert!(!machine.path("disks").exists() && !machine.path("copies").exists());
    machine.counts_on();
}

#[test]
fn what_is_no_machine_is_said() {
    let folder = Folder::new("vm-none");
    let socket = folder.0.join("qmp");
    let vm =
        |words: &[&str]| run(Command::new(COWSLIP).arg("vm").args(words).current_dir(&folder.0));
    let none = vm(&["snapshot", "qmp", "-o", "image"]);
    assert_eq!(none.status.code(), Some(5), "{}", none.stderr);
    let listener = UnixListener::bind(&socket).unwrap();
    let server = thread::spawn(move || {
        // One that ends, one that is something else, one that falls silent.
        drop(listener.accept().unwrap());
        listener.accept().unwrap().0.write_all(b"{\"hello\": 1}\n").unwrap();
        let mut silent = listener.accept().unwrap().0;
        silent.write_all(b"{\"QMP\": {}}\n").unwrap();
        let _ = silent.read_to_end(&mut Vec::new());
    });
    for why in ["closed its QMP", "is no QMP", "silent"] {
        let failed = vm(&["snapshot", "qmp", "-o", "image"]);
        assert_eq!(failed.status.code(), Some(5), "{}", failed.stderr);
        assert!(failed.stderr.contains(why), "{}", failed.stderr);
    }
    server.join().unwrap();
    fs::write(folder.0.join("text"), "no image").unwrap();
    let wrong = vm(&["restore", "text", "-o", "copy"]);
    assert_eq!(wrong.status.code(), Some(6), "{}", wrong.stderr);
    assert!(!folder.0.join("image").exists() && !folder.0.join("copy").exists());
}
