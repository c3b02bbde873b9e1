//! The disks of a machine that its copies go on with.
//!
//! ```text
//!   before     machine ──writes──▶ disk
//!   after      machine ──▶ overlay in --disks ─┐
//!              copy 0  ──▶ 0/disk0.qcow2 ──────┼──▶ disk, which is written no more
//!              copy 1  ──▶ 1/disk0.qcow2 ──────┘
//! ```
//! The machine stands still when it gets its overlays: all of them, or none.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::qmp::Qmp;
use crate::exit::{self, FAILED, Failure, UNSUPPORTED, USAGE};

/// A disk that the machine writes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Disk {
    /// The machine's word for it.
    name: String,
    /// That is the name of a node, not of a device.
    is_node: bool,
    /// The file that it writes to, and those below.
    files: Vec<String>,
    /// The format of the first.
    format: String,
}

/// The disks that the machine writes to, of its answer to `query-block`.
pub(super) fn written(blocks: &Value) -> Result<Vec<Disk>, Failure> {
    let all = blocks.as_array().into_iter().flatten();
    let written =
        all.filter(|block| block["inserted"].is_object() && block["inserted"]["ro"] != true);
    written.map(disk).collect()
}

fn disk(block: &Value) -> Result<Disk, Failure> {
    let inserted = &block["inserted"];
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let device = text(&block["device"]);
    let is_node = device.is_none();
    let name = device.or_else(|| text(&inserted["node-name"]));
    let mut files = Vec::new();
    let mut image = &inserted["image"];
    while let Some(file) = text(&image["filename"]) {
        files.push(file);
        image = &image["backing-image"];
    }
    let format = text(&inserted["drv"]);
    match (name, format) {
        (Some(name), Some(format)) if !files.is_empty() => {
            Ok(Disk { name, is_node, files, format })
        }
        _ => {
            Err(Failure::new(UNSUPPORTED, "the machine writes to a disk that has no name or file"))
        }
    }
}

/// Refuses a machine that writes to a disk: its copies would write to the same.
pub(super) fn refuse(disks: &[Disk], fix: &str) -> Result<(), Failure> {
    disks.first().map_or(Ok(()), |disk| {
        let why =
            format!("the machine writes to its disk {}, which its copies would share", disk.name);
        Err(Failure::new(UNSUPPORTED, format!("{why}: {fix}")))
    })
}

impl Disk {
    /// The file that is written no more once the machine has an overlay, from a machine that was started in `folder`.
    fn base(&self, folder: &str) -> Result<PathBuf, Failure> {
        let path = Path::new(folder).join(&self.files[0]);
        if path.exists() {
            return Ok(path);
        }
        let (name, file) = (&self.name, &self.files[0]);
        let why = format!("the disk {name} of the machine is no file that an overlay can name");
        Err(Failure::new(UNSUPPORTED, format!("{why}: {file}")))
    }

    /// Returns true if a command line means this disk by the file.
    fn is_of(&self, file: &str) -> bool {
        self.files.iter().any(|known| known == file)
    }
}

/// Checks that copies can have these disks: each is a file, and in one `-drive` of the command line.
pub(super) fn check(disks: &[Disk], arguments: &[String], folder: &str) -> Result<(), Failure> {
    if !disks.is_empty() {
        qemu_img().arg("--version").output().map_err(exit::io(NO_QEMU_IMG))?;
    }
    let drives = arguments.windows(2).filter(|pair| is_drive(&pair[0]));
    let files: Vec<_> = drives.filter_map(|pair| value_of(&pair[1], "file")).collect();
    for disk in disks {
        disk.base(folder)?;
        if files.iter().filter(|file| disk.is_of(file)).count() != 1 {
            let why = format!("the disk {} of the machine is not one -drive file=…", disk.name);
            return Err(Failure::new(UNSUPPORTED, format!("{why} of its command line")));
        }
    }
    Ok(())
}

/// Has the machine, which stands still, go on in overlays in `folder`.
pub(super) fn freeze(qmp: &mut Qmp, disks: &[Disk], folder: &Path) -> Result<(), Failure> {
    if disks.is_empty() {
        return Ok(());
    }
    let action = |(number, disk): (usize, &Disk)| {
        let key = if disk.is_node { "node-name" } else { "device" };
        let overlay = folder.join(format!("disk{number}.qcow2"));
        let mut data =
            json!({"snapshot-file": overlay, "format": "qcow2", "mode": "absolute-paths"});
        data[key] = disk.name.clone().into();
        if disk.is_node {
            data["snapshot-node-name"] = format!("cowslip-{}-{number}", std::process::id()).into();
        }
        json!({"type": "blockdev-snapshot-sync", "data": data})
    };
    let actions: Vec<Value> = disks.iter().enumerate().map(action).collect();
    qmp.ask("transaction", json!({"actions": actions})).map(drop)
}

