//! Relatives: all kinds of forks, waits among them, and looks at memory across processes.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{Me, SKIP};
use crate::model::Region;
use crate::program::Call;
use crate::shared::{COUNTERS, shared};
use crate::sys::{self, Outcome};
use crate::words::{self, Content};

use super::stream::Seen;
use super::{counters, threads};

/// A child that has not been waited for.
pub(crate) struct Child {
    pub(crate) process: usize,
    pub(super) pid: i32,
    pub(super) was_killed: bool,
    /// Its regions at the fork, while it waits for permission to begin.
    pub(super) held: Option<Vec<Region>>,
}

/// A parent that waits for its child to look at it.
pub(crate) struct Parent {
    pub(super) pid: i32,
    /// The waiting thread: the first one may have ended.
    pub(super) thread: i32,
    pub(super) held: Vec<Region>,
}

/// The facts that a child needs at its birth.
struct Birth {
    process: usize,
    parent: i32,
    parent_thread: i32,
    hold: &'static str,
    keeps_libc: bool,
    streams: Vec<Seen>,
    counters: [u64; COUNTERS],
}

impl Me {
    pub(super) fn fork(&mut self, call: &Call) -> Option<()> {
        let process = call.number(0);
        let program = &self.setting.program;
        if process == 0 || program.thread(process, 0).is_empty() {
            return SKIP;
        }
        let (how, hold) = (call.word(1), call.word(2));
        let held = (hold == "held").then(|| {
            let mut theirs = self.regions.clone();
            theirs.iter_mut().for_each(Region::inherit);
            theirs
        });
        shared().held[process].store(u32::from(hold != "free"), Relaxed);
        shared().totals.forks.fetch_add(1, Relaxed);
        let birth = Birth {
            process,
            parent: sys::pid(),
            parent_thread: sys::thread_id() as i32,
            hold,
            keeps_libc: how == "fork" && self.may_allocate,
            streams: super::stream::before_fork(),
            counters: counters::counters(),
        };
        let forked = match how {
            "_Fork" => sys::under_fork(),
            "syscall" => sys::fork_by_syscall(),
            "clone" => return self.forked_by_clone(birth, held),
            _ => self.plain_fork(),
        };
        if forked == Ok(0) {
            live(self, birth);
        }
        self.forked(forked, process, hold, held)
    }

    fn forked(
        &mut self,
        pid: Outcome,
        process: usize,
        hold: &str,
        held: Option<Vec<Region>>,
    ) -> Option<()> {
        let pid = pid.unwrap_or_else(|errno| self.fail(&format!("fork: errno {errno}"))) as i32;
        self.children.push(Child { process, pid, was_killed: false, held });
        while hold == "lent" && shared().held[process].load(Acquire) == 1 {
            if shared().has_failed() {
                sys::leave(super::FAILED);
            }
            sys::pause(1);
        }
        Some(())
    }

    /// Lets a child begin.
    pub(super) fn release(&mut self, process: usize) -> Option<()> {
        let child = self.children.iter_mut().find(|child| child.process == process)?;
        child.held.take()?;
        shared().held[process].store(0, Release);
        Some(())
    }

    /// Lets a parent continue that waits for a look.
    pub(super) fn release_parent(&mut self) {
        if self.parents.take().is_some() {
            shared().held[self.process].store(0, Release);
        }
    }

    pub(super) fn kill(&mut self, call: &Call) -> Option<()> {
        let mut children = self.children.iter_mut();
        let child = children.find(|child| child.process == call.number(0))?;
        child.was_killed = true;
        let pid = child.pid;
        self.expect("kill", sys::kill(pid), Ok(0));
        Some(())
    }

    pub(super) fn wait(&mut self, process: usize) -> Option<()> {
        self.release(process);
        let index = self.children.iter().position(|child| child.process == process)?;
        let child = self.children.remove(index);
        match sys::wait(child.pid) {
            Ok(0) => {}
            Ok(libc::SIGKILL) if child.was_killed => {}
            other => self.fail(&format!("process {process} ended with wait status {other:?}")),
        }
        Some(())
    }

    /// Ends the process; its threads and its children are left alone.
    pub(super) fn leave(&mut self) -> ! {
        shared().totals.calls.fetch_add(1, Relaxed);
        for region in &self.regions {
            self.verify(region);
        }
        sys::leave(0)
    }

    /// `clone(2)` through libc, on a stack in the program's memory.
    pub(super) fn on_own_stack(
        &self,
        run: extern "C" fn(*mut c_void) -> c_int,
        argument: *mut c_void,
        flags: c_int,
    ) -> Outcome {
        const LEN: usize = 512 << 10;
        let stack = sys::mmap(0, LEN, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        // SAFETY: only `run` uses the stack: in the child's copy of it, or while this thread waits.
        let made = unsafe {
            libc::clone(run, (stack + LEN) as *mut c_void, flags | libc::SIGCHLD, argument)
        };
        let made = if made == -1 { Err(sys::errno()) } else { Ok(made as usize) };
        self.expect("munmap", sys::munmap(stack, LEN), Ok(0));
        made
    }

    fn forked_by_clone(&mut self, birth: Birth, held: Option<Vec<Region>>) -> Option<()> {
        extern "C" fn run(argument: *mut c_void) -> c_int {
            // SAFETY: the box was made below. This is the child's copy, and the parent's thread continues in
            // the parent.
            let (me, birth) = unsafe {
                let (me, birth) = *Box::from_raw(argument.cast::<(*mut Me, Birth)>());
                (&mut *me, birth)
            };
            live(me, birth)
        }
        let (process, hold) = (birth.process, birth.hold);
        let me: *mut Self = self;
        let argument = Box::into_raw(Box::new((me, birth)));
        let forked = self.on_own_stack(run, argument.cast(), 0);
        self.forked(forked, process, hold, held)
    }
}

/// The rest of a child's life.
fn live(me: &mut Me, birth: Birth) -> ! {
    let Birth { process, parent, parent_thread, hold, keeps_libc, streams, counters: counted } =
        birth;
    let from = me.process;
    me.born_at = super::border::places();
    shared().totals.processes.fetch_add(1, Relaxed);
    if hold == "lent" {
        let held = me.regions.clone();
        me.parents = Some(Parent { pid: parent, thread: parent_thread, held });
    }
    (me.process, me.thread) = (process, 0);
    me.call = usize::MAX;
    me.children.clear();
    me.threads.clear();
    me.may_allocate &= keeps_libc;
    me.regions.iter_mut().for_each(Region::inherit);
    shared().enter(process, 0, 0, sys::thread_id());
    threads::forget_in_child(me);
    counters::inherit_counters(me, from, &counted);
    super::stream::inherit(me, from, &streams);
    if hold == "held" {
        while shared().held[process].load(Acquire) == 1 && sys::parent() == parent {
            sys::pause(1);
        }
        for letter in shared().letters(process) {
            let (id, page) = (letter.region.load(Relaxed), letter.page.load(Relaxed));
            let content = Content::Seed(letter.seed.load(Relaxed));
            if let Some(region) = me.regions.iter_mut().find(|region| region.id == id) {
                // A killed parent may have written it, or not.
                let is_there = || words::wrong(&words::read(region.at(page)), content).is_none();
                if letter.is_written.load(Acquire) || is_there() {
                    region.pages[page].content = content;
                }
            }
        }
    }
    me.regions.iter().for_each(|region| _ = me.verify(region));
    me.run();
    me.finish()
}
