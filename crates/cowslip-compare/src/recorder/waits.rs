//! Times that threads ran, and waited for a processor or a disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use cowslip_sys::taskstats::{Ended, Listener};

use super::reading::{Reading, add, reading};
use crate::recording::MetricKind::Counter;

/// Waits of threads, in seconds.
type Waited = [f64; 2];
const PROCESSOR: usize = 0;
const DISK: usize = 1;

/// The times of the threads of a process and of its descendants.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// For each thread that was alive at the last look: seconds on a processor, seconds of waiting for one, times it
    /// got one.
    threads: BTreeMap<u32, [f64; 3]>,
    /// The sums of threads that have ended since, at their last look.
    ended: [f64; 3],
    /// For a command: the kernel's records of threads that have ended.
    told: Option<Told>,
}

/// The kernel's records of threads that ended.
#[derive(Debug)]
struct Told {
    listener: Listener,
    /// The command's process, once it has started.
    root: Option<u32>,
    /// Waits of the root's threads, and of the processes below it whose parents have ended.
    total: Waited,
    /// Waits of ended threads below a process that has not ended yet, by its number.
    below: BTreeMap<u32, Waited>,
    /// True if no record was lost.
    is_whole: bool,
    /// True if the kernel counts waiting for disks.
    has_disk: bool,
    /// The highest sums so far: a sum must not fall because a thread ended between two looks at it.
    most: Waited,
}

impl Waits {
    /// Uses the kernel's records, if they are available.
    pub(super) fn of_command() -> Self {
        let told = Listener::start().ok().map(|listener| Told {
            listener,
            root: None,
            total: [0.0; 2],
            below: BTreeMap::new(),
            is_whole: true,
            has_disk: fs::read_to_string("/proc/sys/kernel/task_delayacct")
                .is_ok_and(|text| text.trim() == "1"),
            most: [0.0; 2],
        });
        Self { told, ..Self::default() }
    }

    pub(super) fn follow(&mut self, root: u32) {
        if let Some(told) = &mut self.told {
            told.root = Some(root);
        }
    }

    /// Returns true if the times of threads that end unseen are known.
    pub(super) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// Takes the records that have come.
    pub(super) fn drain(&mut self) {
        if let Some(told) = &mut self.told {
            told.drain();
        }
    }

    /// Looks at the threads of these processes.
    pub(super) fn look<'a>(&mut self, processes: impl Iterator<Item = &'a u32>) {
        self.drain();
        let mut alive = BTreeSet::new();
        for pid in processes {
            let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for thread in entries {
                let Some(number) = thread.file_name().to_str().and_then(|name| name.parse().ok())
                else {
                    continue;
                };
                let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else {
                    continue;
                };
                let mut words = text.split_ascii_whitespace().map(|word| word.parse().ok());
                let mut next = || words.next().flatten().unwrap_or(0.0);
                self.threads.insert(number, [next() / 1e9, next() / 1e9, next()]);
                alive.insert(number);
            }
        }
        let ended = &mut self.ended;
        self.threads.retain(|number, times| {
            let is_alive = alive.contains(number);
            if !is_alive {
                add(ended, times);
            }
            is_alive
        });
    }

    pub(super) fn count(&self) -> usize {
        self.threads.len()
    }

    /// Adds the times of the threads seen; after the processes have ended they are incomplete.
    pub(super) fn read_seen(&self, is_known: bool, into: &mut Vec<Reading>) {
        let [run, wait, slices] = self.seen();
        for (name, value) in [("run_seconds", run), ("wait_seconds", wait), ("slices", slices)] {
            let name = format!("process.schedstat.{name}");
            into.push(reading(name, Counter, is_known.then_some(value)));
        }
    }

    /// Adds the times of a command; its other times are known when it is waited for.
    pub(super) fn read_command<'a>(
        &mut self,
        members: impl Iterator<Item = &'a u32>,
        into: &mut Vec<Reading>,
    ) {
        let alive: f64 = self.threads.values().map(|thread| thread[1]).sum();
        let seen = self.seen()[1];
        let (wait, disk) = match &mut self.told {
            None => (Some(seen), None),
            Some(told) => {
                let mut now = told.total;
                members.filter_map(|pid| told.below.get(pid)).for_each(|sums| add(&mut now, sums));
                now[PROCESSOR] += alive;
                told.most = [0, 1].map(|which| told.most[which].max(now[which]));
                let known = |which: usize| told.is_whole.then_some(told.most[which]);
                (known(PROCESSOR), known(DISK).filter(|_| told.has_disk))
            }
        };
        into.push(reading("process.schedstat.wait_seconds", Counter, wait));
        into.push(reading("process.disk_wait_seconds", Counter, disk));
    }

    fn seen(&self) -> [f64; 3] {
        let mut times = self.ended;
        self.threads.values().for_each(|thread| add(&mut times, thread));
        times
    }
}

impl Told {
    fn drain(&mut self) {
        let Self { listener, root, total, below, is_whole, .. } = self;
        let drained = listener.drain(|ended| fold(ended, *root, total, below));
        *is_whole &= drained.is_ok();
    }
}

/// Adds a thread to the waits below its process's parent, with all waits below itself.
fn fold(ended: Ended, root: Option<u32>, total: &mut Waited, below: &mut BTreeMap<u32, Waited>) {
    let mut waited = [ended.processor_wait.as_secs_f64(), ended.disk_wait.as_secs_f64()];
    if let Some(rest) = below.remove(&ended.thread) {
        add(&mut waited, &rest);
    }
    match root == Some(ended.process) {
        true => add(total, &waited),
        false => add(below.entry(ended.parent).or_default(), &waited),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_ends_below_a_process_is_the_processes_when_that_ends() {
        let ended = |thread, process, parent, seconds| {
            let processor_wait = Duration::from_secs(seconds);
            Ended { thread, process, parent, processor_wait, disk_wait: Duration::ZERO }
        };
        let (mut total, mut below) = ([0.0; 2], BTreeMap::new());
        let all = [
            ended(30, 30, 20, 1),
            ended(21, 20, 10, 2),
            ended(20, 20, 10, 4),
            ended(99, 99, 98, 1_000),
            ended(11, 10, 1, 8),
            ended(10, 10, 1, 16),
        ];
        all.into_iter().for_each(|thread| fold(thread, Some(10), &mut total, &mut below));
        assert_eq!(total, [31.0, 0.0]);
        assert_eq!(below.into_iter().collect::<Vec<_>>(), [(98, [1_000.0, 0.0])]);
    }
}
