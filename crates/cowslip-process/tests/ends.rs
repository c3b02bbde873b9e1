//! A program that ends while it is held.

mod support;

use std::io::Read;

use cowslip_process::{Plan, look};
use cowslip_sys::error::ErrorKind;
use support::python;

/// The kernel takes a process' threads, namespaces and memory away one after the other.
#[test]
fn a_process_that_ends_is_gone() {
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
        let Some(mut command) = python(&script) else { return };
        let mut child = command.spawn().unwrap();
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
