//! A process and its descendants: their faults, processor time and memory, summed up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{Reading, TICKS, Watch, reading};
use crate::recording::MetricKind::{Counter, Gauge, Share};

/// Of `smaps_rollup`, and what we call it.
const MEMORY: [(&str, &str); 8] = [
    ("Rss", "process.rss_bytes"),
    ("Pss", "process.pss_bytes"),
    ("Anonymous", "process.anonymous_bytes"),
    ("AnonHugePages", "process.anonymous_huge_bytes"),
    ("ShmemPmdMapped", "process.shmem_huge_bytes"),
    ("FilePmdMapped", "process.file_huge_bytes"),
    ("Swap", "process.swap_bytes"),
    ("LazyFree", "process.lazy_free_bytes"),
];

/// Whose metrics are summed up. Its counters never fall: what processes had when they were last seen stays in
/// the sum.
#[derive(Debug)]
pub(super) struct Tree {
    is_watching: bool,
    /// Those alive, and when they started; a number that another process took over is not one of them.
    members: BTreeMap<u32, u64>,
    /// How many of them have not ended and wait to be waited for.
    alive: usize,
    /// Minor faults, major faults and ticks on a processor at the last look.
    used: [f64; 3],
    /// Of each thread that was alive at a look: nanoseconds on a processor, nanoseconds of waiting for one, times it
    /// got one.
    threads: BTreeMap<u32, [f64; 3]>,
    ended_threads: [f64; 3],
}

/// What is used of `/proc/PID/stat`.
struct Stat {
    parent: u32,
    is_alive: bool,
    /// Minor faults, major faults and ticks, of the process and of the children that it waited for.
    used: [f64; 3],
    start_ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The first field after the name, which may hold anything, is the third.
        let fields: Vec<_> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
        let is_alive = !matches!(*fields.first()?, "Z" | "X");
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = field(14)? + field(15)? + field(16)? + field(17)?;
        let used = [field(10)? + field(11)?, field(12)? + field(13)?, ticks];
        let used = used.map(|count| count as f64);
        Some(Self { parent: field(4)? as u32, is_alive, used, start_ticks: field(22)? })
    }
}

impl Tree {
    pub(super) fn new(watch: Watch) -> Self {
        let mut tree = Self {
            is_watching: watch != Watch::Machine,
            members: BTreeMap::new(),
            alive: 0,
            used: [0.0; 3],
            threads: BTreeMap::new(),
            ended_threads: [0.0; 3],
        };
        if let Watch::Process(pid) = watch {
            tree.follow(pid);
        }
        tree
    }

    pub(super) fn follow(&mut self, pid: u32) {
        if let Some(stat) = Stat::read(pid) {
            self.members.insert(pid, stat.start_ticks);
        }
    }

    pub(super) fn read(&mut self, into: &mut Vec<Reading>) {
        if !self.is_watching {
            return;
        }
        self.read_used();
        self.read_threads();
        let [minor, major, ticks] = self.used;
        into.push(reading("process.minor_faults", Counter, Some(minor)));
        into.push(reading("process.major_faults", Counter, Some(major)));
        // In steps too coarse for the time of a run, which `wait4(2)` knows better.
        into.push(reading("process.cpu_share", Share, Some(ticks / TICKS)));
        let mut times = self.ended_threads;
        self.threads.values().for_each(|it| add(&mut times, it));
        // Whoever was last to run is not in it: at the end the sum is not what all of them took.
        let is_running = self.alive > 0;
        let is_before = self.members.is_empty() && self.ended_threads == [0.0; 3];
        for (name, value) in [
            ("process.schedstat.run_seconds", times[0] / 1e9),
            ("process.schedstat.wait_seconds", times[1] / 1e9),
            ("process.schedstat.slices", times[2]),
        ] {
            into.push(reading(name, Counter, (is_running || is_before).then_some(value)));
        }
        for (name, count) in
            [("process.count", self.alive), ("process.threads", self.threads.len())]
        {
            into.push(reading(name, Gauge, is_running.then_some(count as f64)));
        }
        let memory = self.memory();
        for (index, (_, name)) in MEMORY.iter().enumerate() {
            into.push(reading(*name, Gauge, memory.map(|sums| sums[index])));
        }
    }

    /// Finds who is alive of the members and their descendants; a parent that waited for a child has what it used.
    fn read_used(&mut self) {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let all: BTreeMap<u32, Stat> =
            pids.filter_map(|pid| Some((pid, Stat::read(pid)?))).collect();
        self.members.retain(|pid, start| all.get(pid).is_some_and(|it| it.start_ticks == *start));
        loop {
            let found: Vec<_> = all
                .iter()
                .filter(|(pid, it)| {
                    self.members.contains_key(&it.parent) && !self.members.contains_key(pid)
                })
                .map(|(pid, it)| (*pid, it.start_ticks))
                .collect();
            if found.is_empty() {
                break;
            }
            self.members.extend(found);
        }
        self.alive = self.members.keys().filter(|pid| all[pid].is_alive).count();
        let mut used = [0.0; 3];
        self.members.keys().for_each(|pid| add(&mut used, &all[pid].used));
        for (known, now) in self.used.iter_mut().zip(used) {
            *known = known.max(now);
        }
    }

    fn read_threads(&mut self) {
        let mut alive = BTreeSet::new();
        for pid in self.members.keys() {
            let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for thread in entries {
                let Some(number) = thread.file_name().to_str().and_then(|it| it.parse().ok())
                else {
                    continue;
                };
                let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else {
                    continue;
                };
                let mut words = text.split_ascii_whitespace().map(|word| word.parse().ok());
                let mut next = || words.next().flatten().unwrap_or(0.0);
                self.threads.insert(number, [next(), next(), next()]);
                alive.insert(number);
            }
        }
        let ended_threads = &mut self.ended_threads;
        self.threads.retain(|number, times| {
            let is_alive = alive.contains(number);
            if !is_alive {
                add(ended_threads, times);
            }
            is_alive
        });
    }

    /// The members' memory in bytes; `None` if nobody has any.
    fn memory(&self) -> Option<[f64; MEMORY.len()]> {
        let mut sums = None;
        for pid in self.members.keys() {
            let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
                continue;
            };
            for (name, rest) in text.lines().filter_map(|line| line.split_once(':')) {
                let Some(index) = MEMORY.iter().position(|(known, _)| *known == name) else {
                    continue;
                };
                let kib = rest.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<f64>().ok());
                let sums = sums.get_or_insert([0.0; MEMORY.len()]);
                sums[index] += kib.unwrap_or(0.0) * 1024.0;
            }
        }
        sums
    }
}

fn add<const N: usize>(sums: &mut [f64; N], values: &[f64; N]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_has_its_fields_whatever_the_name_is() {
        let text = "7 (a) b (c) S 3 7 7 0 -1 4194304 10 20 1 2 5 6 7 8 20 0 1 0 4711 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.parent, stat.used, stat.start_ticks), (3, [30.0, 3.0, 26.0], 4711));
        assert!(stat.is_alive && !Stat::parse(&text.replace(" S ", " Z ")).unwrap().is_alive);
        assert!(Stat::parse("7 (a").is_none() && Stat::parse("").is_none());
    }
}
