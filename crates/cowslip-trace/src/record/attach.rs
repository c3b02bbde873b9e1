//! Events opened for threads on processors, and their rings.
//!
//! A ring of an inherited event must belong to one processor. Therefore there is one ring per processor, and
//! each thread has its events on each of them:
//!
//! ```text
//!              cpu 0                cpu 1
//! thread 7     events 7.0 ─┐       events 7.1 ─┐     threads and processes that they make
//! thread 8     events 8.0 ─┴▶ ring events 8.1 ─┴▶ ring   inherit the events, and with them the ring
//! ```
//! A control group, or the machine, has a set of events of its own instead of those of threads.
//!
//! Events of running programs are on from the moment they are opened, and records from before all are open
//! are discarded. If they were turned on afterwards, a thread created at that moment could inherit one that
//! stays off. The kernel exchanges the events of two threads that have the same ones, instead of taking them
//! off and on: its creator could therefore get that event too, and with it every thread that it creates from
//! then on.

use std::collections::{BTreeSet, HashMap};
use std::fs;

use cowslip_sys::capabilities::SETCAP;
use cowslip_sys::perf::{Count, Event, Refusal, Ring, Scope};
use cowslip_sys::units::ByteCount;
use cowslip_sys::{AsFd, BorrowedFd, Errno, process};

use super::dedup::Dedup;
use super::error::{Error, ErrorKind};
use super::plan::Plan;
use super::status::{PERMIT_OWN, PERMIT_RINGS};
use super::subject::Subject;

/// Room for 170,000 faults: a third of a second of 500,000 faults each.
pub(super) const RING: ByteCount = ByteCount::mib(8);
/// Room for 7,000 copies of stacks, or for 300,000 system calls.
const LARGE_RING: ByteCount = ByteCount::mib(64);
/// The most memory for all rings together, unless a size is given.
const ALL_RINGS: ByteCount = ByteCount::mib(256);
const SMALLEST_RING: ByteCount = ByteCount(64 << 10);

/// The source and the thread of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Route {
    /// The index in [`Plan::sources`].
    pub(super) source: u16,
    /// The attached thread through which the event is seen; 0 if there is one set of events for all.
    pub(super) thread: u32,
}

/// The open events and rings.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) rings: Vec<Ring>,
    pub(super) routes: HashMap<u64, Route>,
    pub(super) dedup: Dedup,
    /// Those that have a set of events each.
    threads: Vec<i32>,
    /// By set, processor and source.
    events: Vec<Event>,
    sources: usize,
}

/// The request that events are opened for.
struct Request<'a> {
    plan: &'a Plan,
    subject: &'a Subject,
    cpus: Vec<u32>,
    ring: ByteCount,
    /// Otherwise a smaller ring will do.
    must_be_that_size: bool,
}

impl Attached {
    /// Opens every event of `plan` for all programs of `subject`.
    pub(super) fn open(
        plan: &Plan,
        subject: &Subject,
        ring: Option<ByteCount>,
    ) -> Result<Self, Error> {
        let cpus = online_cpus()?;
        let most = ByteCount((ALL_RINGS.0 / cpus.len() as u64 / 2 + 1).next_power_of_two());
        let must_be_that_size = ring.is_some();
        let usual = if plan.needs_room() { LARGE_RING } else { RING };
        let ring = ring.unwrap_or(usual.min(most).max(SMALLEST_RING));
        let mut request = Request { plan, subject, cpus, ring, must_be_that_size };
        process::raise_file_limit()
            .map_err(|errno| Error::refused("raise the limit of files", errno))?;
        let mut attached = Self {
            rings: Vec::new(),
            routes: HashMap::new(),
            dedup: Dedup::default(),
            threads: Vec::new(),
            events: Vec::new(),
            sources: plan.sources.len(),
        };
        match subject {
            Subject::Processes(pids) => attached.add_threads(pids, &mut request)?,
            Subject::ControlGroup(directory) => {
                let directory = subject.open(directory)?;
                attached.add(&mut request, Scope::ControlGroup(directory.as_fd()))?;
            }
            Subject::Machine => _ = attached.add(&mut request, Scope::Machine)?,
        }
        Ok(attached)
    }

