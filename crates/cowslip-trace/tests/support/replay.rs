//! Address spaces page by page, with a second, slow and plain implementation of the rules in
//! `docs/trace.md`.

use std::collections::BTreeMap;

use cowslip_sys::units::VirtRange;
use cowslip_trace::attribute::{FaultKind, HugeFit};
use cowslip_trace::model::{Access, Event, EventKind, Fault, Map, Severity};

use crate::support::Scatter;

pub(crate) const PAGE: u64 = 4096;
/// Pages of a model, from `FIRST` on: eight huge pages.
pub(crate) const PAGES: u64 = 4096;
pub(crate) const FIRST: u64 = 512 * 1000;

const ANONYMOUS: u32 = 0x22;
const PRIVATE: u32 = 2;
const SHARED: u32 = 1;
const DONTNEED: u32 = 4;
const REMOVE: u32 = 9;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Unseen,
    Own,
    Clean,
    Discarded,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    /// The number of the map that made it.
    pub(crate) map: usize,
    memory: Memory,
    state: State,
    /// Its state is from before a fork.
    is_before_fork: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Memory {
    Anonymous,
    File,
    /// A page of shared memory.
    Shared {
        object: usize,
        page: u64,
    },
}

/// The pages of shared memory that were touched, by object and number.
type Objects = BTreeMap<(usize, u64), State>;

#[derive(Clone, Default, Debug)]
pub(crate) struct Process(pub(crate) BTreeMap<u64, Page>);

/// The expected attribution of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Expected {
    pub(crate) map: Option<usize>,
    pub(crate) kind: FaultKind,
    pub(crate) fit: Option<HugeFit>,
}

#[derive(Default, Debug)]
pub(crate) struct Model {
    pub(crate) processes: BTreeMap<u32, Process>,
    objects: Objects,
    maps: usize,
    pids: u32,
}

impl Process {
    fn fault(&mut self, page: u64, access: Option<Access>, objects: &mut Objects) -> Expected {
        let fit = self.fit(page);
        let Some(page) = self.0.get_mut(&page) else {
            return Expected { map: None, kind: FaultKind::Unknown, fit: None };
        };
        if let Memory::Shared { object, page: number } = page.memory {
            let map = Some(page.map);
            let there = objects.get(&(object, number)).copied();
            let is_new = page.state != State::Own || there == Some(State::Discarded);
            let kind = match (page.state, there) {
                (State::Discarded, _) | (_, Some(State::Discarded)) => FaultKind::Refault,
                (State::Unseen, Some(_)) => FaultKind::SharedMapped,
                (State::Unseen, None) => FaultKind::FirstTouch,
                _ => FaultKind::Repeated,
            };
            if kind != FaultKind::Repeated {
                objects.insert((object, number), State::Own);
            }
            *page = Page { state: State::Own, ..*page };
            return Expected { map, kind, fit: is_new.then_some(fit) };
        }
        let is_file = page.memory == Memory::File;
        let is_read = access == Some(Access::Read);
        let is_write = access == Some(Access::Write);
        let own_or_clean = if is_read { State::Clean } else { State::Own };
        let copy_or_clean = if is_write { State::Own } else { State::Clean };
        let repeated = (FaultKind::Repeated, page.state, page.is_before_fork);
        let (kind, state, is_before_fork) = match (is_file, page.state) {
            (_, State::Own) if page.is_before_fork && !is_read => {
                (FaultKind::CowAfterFork, State::Own, false)
            }
            (_, State::Own) => repeated,
            (false, State::Unseen) => (FaultKind::FirstTouch, own_or_clean, false),
            (false, State::Discarded) => (FaultKind::Refault, own_or_clean, false),
            (false, State::Clean) if is_read => repeated,
            (false, State::Clean) => (FaultKind::FirstWrite, State::Own, false),
            (true, State::Discarded) => (FaultKind::Refault, copy_or_clean, false),
            (true, _) if is_write => (FaultKind::FileCopy, State::Own, false),
            (true, State::Clean) if !page.is_before_fork && is_read => repeated,
            (true, State::Clean) if !page.is_before_fork => {
                (FaultKind::Unknown, State::Clean, false)
            }
            (true, _) => (FaultKind::FileMapped, State::Clean, false),
        };
        let is_new = matches!(page.state, State::Unseen | State::Discarded);
        let fit = (!is_file && is_new).then_some(fit);
        let map = Some(page.map);
        *page = Page { state, is_before_fork, ..*page };
        Expected { map, kind, fit }
    }

