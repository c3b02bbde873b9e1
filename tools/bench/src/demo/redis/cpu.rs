//! The processor time of a server, by the kernel's counters.

use std::{fs, io};

use cowslip_sys::process;

use super::Error;

/// The name of Cowslip's thread that serves an arena.
const SERVICE_THREAD: &str = "cowslip";

/// A tick of `/proc/PID/stat`, on every architecture that Cowslip runs on.
const TICK_NS: u64 = 10_000_000;

/// Processor time so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cpu {
    /// Time of all threads, including ended ones, but not of children.
    pub(crate) all_ns: u64,
    /// Time of the thread that answers clients.
    pub(crate) main_ns: u64,
    /// Time of Cowslip's own threads.
    pub(crate) service_ns: u64,
    /// Time of children that ended.
    pub(crate) children_ns: u64,
}

impl Cpu {
    pub(crate) fn from_pid(pid: u64) -> Result<Self, Error> {
        let used = process::cpu_ns_of(pid as i32);
        let all_ns = used.map_err(|errno| failed(pid)(errno.into()))?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(failed(pid))?;
        let children_ns = children_ticks(&stat).unwrap_or(0) * TICK_NS;
        let mut cpu = Self { all_ns, children_ns, ..Self::default() };
        for task in fs::read_dir(format!("/proc/{pid}/task")).map_err(failed(pid))? {
            let path = task.map_err(failed(pid))?.path();
            let is_main = path.ends_with(pid.to_string());
            // A thread that ended meanwhile has no file any more.
            let read = |file| fs::read_to_string(path.join(file)).unwrap_or_default();
            if is_main || read("comm").trim() == SERVICE_THREAD {
                let used = parse(&read("schedstat")).unwrap_or(0);
                *(if is_main { &mut cpu.main_ns } else { &mut cpu.service_ns }) += used;
            }
        }
        Ok(cpu)
    }

    /// The time used since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            all_ns: self.all_ns.saturating_sub(earlier.all_ns),
            main_ns: self.main_ns.saturating_sub(earlier.main_ns),
            service_ns: self.service_ns.saturating_sub(earlier.service_ns),
            children_ns: self.children_ns.saturating_sub(earlier.children_ns),
        }
    }
}

fn failed(pid: u64) -> impl Fn(io::Error) -> Error {
    move |error| Error::io(format!("read the processor time of process {pid}"))(error)
}

/// Time on a processor, from `/proc/PID/task/TID/schedstat`.
fn parse(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

/// Time in user and system mode, from `/proc/PID/stat`, where the second field may hold spaces.
fn children_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split_whitespace().skip(13);
    Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_thread_of_cowslip_is_counted_apart() {
        assert_eq!(parse("123 456 7\n"), Some(123));
        let stat = "7 (a) b) S 1 7 7 0 -1 0 9 9 9 9 111 22 33 44 20 0 1 0 5";
        assert_eq!(children_ticks(stat), Some(77));
        let pid = u64::from(std::process::id());
        let before = Cpu::from_pid(pid).unwrap();
        let burn = move || {
            let began = Instant::now();
            while process::thread_cpu_ns() < 20_000_000 && began.elapsed().as_secs() < 60 {
                black_box(0);
            }
            // The time of a thread is readable while it lives.
            Cpu::from_pid(pid).unwrap().since(before)
        };
        let named = std::thread::Builder::new().name(SERVICE_THREAD.to_owned());
        let used = named.spawn(burn).unwrap().join().unwrap();
        assert!(used.service_ns >= 15_000_000, "{used:?}");
        assert!(used.all_ns >= used.service_ns, "{used:?}");
    }
}
