//! `cowslip trace html`: its output, its place, and refusals.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cowslip_trace::file::Writer;
use cowslip_trace::model::{Event, EventKind, Fault, Header, Sink};

struct Folder(PathBuf);

impl Folder {
    /// A folder with a trace of three faults in it.
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("cowslip-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let header = Header { command: vec!["three-faults".into()], ..Header::default() };
        let mut writer = Writer::new(Vec::new(), &header).unwrap();
        for page in 0..3 {
            let what = EventKind::Fault(Fault::at(0x20_0000 + page * 4096, 0x40_0000));
            writer.event(&Event { time_ns: page * 1000, pid: 1, tid: 1, what }).unwrap();
        }
        let (bytes, _) = writer.finish(0).unwrap();
        fs::write(folder.join("three.trace"), bytes).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn trace(command: &str, file: &Path, more: &[&str]) -> Output {
    let mut cowslip = Command::new(env!("CARGO_BIN_EXE_cowslip"));
    cowslip.args(["trace", command]).arg(file).args(more).output().unwrap()
}

#[test]
fn the_page_goes_beside_the_trace_or_where_it_is_sent() {
    let folder = Folder::new("pictures");
    let file = folder.path("three.trace");
    let magic = b"<!DOCTYPE html>";
    let beside = trace("html", &file, &[]);
    assert!(beside.status.success(), "{beside:?}");
    let written = fs::read(folder.path("three.html")).unwrap();
    assert!(written.starts_with(magic));
    let printed = trace("html", &file, &["-o", "-"]);
    assert!(printed.stdout.starts_with(magic));
    let page = String::from_utf8(written).unwrap();
    assert!(page.contains("three-faults") && page.contains("3 faults"), "{page}");
}

#[test]
fn the_page_is_opened_in_the_browser_or_said_to_be_there() {
    let folder = Folder::new("opened");
    let file = folder.path("three.trace");
    let browser = folder.path("xdg-open");
    fs::write(&browser, "#!/bin/sh\ncp \"$1\" \"$0.saw\"\n").unwrap();
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let opened = |path: &Path| {
        let mut cowslip = Command::new(env!("CARGO_BIN_EXE_cowslip"));
        let system = std::env::var("PATH").unwrap();
        let path = format!("{}:{}", path.display(), if path == folder.0 { &system } else { "" });
        cowslip.args(["trace", "html", "--open"]).arg(&file).env("PATH", path).output().unwrap()
    };
    let ran = opened(&folder.0);
    assert!(ran.status.success(), "{ran:?}");
    let saw = fs::read(folder.path("xdg-open.saw")).unwrap();
    assert!(saw.starts_with(b"<!DOCTYPE html>"));
    let ran = opened(Path::new("/nowhere"));
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(70), "{said}");
    assert!(said.contains("three.html in a browser"), "{said}");
    let ran = trace("html", &file, &["--open", "-o", "-"]);
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
}

/// Stored one by one, this number of faults would take several times that memory.
#[test]
fn many_faults_are_drawn_in_little_memory() {
    const FAULTS: u64 = 1_000_000;
    const KIB: u64 = 120_000;
    let folder = Folder::new("many-pictured");
    let file = folder.path("many.trace");
    let mut writer = Writer::new(fs::File::create(&file).unwrap(), &Header::default()).unwrap();
    for fault in 0..FAULTS {
        let what = EventKind::Fault(Fault::at(fault * 40_503 % (1 << 30), 0x40_0000));
        writer.event(&Event { time_ns: fault * 800, pid: 1, tid: 1, what }).unwrap();
    }
    writer.finish(0).unwrap();
    let script = format!("ulimit -v {KIB}; exec \"$0\" trace html \"$1\"");
    let mut cowslip = Command::new("sh");
    cowslip.args(["-c", &script, env!("CARGO_BIN_EXE_cowslip")]).arg(&file);
    let drawn = cowslip.output().unwrap();
    assert!(drawn.status.success(), "{drawn:?}");
    assert!(fs::read_to_string(folder.path("many.html")).unwrap().contains("1,000,000"));
}

#[test]
fn what_is_no_trace_or_is_not_there_is_said_with_its_name() {
    let folder = Folder::new("no-pictures");
    let damaged = folder.path("damaged.trace");
    let mut bytes = fs::read(folder.path("three.trace")).unwrap();
    bytes[12] ^= 0x40;
    fs::write(&damaged, bytes).unwrap();
    for (file, code) in [(damaged, 6), (folder.path("nowhere.trace"), 2)] {
        let refused = trace("html", &file, &[]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(code), "{said}");
        assert!(said.contains(&*file.to_string_lossy()), "{said}");
        assert!(!file.with_extension("html").exists());
    }
}
