//! A process and its descendants: their faults, processor time and memory, summed up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use super::processor;
use super::reading::{Reading, TICKS, add, reading};
use super::states::States;
use super::throttles::Throttles;
use super::waits::Waits;
use crate::recording::MetricKind::{Counter, Gauge, Share};

/// Interval of taking the kernel's records before a command has begun.
const DRAIN: Duration = Duration::from_millis(100);

/// Fields of `smaps_rollup`, and our names.
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

/// Fields of `/proc/PID/io`, which include the children that were waited for, like those of `/proc/PID/stat`.
const IO: [(&str, &str); 4] = [
    ("syscr", "process.read_calls"),
    ("syscw", "process.write_calls"),
    ("read_bytes", "process.disk_read_bytes"),
    ("write_bytes", "process.disk_written_bytes"),
];

/// The processes with recorded metrics, besides the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// No process.
    Machine,
    /// This process and its descendants.
    Process(u32),
    /// A command that has not started yet: its counters are zero until [`Recorder::follow`](super::Recorder::follow).
    Command,
}

/// The processes with recorded metrics. The counters never fall: the counts of a process at its last look stay in the
/// sum.
#[derive(Debug)]
pub(super) struct Tree {
    watch: Watch,
    /// Existing processes, including ended ones that were not waited for, and when they started. The start tells a
    /// process from another one that took over its number.
    members: BTreeMap<u32, u64>,
    /// The members that have not ended.
    alive: BTreeSet<u32>,
    /// Minor faults, major faults and ticks on a processor at the last look.
    used: [f64; 3],
    /// Sums of [`IO`]; `None` if no member's could be read.
    io: Option<[f64; IO.len()]>,
    waits: Waits,
    states: States,
    throttles: Throttles,
    /// Ticks on a processor of all other processes of the machine.
    others: f64,
    /// The most processors that a member could not use so far.
    forbidden: Option<u32>,
}