    /// Opens the events of every thread of `pids`.
    fn add_threads(&mut self, pids: &[i32], request: &mut Request<'_>) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        for round in 0u32.. {
            // Also finds threads that were created meanwhile by threads without events.
            let threads = threads_of(pids)?;
            let new: Vec<_> = threads.into_iter().filter(|tid| seen.insert(*tid)).collect();
            if new.is_empty() {
                break;
            }
            if round == 1 {
                self.dedup.own(&self.threads);
            }
            for tid in new {
                let is_there = self.add(request, Scope::Thread(tid))?;
                // Otherwise the rings would be full before they are read.
                self.discard();
                if !is_there {
                    continue;
                }
                self.threads.push(tid);
                if round > 0 {
                    self.dedup.own_one(tid, self.threads.len() as u32 - 1);
                }
            }
        }
        match self.threads.is_empty() {
            true => Err(Error::refused(format!("attach to process {pids:?}"), Errno::SRCH)),
            false => Ok(()),
        }
    }

    /// Opens a set of events; false if its thread has ended.
    fn add(&mut self, request: &mut Request<'_>, scope: Scope<'_>) -> Result<bool, Error> {
        let before = self.events.len();
        let thread = self.threads.len() as u32;
        let Request { plan, subject, ref cpus, ref mut ring, must_be_that_size } = *request;
        for (place, &cpu) in cpus.iter().enumerate() {
            for (number, source) in plan.sources.iter().enumerate() {
                let event = match Event::open(&source.attributes, scope, cpu) {
                    Ok(event) => event,
                    Err(Errno::SRCH) if matches!(scope, Scope::Thread(_)) => {
                        self.events.truncate(before);
                        if before == 0 {
                            self.rings.clear();
                        }
                        return Ok(false);
                    }
                    Err(errno) => return Err(refused(scope, subject, errno)),
                };
                let step = |what: &str| {
                    let what = format!("{what} of {} on processor {cpu}", name(scope, subject));
                    move |errno| Error::refused(what, errno)
                };
                if let Some(filter) = source.filter {
                    event.filter(filter).map_err(step("filter an event"))?;
                }
                let id = event.id().map_err(step("number an event"))?;
                self.routes.insert(id, Route { source: number as u16, thread });
                self.events.push(event);
                if before == 0 && number == 0 {
                    match Ring::map(&self.events[place * self.sources], *ring) {
                        Ok(ring) => self.rings.push(ring),
                        // All rings must have the same size: begin again.
                        Err(Errno::PERM) if !must_be_that_size && *ring > SMALLEST_RING => {
                            ring.0 /= 2;
                            self.events.clear();
                            self.rings.clear();
                            self.routes.clear();
                            return self.add(request, scope);
                        }
                        Err(errno) => return Err(no_ring(*ring, errno)),
                    }
                } else {
                    let owner = &self.events[place * self.sources];
                    let event = self.events.last().expect("just pushed");
                    event.share_ring_of(owner).map_err(step("share the ring"))?;
                }
            }
        }
        Ok(true)
    }

    /// Discards the records so far.
    pub(super) fn discard(&mut self) {
        for ring in &mut self.rings {
            ring.drain(|_| {});
        }
    }

    /// Turns everything off; earlier records stay in the rings.
    pub(super) fn stop(&self) {
        for event in &self.events {
            // It never fails for an open event.
            let _ = event.stop();
        }
    }

    /// One event of each set on each processor, to wait for: it signals when its ring is half full, and
    /// when its thread and all threads and processes made by it have ended.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.events.iter().step_by(self.sources).map(AsFd::as_fd)
    }

    /// The sum of all counts, by source.
    pub(super) fn counts(&self) -> Vec<Count> {
        let mut sums = vec![Count { value: 0, lost: Some(0) }; self.sources];
        for (number, event) in self.events.iter().enumerate() {
            let sum = &mut sums[number % self.sources];
            if let Ok(count) = event.count() {
                sum.value += count.value;
                sum.lost = sum.lost.zip(count.lost).map(|(a, b)| a + b);
            }
        }
        sums
    }
}

fn name(scope: Scope<'_>, subject: &Subject) -> String {
    match scope {
        Scope::Thread(tid) => format!("thread {tid}"),
        Scope::ControlGroup(_) | Scope::Machine => subject.to_string(),
    }
}

fn refused(scope: Scope<'_>, subject: &Subject, errno: Errno) -> Error {
    if matches!(scope, Scope::ControlGroup(_)) && matches!(errno, Errno::BADF | Errno::NOENT) {
        return subject.unusable(errno);
    }
    let error = Error::refused(format!("attach to {}", name(scope, subject)), errno);
    match Refusal::from_errno(errno) {
        Refusal::Denied if !matches!(scope, Scope::Thread(_)) => {
            error.advise(format!("run as root, or `{SETCAP}`"))
        }
        Refusal::Denied => error.advise(format!(
            "of another user: run as root, or `{SETCAP}`; of one's own: `{PERMIT_OWN}`"
        )),
        Refusal::TooManyFiles => {
            error.advise("raise the limit of open files: `ulimit -Hn 1048576`")
        }
        _ => error,
    }
}

fn no_ring(size: ByteCount, errno: Errno) -> Error {
    match errno {
        Errno::INVAL => {
            Error::new(ErrorKind::Usage, format!("a ring of {size} is no power of two of pages"))
        }
        Errno::PERM => Error::refused(format!("map a ring of {size} a processor"), errno)
            .advise(format!("run `{PERMIT_RINGS}`, or say --ring 64K")),
        _ => Error::refused(format!("map a ring of {size} a processor"), errno),
    }
}

fn threads_of(pids: &[i32]) -> Result<Vec<i32>, Error> {
    let mut threads = Vec::new();
    for pid in pids {
        let listed = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| {
            let errno = match Errno::from_io_error(&error) {
                Some(Errno::NOENT) | None => Errno::SRCH,
                Some(errno) => errno,
            };
            Error::refused(format!("attach to process {pid}"), errno)
        })?;
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
        threads.extend(listed.filter_map(|entry| number(entry.ok()?)));
    }
    Ok(threads)
}

/// The numbers of the running processors.
pub(super) fn online_cpus() -> Result<Vec<u32>, Error> {
    let path = "/sys/devices/system/cpu/online";
    let text = fs::read_to_string(path)
        .map_err(|error| Error::new(ErrorKind::System, format!("read {path}: {error}")))?;
    let cpus = parse_list(text.trim());
    cpus.ok_or_else(|| Error::new(ErrorKind::System, format!("{path} says {text:?}")))
}

/// The numbers in `0-2,5`.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::parse_list;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list(""), None);
    }
}
