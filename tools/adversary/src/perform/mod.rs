//! Performs a program: each call, its expected result, and the expected content of every page afterwards.
//!
//! Each thread has its own memory: it alone writes it, and knows each page. A child has the knowledge of the
//! thread that forked it. Streams and counters are written by other threads meanwhile: [`stream`],
//! [`counters`].

mod border;
mod copy;
mod counters;
mod descriptors;
mod direct;
mod kin;
mod leaf;
mod lent;
mod locks;
mod looks;
mod memory;
mod segments;
mod sends;
mod signals;
pub(crate) mod stops;
mod stream;
mod threads;
mod traps;
mod waits;

use core::sync::atomic::Ordering::Relaxed;
use std::path::Path;

use crate::model::{Kind, Page, Region};
use crate::program::{Call, Op, Program};
use crate::shared::{self, PROCESSES, THREADS, shared};
use crate::sys::{self, Outcome};
use crate::words;
use kin::Child;
pub(crate) use leaf::leaf;
pub(crate) use stops::stopper;
use threads::Started;

/// The status of a process that found an error.
pub(crate) const FAILED: i32 = 77;

/// The constants of a running program.
pub(crate) struct Setting {
    pub(crate) program: Program,
    folder: String,
    /// The file of the driver's late server.
    late_file: String,
    /// True if a fork copies all of the root's memory at one instant: more than the kernel promises.
    is_causal: bool,
}

/// A thread's knowledge.
pub(crate) struct Me {
    setting: &'static Setting,
    process: usize,
    thread: usize,
    call: usize,
    regions: Vec<Region>,
    children: Vec<Child>,
    threads: Vec<Started>,
    signals: Option<signals::Signals>,
    /// False in a child that libc did not fork: other threads may have held libc's locks.
    may_allocate: bool,
    /// False when the limit of descriptors is zero.
    may_open: bool,
    /// The way in which the thread ends, if not by a return from its main function.
    retires: Option<&'static str>,
    /// The parent and its regions, while it waits for a look by this process.
    parents: Option<kin::Parent>,
    /// The calls of all threads when this process began.
    born_at: border::Places,
}

/// The result of a call that cannot be made.
const SKIP: Option<()> = None;

/// Runs the program in `folder` to its end.
pub(crate) fn perform(folder: &Path, is_causal: bool) -> ! {
    let begun = || -> Result<Program, String> {
        let text = std::fs::read_to_string(folder.join("program")).map_err(|e| e.to_string())?;
        let program = Program::parse(&text)?;
        shared::adopt(&folder.join("shared")).map_err(|error| error.to_string())?;
        let fits = |threads: usize| threads <= THREADS;
        let fits = program.processes.iter().all(|process| fits(process.threads.len()));
        let fits = fits && program.processes.len() <= PROCESSES;
        fits.then_some(program).ok_or_else(|| "too many processes or threads".to_owned())
    };
    let program = begun().unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    crate::heap::perform();
    signals::catch_crashes();
    let folder = folder.to_str().expect("the driver named it").to_owned();
    let late_file = format!("{folder}/../{}", crate::late::FILE);
    let setting = Box::leak(Box::new(Setting { program, folder, late_file, is_causal }));
    shared().totals.processes.fetch_add(1, Relaxed);
    let mut me = Me::new(setting, 0, 0);
    counters::make_counters(&me);
    me.run();
    me.finish()
}

impl Me {
    fn new(setting: &'static Setting, process: usize, thread: usize) -> Self {
        Self {
            setting,
            process,
            thread,
            call: 0,
            regions: Vec::new(),
            children: Vec::new(),
            threads: Vec::new(),
            signals: None,
            may_allocate: true,
            may_open: true,
            retires: None,
            parents: None,
            born_at: border::NOWHERE,
        }
    }

    /// Makes every call of this thread.
    fn run(&mut self) {
        let setting = self.setting;
        for (index, call) in setting.program.thread(self.process, self.thread).iter().enumerate() {
            self.call = index;
            shared().enter(self.process, self.thread, index, sys::thread_id());
            if call.op != Op::Look {
                self.release_parent();
            }
            if self.one(call).is_some() {
                shared().totals.calls.fetch_add(1, Relaxed);
            }
            if self.retires.is_some() {
                break;
            }
        }
        self.release_parent();
        self.call = usize::MAX;
    }

