//! A program that ends while it is held.

use std::io::Read;
use std::process::{Command, Stdio};

use cowslip_process::{Plan, look};
use cowslip_sys::error::ErrorKind;

/// Debian's.
const PYTHON: &str = "/usr/bin/python3";

/// The kernel takes a process' threads, namespaces and memory away one after the other.
#[test]
fn a_process_that_ends_is_gone() {
    if !std::path::Path::new(PYTHON).exists() {
        println!("SKIPPED: python: {PYTHON} is not there");
        return;
    }
    for round in 0..40 {
        let script = format!(
            "import os, threading, time\n\
             for _ in range(30): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n\
             memory = bytearray(os.urandom(1)) * (32 << 20)\n\
             print('ready', flush=True)\n\
             time.sleep({} / 5000)\n\
             os._exit(0)",
            round % 20
        );
        let mut command = Command::new(PYTHON);
        let mut child = command.args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        child.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
        while !has_ended(pid) {
            let Err(error) = look(pid).and_then(Plan::hold) else { continue };
            assert_eq!(error.kind(), ErrorKind::Vanished, "{error}");
        }
        let _ = child.wait();
    }
}

fn has_ended(pid: i32) -> bool {
    // This process, which traces it, may have waited for it.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z"))
}