    fn fit(&self, page: u64) -> HugeFit {
        let shared = match self.0.get(&page).map(|page| page.memory) {
            Some(Memory::Shared { object, page }) => Some((object, page)),
            _ => None,
        };
        let first = shared.map_or(page / 512 * 512, |(_, number)| page - number % 512);
        let is_fitting = |(nth, there): (usize, &Option<&Page>)| {
            let memory = there.map(|page| page.memory);
            match shared {
                None => memory == Some(Memory::Anonymous),
                Some((object, number)) => {
                    let page = number / 512 * 512 + nth as u64;
                    memory == Some(Memory::Shared { object, page })
                }
            }
        };
        let all: Vec<_> = (first..first + 512).map(|page| self.0.get(&page)).collect();
        let is_there = |page: &Page| matches!(page.state, State::Own | State::Clean);
        match () {
            () if !all.iter().enumerate().all(is_fitting) => HugeFit::No,
            () if all.iter().flatten().any(|page| is_there(page)) => HugeFit::Further,
            () => HugeFit::First,
        }
    }

    fn clear(&mut self, first: u64, count: u64) {
        self.0.retain(|page, _| !(first..first + count).contains(page));
    }

    /// The longest run of pages of one map, beginning at a random page.
    fn some_run(&self, scatter: &mut Scatter) -> Option<(u64, u64)> {
        let first = FIRST + scatter.below(PAGES);
        let map = self.0.get(&first)?.map;
        let is_same = |page: &u64| self.0.get(page).is_some_and(|other| other.map == map);
        Some((first, (first..).take_while(is_same).count() as u64))
    }
}

impl Model {
    pub(crate) fn new() -> Self {
        let processes = BTreeMap::from([(1, Process::default())]);
        Self { processes, objects: Objects::new(), maps: 0, pids: 1 }
    }

    /// A random event, and the expected attribution if it is a fault.
    pub(crate) fn next(&mut self, scatter: &mut Scatter) -> (Event, Option<Expected>) {
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        let pid = pids[scatter.below(pids.len() as u64) as usize];
        let mut expected = None;
        let what = loop {
            let what = match scatter.below(40) {
                0 | 1 => Some(self.map(pid, scatter)),
                2 => Some(self.unmap(pid, scatter)),
                3 => self.remap(pid, scatter),
                4 => Some(self.discard(pid, scatter)),
                5 if pids.len() < 4 => Some(self.fork(pid)),
                6 if pid != 1 && scatter.below(3) == 0 => {
                    self.processes.remove(&pid);
                    Some(EventKind::Exit)
                }
                5 | 6 => None,
                _ => {
                    let page = FIRST + scatter.below(PAGES);
                    let access =
                        [None, Some(Access::Read), Some(Access::Write)][scatter.below(3) as usize];
                    let process = self.processes.get_mut(&pid).unwrap();
                    expected = Some(process.fault(page, access, &mut self.objects));
                    let address = page * PAGE + scatter.below(PAGE);
                    let severity = Some(Severity::Minor);
                    Some(EventKind::Fault(Fault { access, severity, ..Fault::at(address, 0) }))
                }
            };
            if let Some(what) = what {
                break what;
            }
        };
        (Event { time_ns: 0, pid, tid: pid, what }, expected)
    }

    fn map(&mut self, pid: u32, scatter: &mut Scatter) -> EventKind {
        let (first, count) = place(scatter, 1500);
        self.maps += 1;
        let map = Map { range: range(first, count), protection: 3, ..Map::default() };
        let (memory, map) = match scatter.below(6) {
            0 => (Memory::File, Map { flags: PRIVATE, name: Some("/a/file".into()), ..map }),
            // Without a name, with the kernel's number or without: a new one each time.
            1 => {
                let memory = Memory::Shared { object: self.maps, page: 0 };
                let name = (scatter.below(2) == 0).then(|| "/dev/zero (deleted)".into());
                let inode = name.as_ref().map_or(0, |_| self.maps as u64);
                (memory, Map { flags: SHARED, inode, name, ..map })
            }
            // Three files with the same name.
            2 => {
                let (object, page) = (scatter.below(3) as usize, scatter.below(700));
                let (inode, offset_bytes) = (1_000_000 + object as u64, page * PAGE);
                let name = Some("/memfd:cache (deleted)".into());
                let memory = Memory::Shared { object: 1_000_000 + object, page };
                (memory, Map { flags: SHARED, inode, offset_bytes, name, ..map })
            }
            _ => (Memory::Anonymous, Map { flags: ANONYMOUS, ..map }),
        };
        let fresh = Page { map: self.maps, memory, state: State::Unseen, is_before_fork: false };
        let process = self.processes.get_mut(&pid).unwrap();
        process.0.extend((0..count).map(|nth| (first + nth, fresh.ahead(nth))));
        EventKind::Map(map)
    }