    /// Makes a call; `None` if that is not possible.
    fn one(&mut self, call: &Call) -> Option<()> {
        match call.op {
            Op::Map => self.map(call),
            Op::MapOver => self.map_over(call),
            Op::Unmap => self.unmap(call),
            Op::Protect => self.protect(call),
            Op::Advise => self.advise(call),
            Op::Lock => self.lock(call, true),
            Op::Unlock => self.lock(call, false),
            Op::Resize => self.resize(call),
            Op::Move => self.move_over(call),
            Op::LeaveBehind => self.leave_behind(call),
            Op::Allocate => self.allocate(call),
            Op::Free => self.free(call),
            Op::Fill => self.fill(call),
            Op::Verify => self.verify(self.region(call.number(0))?),
            Op::Copy => self.copy(call),
            Op::Touch => self.touch(call),
            Op::Trap => self.trap(call),
            Op::Segment => self.segment(call),
            Op::Direct => self.direct(call),
            Op::Send => self.send(call),
            Op::Fork => self.fork(call),
            Op::Spawn => self.spawn(call),
            Op::Stop => self.stop(call),
            Op::Release => self.release(call.number(0)),
            Op::Peek => self.peek(call),
            Op::Poke => self.poke(call),
            Op::Look => self.look(call),
            Op::Kill => self.kill(call),
            Op::Wait => self.wait(call.number(0)),
            Op::Exec => self.exec(),
            Op::Leave => self.leave(),
            Op::Start => self.start(call),
            Op::Join => self.join(call.number(0)),
            Op::Stream => self.stream(call),
            Op::Count => self.count(call),
            Op::Futex => self.futex(call),
            Op::Locks => self.locks(call),
            Op::Signals => self.signals(call),
            Op::Descriptors => self.descriptors(call),
            Op::Tables => self.tables(call),
            Op::Border => self.border(call),
            Op::Lend => self.lend(call),
            Op::Retire => self.retire(call),
            Op::Pause => {
                sys::pause(call.number(0));
                Some(())
            }
        }
    }

    /// Ends the process: verifies all memory, and waits for all threads and children.
    fn finish(&mut self) -> ! {
        if self.retires.is_some() {
            self.retire_first();
        }
        while let Some(thread) = self.threads.last() {
            let number = thread.number;
            self.join(number);
        }
        self.end_thread();
        counters::check_counters(self);
        match self.process {
            // Like a program that returns from `main`.
            0 => std::process::exit(0),
            _ => sys::leave(0),
        }
    }

    fn end_thread(&mut self) {
        self.stop_signals();
        while let Some(child) = self.children.last() {
            let process = child.process;
            self.wait(process);
        }
        self.regions.iter().for_each(|region| _ = self.verify(region));
        shared().ended(self.process, self.thread);
    }

    /// Reports an error, and ends the process.
    pub(super) fn fail(&self, what: &str) -> ! {
        let calls = self.setting.program.thread(self.process, self.thread);
        let call = match calls.get(self.call) {
            Some(call) => format!("call {} ({call})", self.call),
            None => "end".to_owned(),
        };
        let place = format!("process {} thread {}, {call}", self.process, self.thread);
        shared().fail(&format!("{place}: {what}"));
        sys::leave(FAILED)
    }

    fn expect(&self, what: &str, got: Outcome, right: Outcome) {
        if got != right {
            let say = |outcome: Outcome| match outcome {
                Ok(value) => format!("{value}"),
                Err(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
            };
            self.fail(&format!("{what} returned {} instead of {}", say(got), say(right)));
        }
    }

    fn region(&self, id: usize) -> Option<&Region> {
        self.regions.iter().find(|region| region.id == id)
    }

    /// The index and the region of a mapping, for calls that change it.
    fn mapping(&self, id: usize) -> Option<(usize, &Region)> {
        let index = self
            .regions
            .iter()
            .position(|region| region.id == id && region.kind == Kind::Mapping)?;
        Some((index, &self.regions[index]))
    }

    fn pages(&mut self, index: usize, pages: core::ops::Range<usize>) -> &mut [Page] {
        &mut self.regions[index].pages[pages]
    }

    /// Verifies every readable page.
    fn verify(&self, region: &Region) -> Option<()> {
        let mut wrong = None;
        let mut how_many = 0;
        for (index, page) in region.pages.iter().enumerate() {
            if page.readable() {
                shared().totals.pages.fetch_add(1, Relaxed);
                if let Some(what) = words::wrong(&words::read(region.at(index)), page.content) {
                    wrong.get_or_insert((index, what));
                    how_many += 1;
                }
            }
        }
        if let Some((index, what)) = wrong {
            let (id, all, at) = (region.id, region.pages.len(), region.at(index));
            let which = format!("region {id} page {index} at {at:#x}");
            self.fail(&format!("{which}: {what} ({how_many} of its {all} pages are wrong)"));
        }
        Some(())
    }

    fn new_seed(&self, page: usize) -> u64 {
        words::seed(self.process, self.thread, self.call, page)
    }
}