/// The used fields of `/proc/PID/stat`.
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
            watch,
            members: BTreeMap::new(),
            alive: BTreeSet::new(),
            used: [0.0; 3],
            io: (watch == Watch::Command).then_some([0.0; IO.len()]),
            waits: if watch == Watch::Command { Waits::of_command() } else { Waits::default() },
            states: States::default(),
            throttles: Throttles::new(),
            others: 0.0,
            forbidden: None,
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
        self.waits.follow(pid);
        if self.watch == Watch::Command {
            self.states.begin();
        }
    }

    /// The longest time between two looks; `None` if only samples are needed.
    pub(super) fn patience(&self) -> Option<Duration> {
        (self.watch == Watch::Command).then(|| self.states.patience().unwrap_or(DRAIN))
    }

    /// A cheap look, for facts that would be gone by the next sample.
    pub(super) fn glance(&mut self) {
        let at = Instant::now();
        let threads = self.find_threads();
        self.throttles.look(self.members.keys());
        self.look_at_masks();
        self.states.look(at, &threads);
        match self.waits.is_told() {
            true => self.waits.drain(),
            false => self.waits.look(self.members.keys()),
        }
    }

    /// Takes in the processors that the recorder may run on, and a member may not.
    fn look_at_masks(&mut self) {
        let Some(own) = processors_of("self") else { return };
        let allowed = self.members.keys().filter_map(|pid| processors_of(&pid.to_string())).min();
        self.forbidden = self.forbidden.max(allowed.map(|allowed| own.saturating_sub(allowed)));
    }

    /// The threads of all members, and of descendants, which become members.
    fn find_threads(&mut self) -> Vec<(u32, u32)> {
        let mut all = Vec::new();
        let mut queue: Vec<u32> = self.members.keys().copied().collect();
        while let Some(pid) = queue.pop() {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for thread in threads {
                let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
                all.extend(number.map(|number| (pid, number)));
                let children = fs::read_to_string(thread.path().join("children"));
                for child in children.unwrap_or_default().split_ascii_whitespace() {
                    let Some(child) =
                        child.parse().ok().filter(|child| !self.members.contains_key(child))
                    else {
                        continue;
                    };
                    if let Some(stat) = Stat::read(child) {
                        self.members.insert(child, stat.start_ticks);
                        queue.push(child);
                    }
                }
            }
        }
        all
    }

    pub(super) fn read(&mut self, into: &mut Vec<Reading>) {
        if self.watch == Watch::Machine {
            return;
        }
        self.read_used();
        let [minor, major, ticks] = self.used;
        into.push(reading("process.minor_faults", Counter, Some(minor)));
        into.push(reading("process.major_faults", Counter, Some(major)));
        // Its steps are too coarse for the time of a run; `wait4(2)` is more exact.
        into.push(reading("process.cpu_share", Share, Some(ticks / TICKS)));
        // Ticks of the processors and of a process are counted apart.
        let machine = fs::read_to_string("/proc/stat").ok().and_then(|text| processor::used(&text));
        self.others = machine.map_or(self.others, |machine| self.others.max(machine - ticks));
        into.push(reading("others.cpu_share", Share, machine.map(|_| self.others / TICKS)));
        self.look_at_masks();
        into.push(reading("process.forbidden_processors", Gauge, self.forbidden.map(f64::from)));
        self.throttles.look(self.members.keys());
        let unborn = self.members.is_empty().then_some(0.0);
        let throttled = self.throttles.seconds().or(unborn);
        into.push(reading("process.throttled_seconds", Counter, throttled));
        for (index, (_, name)) in IO.iter().enumerate() {
            into.push(reading(*name, Counter, self.io.map(|sums| sums[index])));
        }
        // The records of a process that ended contain all of its waits.
        match self.waits.is_told() {
            true => self.waits.look(self.alive.iter()),
            false => self.waits.look(self.members.keys()),
        }
        let is_running = !self.alive.is_empty();
        match self.watch {
            Watch::Command => {
                self.waits.read_command(self.members.keys(), into);
                self.states.read(into);
            }
            _ => self.waits.read_seen(is_running, into),
        }
        for (name, count) in
            [("process.count", self.alive.len()), ("process.threads", self.waits.count())]
        {
            into.push(reading(name, Gauge, is_running.then_some(count as f64)));
        }
        let memory = self.memory();
        for (index, (_, name)) in MEMORY.iter().enumerate() {
            into.push(reading(*name, Gauge, memory.map(|sums| sums[index])));
        }
    }

    /// Finds the live members and descendants; the counts of a child that was waited for are its parent's.
    fn read_used(&mut self) {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let all: BTreeMap<u32, Stat> =
            pids.filter_map(|pid| Some((pid, Stat::read(pid)?))).collect();
        self.members
            .retain(|pid, start| all.get(pid).is_some_and(|stat| stat.start_ticks == *start));
        loop {
            let found: Vec<_> = all
                .iter()
                .filter(|(pid, stat)| {
                    self.members.contains_key(&stat.parent) && !self.members.contains_key(pid)
                })
                .map(|(pid, stat)| (*pid, stat.start_ticks))
                .collect();
            if found.is_empty() {
                break;
            }
            self.members.extend(found);
        }
        self.alive = self.members.keys().copied().filter(|pid| all[pid].is_alive).collect();
        let mut used = [0.0; 3];
        self.members.keys().for_each(|pid| add(&mut used, &all[pid].used));
        raise(&mut self.used, used);
        if let Some(io) = self.read_io() {
            raise(self.io.get_or_insert_default(), io);
        }
    }

    /// The sums of the members with readable numbers.
    fn read_io(&self) -> Option<[f64; IO.len()]> {
        let mut sums = None;
        for pid in self.members.keys() {
            let Ok(text) = fs::read_to_string(format!("/proc/{pid}/io")) else { continue };
            let sums = sums.get_or_insert([0.0; IO.len()]);
            for (name, value) in text.lines().filter_map(|line| line.split_once(": ")) {
                if let Some(index) = IO.iter().position(|(known, _)| *known == name) {
                    sums[index] += value.parse().unwrap_or(0.0);
                }
            }
        }
        sums
    }

    /// The members' memory in bytes; `None` if no member has any.
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

/// The processors of a process. A zombie still has them.
fn processors_of(pid: &str) -> Option<u32> {
    allowed_processors(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// From `/proc/PID/status`: the bits of the mask.
fn allowed_processors(status: &str) -> Option<u32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
    mask.chars().filter_map(|digit| digit.to_digit(16)).map(u32::count_ones).reduce(|a, b| a + b)
}

/// Raises sums, which never fall.
fn raise<const N: usize>(known: &mut [f64; N], now: [f64; N]) {
    known.iter_mut().zip(now).for_each(|(known, now)| *known = known.max(now));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_processors_is_counted() {
        let status = "Name:\tcat\nCpus_allowed:\t3,ffffff0f\nCpus_allowed_list:\t0-3,8-33\n";
        assert_eq!(allowed_processors(status), Some(30));
        assert_eq!(allowed_processors("Name:\tcat\n"), None);
    }

    #[test]
    fn a_stat_has_its_fields_whatever_the_name_is() {
        let text = "7 (a) b (c) S 3 7 7 0 -1 4194304 10 20 1 2 5 6 7 8 20 0 1 0 4711 0 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.parent, stat.used, stat.start_ticks), (3, [30.0, 3.0, 26.0], 4711));
        assert!(stat.is_alive && !Stat::parse(&text.replace(" S ", " Z ")).unwrap().is_alive);
        assert!(Stat::parse("7 (a").is_none() && Stat::parse("").is_none());
    }
}
