//! Instructions of a process in user mode: huge pages do not change how many a unit of work takes.

use std::fs;
use std::io;

use cowslip_sys::perf::{Attributes, Event, Kind};

/// Counters of all threads of a process, and of those that they make.
#[derive(Debug)]
pub(crate) struct Instructions(Vec<Event>);

impl Instructions {
    /// An error where the processor does not count them, or not for this user.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        Self::count_of(Kind::Instructions, pid)
    }

    fn count_of(kind: Kind, pid: i32) -> io::Result<Self> {
        let attributes = Attributes {
            kind,
            period: 0,
            frames: None,
            in_kernel: false,
            follows: false,
            starts_at_exec: false,
        };
        let mut events = Vec::new();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let Some(thread) = thread?.file_name().to_str().and_then(|it| it.parse().ok()) else {
                continue;
            };
            events.push(Event::open_anywhere(&attributes, thread)?);
        }
        Ok(Self(events))
    }

    pub(crate) fn count(&self) -> io::Result<f64> {
        let mut sum = 0;
        for event in &self.0 {
            sum += event.count()?.value;
        }
        Ok(sum as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    /// Page faults stand for instructions, which few virtual machines count.
    #[test]
    fn threads_that_were_there_and_new_ones_count() {
        const PAGES: usize = 1000;
        let touch = || {
            let page = cowslip_sys::units::page_size_bytes();
            std::hint::black_box(vec![1u8; PAGES * page]);
        };
        let (go, wait) = mpsc::channel::<()>();
        let older = thread::spawn(move || {
            wait.recv().unwrap();
            touch();
            thread::spawn(touch).join().unwrap();
        });
        let counters = match Instructions::count_of(Kind::PageFaults, cowslip_sys::process::pid()) {
            Ok(counters) => counters,
            Err(error) => return println!("SKIPPED: perf: {error}"),
        };
        let before = counters.count().unwrap();
        go.send(()).unwrap();
        older.join().unwrap();
        assert!(counters.count().unwrap() - before >= PAGES as f64);
    }
}