/// Makes an overlay of each disk in a copy's folder.
pub(super) fn overlay(disks: &[Disk], folder: &str, place: &Path) -> Result<(), Failure> {
    for (number, disk) in disks.iter().enumerate() {
        let base = disk.base(folder)?;
        let mut command = qemu_img();
        command.args(["create", "-q", "-f", "qcow2", "-F", &disk.format, "-b"]);
        command.arg(&base).arg(overlay_in(place, number));
        let made = command.output().map_err(exit::io(NO_QEMU_IMG))?;
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            let step = format!("make an overlay of {}", base.display());
            return Err(Failure::new(FAILED, why.trim()).after(step));
        }
    }
    Ok(())
}

const NO_QEMU_IMG: &str = "start qemu-img, of Debian's qemu-utils";

fn qemu_img() -> Command {
    Command::new("qemu-img")
}

fn overlay_in(place: &Path, number: usize) -> PathBuf {
    place.join(format!("disk{number}.qcow2"))
}

/// Returns true for the option of a disk.
pub(super) fn is_drive(word: &str) -> bool {
    matches!(word, "-drive" | "--drive")
}

/// The value of a `-drive` for a copy with its files in `place`, which has its own overlay.
pub(super) fn drive(value: &str, disks: &[Disk], place: &Path) -> Result<String, Failure> {
    let Some(file) = value_of(value, "file") else { return Ok(value.to_owned()) };
    let Some(number) = disks.iter().position(|disk| disk.is_of(&file)) else {
        return Ok(value.to_owned());
    };
    let overlay = overlay_in(place, number);
    let Some(overlay) = overlay.to_str() else {
        return Err(Failure::new(
            USAGE,
            "the folder of copies with disks must have a name in UTF-8",
        ));
    };
    let kept = parts(value)
        .into_iter()
        .filter(|part| !["file=", "format="].iter().any(|key| part.starts_with(key)));
    let own = [format!("file={}", overlay.replace(',', ",,")), "format=qcow2".to_owned()];
    Ok(own
        .into_iter()
        .chain(kept.map(|part| part.replace(',', ",,")))
        .collect::<Vec<_>>()
        .join(","))
}

fn value_of(value: &str, key: &str) -> Option<String> {
    parts(value)
        .into_iter()
        .find_map(|part| part.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
}

/// The parts of an option, which commas separate; two commas are one.
fn parts(value: &str) -> Vec<String> {
    let whole = value.replace(",,", "\0");
    whole.split(',').map(|part| part.replace('\0', ",")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks() -> Value {
        json!([
            {"device": "virtio0", "inserted": {"ro": false, "drv": "qcow2", "node-name": "#block1",
                "image": {"filename": "/o/disk0.qcow2", "backing-image": {"filename": "a,b"}}}},
            {"device": "cd", "inserted": {"ro": true, "drv": "raw", "image": {"filename": "cd"}}},
            {"device": "floppy0"},
        ])
    }

    #[test]
    fn a_copy_writes_to_its_own_overlay() {
        let disks = written(&blocks()).unwrap();
        assert_eq!(disks.len(), 1);
        let given = "if=virtio,file=a,,b,format=raw,cache=none,serial=x,,y";
        let own = drive(given, &disks, Path::new("/c,d/0")).unwrap();
        let wanted = "file=/c,,d/0/disk0.qcow2,format=qcow2,if=virtio,cache=none,serial=x,,y";
        assert_eq!(own, wanted);
        assert_eq!(
            drive("file=cd,media=cdrom", &disks, Path::new("/c")).unwrap(),
            "file=cd,media=cdrom"
        );
        assert_eq!(drive("if=none,id=x", &disks, Path::new("/c")).unwrap(), "if=none,id=x");
    }

    #[test]
    fn disks_that_copies_cannot_have_are_refused() {
        let none = json!([{"device": "nbd0", "inserted": {"ro": false, "drv": "raw"}}]);
        assert!(written(&none).is_err());
        let mut disks = written(&blocks()).unwrap();
        // No such file.
        assert!(check(&disks, &[], "/").is_err());
        disks[0].files[0] = "/proc/self/exe".to_owned();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(check(&disks, &words("qemu -drive file=a,,b -drive file=c"), "/").is_ok());
        assert!(check(&disks, &words("qemu -hda a,,b"), "/").is_err());
        assert!(check(&disks, &words("qemu -drive file=a,,b -drive file=a,,b"), "/").is_err());
        assert!(refuse(&disks, "fix").is_err() && refuse(&[], "fix").is_ok());
    }
}