    fn unmap(&mut self, pid: u32, scatter: &mut Scatter) -> EventKind {
        let (first, count) = place(scatter, 700);
        self.processes.get_mut(&pid).unwrap().clear(first, count);
        EventKind::Unmap { range: range(first, count) }
    }

    fn discard(&mut self, pid: u32, scatter: &mut Scatter) -> EventKind {
        let (first, count) = place(scatter, 700);
        let advice = if scatter.below(3) == 0 { REMOVE } else { DONTNEED };
        let process = self.processes.get_mut(&pid).unwrap();
        for (_, page) in process.0.range_mut(first..first + count) {
            if let (REMOVE, Memory::Shared { object, page }) = (advice, page.memory) {
                self.objects.insert((object, page), State::Discarded);
            }
            if matches!(page.state, State::Own | State::Clean) {
                *page = Page { state: State::Discarded, is_before_fork: false, ..*page };
            }
        }
        EventKind::Advise { range: range(first, count), advice }
    }

    fn remap(&mut self, pid: u32, scatter: &mut Scatter) -> Option<EventKind> {
        let process = self.processes.get_mut(&pid).unwrap();
        let (first, run) = process.some_run(scatter)?;
        let (to, new) = place(scatter, 700);
        let is_in_place = scatter.below(3) == 0;
        let old = if is_in_place { run } else { 1 + scatter.below(run) };
        if is_in_place {
            let end = (first + new).min(FIRST + PAGES);
            process.resize(first, old, end - first);
            let (from, to) = (range(first, old), range(first, end - first));
            return Some(EventKind::Remap { from, to, kept: false });
        }
        if first < to + new && to < first + old {
            return None;
        }
        let kept = scatter.below(3) == 0 && process.0[&first].memory == Memory::Anonymous;
        let new = if kept { old } else { new };
        if to + new > FIRST + PAGES || (first < to + new && to < first + old) {
            return None;
        }
        process.relocate((first, old), (to, new), kept);
        Some(EventKind::Remap { from: range(first, old), to: range(to, new), kept })
    }

    fn fork(&mut self, pid: u32) -> EventKind {
        let parent = self.processes.get_mut(&pid).unwrap();
        parent.0.values_mut().for_each(|page| page.is_before_fork = true);
        let mut child = parent.clone();
        // Shared memory is mapped again, page by page.
        let pages = child.0.values_mut();
        for page in pages.filter(|page| matches!(page.memory, Memory::Shared { .. })) {
            page.state = State::Unseen;
        }
        self.pids += 1;
        self.processes.insert(self.pids, child);
        EventKind::Fork { child_pid: self.pids, child_tid: self.pids }
    }
}

impl Process {
    fn resize(&mut self, first: u64, old: u64, new: u64) {
        let fresh = self.0[&first].fresh();
        self.clear(first + new.min(old), old.saturating_sub(new));
        self.0.extend((old..new).map(|nth| (first + nth, fresh.ahead(nth))));
    }

    fn relocate(&mut self, (from, old): (u64, u64), (to, new): (u64, u64), kept: bool) {
        let moved: Vec<_> = (from..from + old.min(new)).map(|page| self.0[&page]).collect();
        let fresh = self.0[&from].fresh();
        self.clear(from, old);
        if kept {
            self.0.extend((from..from + old).map(|page| (page, fresh)));
        }
        for offset in 0..new {
            let page = moved.get(offset as usize).copied().unwrap_or(fresh.ahead(offset));
            self.0.insert(to + offset, page);
        }
    }
}

impl Page {
    fn fresh(self) -> Self {
        Self { state: State::Unseen, is_before_fork: false, ..self }
    }

    /// A page of the same mapping, this many pages further on.
    fn ahead(self, pages: u64) -> Self {
        match self.memory {
            Memory::Shared { object, page } => {
                Self { memory: Memory::Shared { object, page: page + pages }, ..self }
            }
            _ => self,
        }
    }
}

fn place(scatter: &mut Scatter, most: u64) -> (u64, u64) {
    let first = scatter.below(PAGES);
    let count = 1 + scatter.below(most.min(PAGES - first));
    (FIRST + first, count)
}

fn range(first: u64, count: u64) -> VirtRange {
    VirtRange::new((first * PAGE) as usize, (count * PAGE) as usize)
}
