//! Records of ended threads report their waits, like `/proc` does for a process that has not been reaped.

mod support;

use std::fs;
use std::process::{Child, Command};

use cowslip_sys::Errno;
use cowslip_sys::taskstats::{Ended, Listener};

fn listener() -> Option<Listener> {
    match Listener::start() {
        Ok(listener) => Some(listener),
        Err(error @ (Errno::PERM | Errno::INVAL | Errno::NOENT | Errno::OPNOTSUPP)) => {
            support::skip("taskstats", &format!("{error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn stat(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/stat")).unwrap()
}

/// Waits until it has ended, without reaping it.
fn end(child: &Child) {
    while !stat(child.id()).contains(") Z ") {
        std::thread::yield_now();
    }
}

fn drain(listener: &Listener) -> Vec<Ended> {
    let mut all = Vec::new();
    listener.drain(|ended| all.push(ended)).unwrap();
    all
}

#[test]
fn a_process_and_its_children_are_told_before_they_can_be_waited_for() {
    let Some(listener) = listener() else { return };
    // More children that are ready to run at once than processors: one of them waits.
    let count = std::thread::available_parallelism().unwrap().get() + 1;
    let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done";
    let script = format!(
        "n=0; while [ $n -lt {count} ]; do n=$((n + 1)); sh -c '{busy}' & done; wait; exit 7"
    );
    let mut child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    end(&child);
    let all = drain(&listener);
    let own = *all.iter().find(|ended| ended.thread == child.id()).unwrap();
    assert_eq!((own.process, own.parent), (child.id(), std::process::id()));
    let children: Vec<&Ended> = all.iter().filter(|ended| ended.parent == child.id()).collect();
    assert_eq!(children.len(), count, "{children:?}");
    assert!(children.iter().all(|ended| ended.thread == ended.process));
    assert!(children.iter().any(|ended| ended.processor_wait.as_micros() > 1_000), "{children:?}");
    let text = fs::read_to_string(format!("/proc/{}/schedstat", child.id())).unwrap();
    let known: u128 = text.split(' ').nth(1).unwrap().parse().unwrap();
    // It may have waited once more, while it ended.
    assert!(own.processor_wait.as_nanos() <= known, "{own:?} {text}");
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn each_thread_is_told_with_its_process() {
    let Some(listener) = listener() else { return };
    let threads: Vec<u32> = (0..3)
        .map(|_| {
            let number = || rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            std::thread::spawn(number).join().unwrap()
        })
        .collect();
    let all = drain(&listener);
    for thread in threads {
        let ended = all.iter().find(|ended| ended.thread == thread).unwrap();
        assert_eq!(ended.process, std::process::id());
        assert_eq!(ended.parent, std::os::unix::process::parent_id());
    }
    assert!(!all.iter().any(|ended| ended.thread == std::process::id()), "it has not ended");
}
