//! Relatives: forks by every name, who waits for whom, and memory looked at across processes.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use libc::{EFAULT, EPERM, O_RDWR};

use super::{Me, SKIP};
use crate::model::{Page, Region};
use crate::program::Call;
use crate::shared::{COUNTERS, shared};
use crate::sys::{self, Outcome};
use crate::words::{self, Content, PAGE};

use super::stream::Seen;
use super::threads;

/// A child that was not waited for.
pub(crate) struct Child {
    pub(crate) process: usize,
    pid: i32,
    was_killed: bool,
    /// What it held when it was forked, while it waits for leave to begin.
    held: Option<Vec<Region>>,
}

/// What a child is told of its birth.
struct Birth {
    process: usize,
    parent: i32,
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
            hold,
            keeps_libc: how == "fork" && self.may_allocate,
            streams: super::stream::before_fork(),
            counters: threads::counters(),
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

    /// Lets the parent go on that is being looked at.
    pub(super) fn release_parent(&mut self) {
        if self.parents.take().is_some() {
            shared().held[self.process].store(0, Release);
        }
    }

    pub(super) fn peek(&mut self, call: &Call) -> Option<()> {
        let child = self.children.iter().find(|child| child.process == call.number(0))?;
        let theirs = child.held.as_ref().filter(|_| !child.was_killed)?;
        let region = theirs.iter().find(|region| region.id == call.number(1))?;
        self.look_at(child.pid, region, call.number(2), call.number(3), call.word(4))
    }

    pub(super) fn look(&mut self, call: &Call) -> Option<()> {
        let (parent, theirs) = self.parents.as_ref()?;
        let region = theirs.iter().find(|region| region.id == call.number(0))?;
        self.look_at(*parent, region, call.number(1), call.number(2), call.word(3))
    }

    /// Pages of a relative that does nothing meanwhile.
    fn look_at(
        &self,
        pid: i32,
        region: &Region,
        first: usize,
        count: usize,
        through: &str,
    ) -> Option<()> {
        let span = region.span(first, count, Page::readable)?;
        let readable = region.pages[span.start].readable();
        if through == "mem" && !self.may_open {
            return SKIP;
        }
        let mut words = [0_u64; PAGE / size_of::<u64>()];
        let buffer = words.as_mut_ptr() as usize;
        for page in span {
            let at = region.at(page);
            let (got, right) = match through {
                "vm" => {
                    let right = if readable { Ok(PAGE) } else { Err(EFAULT) };
                    (sys::process_vm_readv(pid, buffer, at, PAGE), right)
                }
                _ => (self.with_memory_of(pid, |fd| sys::pread(fd, buffer, PAGE, at)), Ok(PAGE)),
            };
            if matches!(got, Err(EPERM | libc::EACCES)) {
                shared().totals.refused.fetch_add(1, Relaxed);
                return SKIP;
            }
            if got != right && self.parents.is_some() {
                // Another of its threads may have ended it.
                sys::pause(50);
                if sys::parent() != pid {
                    return SKIP;
                }
            }
            self.expect("a look at a relative", got, right);
            let wrong = got.ok().and_then(|_| words::wrong(&words, region.pages[page].content));
            if let Some(what) = wrong {
                self.fail(&format!("region {} page {page} of a relative: {what}", region.id));
            }
        }
        Some(())
    }

    fn with_memory_of(&self, pid: i32, act: impl FnOnce(c_int) -> Outcome) -> Outcome {
        let fd = sys::open(&format!("/proc/{pid}/mem"), O_RDWR)?;
        let done = act(fd);
        self.close(fd);
        done
    }

    /// Writes a page of a child that waits, and tells it what.
    pub(super) fn poke(&mut self, call: &Call) -> Option<()> {
        let process = call.number(0);
        let seed = self.new_seed(call.number(2));
        let child = self.children.iter_mut().find(|child| child.process == process)?;
        let (pid, id) = (child.pid, call.number(1));
        let theirs = child.held.as_mut().filter(|_| !child.was_killed)?;
        let region = theirs.iter_mut().find(|region| region.id == id)?;
        let page = call.number(2) % region.pages.len();
        let at = region.at(page);
        if !region.pages[page].writable() || (call.word(3) == "mem" && !self.may_open) {
            return SKIP;
        }
        if !shared().send(process, id, page, seed) {
            return SKIP;
        }
        region.pages[page].content = Content::Seed(seed);
        let mut words = [0_u64; PAGE / size_of::<u64>()];
        words::write(words.as_mut_ptr() as usize, seed);
        let buffer = words.as_ptr() as usize;
        let got = match call.word(3) {
            "vm" => sys::process_vm_writev(pid, buffer, at, PAGE),
            _ => self.with_memory_of(pid, |fd| sys::pwrite(fd, buffer, PAGE, at)),
        };
        self.expect("a poke into a child", got, Ok(PAGE));
        Some(())
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

    /// Ends the process; its threads and its children are left as they are.
    pub(super) fn leave(&mut self) -> ! {
        shared().totals.calls.fetch_add(1, Relaxed);
        for region in &self.regions {
            self.verify(region);
        }
        sys::leave(0)
    }

    pub(super) fn exec(&mut self) -> Option<()> {
        // The loader opens libraries.
        if !self.may_open {
            return SKIP;
        }
        shared().totals.calls.fetch_add(1, Relaxed);
        exec_leaf();
        self.fail(&format!("execve: errno {}", sys::errno()))
    }

    /// Starts another program with the memory shared until it is there.
    pub(super) fn spawn(&mut self, call: &Call) -> Option<()> {
        if !self.may_open {
            return SKIP;
        }
        let mut pid = 0;
        shared().totals.processes.fetch_add(1, Relaxed);
        let made = match call.word(0) {
            // As `vfork`, which cannot be called from Rust.
            "vfork" => {
                extern "C" fn run(_: *mut c_void) -> c_int {
                    exec_leaf();
                    sys::leave(super::FAILED)
                }
                self.on_own_stack(run, null_mut(), libc::CLONE_VM | libc::CLONE_VFORK)
                    .map(|made| pid = made as i32)
            }
            _ => {
                let [path, leaf] = LEAF;
                let arguments = [path.as_ptr(), leaf.as_ptr(), null()];
                // SAFETY: strings and a list that end with a zero.
                let error = unsafe {
                    let file = arguments[0];
                    let arguments = arguments.as_ptr().cast();
                    libc::posix_spawn(&mut pid, file, null(), null(), arguments, libc::environ)
                };
                sys::nonzero(error).map(|_| ())
            }
        };
        if let Err(errno) = made {
            self.fail(&format!("spawn: errno {errno}"));
        }
        self.waited(pid);
        Some(())
    }

    /// `clone(2)` through libc, on a stack in the program's memory.
    fn on_own_stack(
        &self,
        run: extern "C" fn(*mut c_void) -> c_int,
        argument: *mut c_void,
        flags: c_int,
    ) -> Outcome {
        const LEN: usize = 512 << 10;
        let stack = sys::mmap(0, LEN, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        // SAFETY: a stack for `run` alone, in the child's copy of it or while this thread waits.
        let made = unsafe {
            libc::clone(run, (stack + LEN) as *mut c_void, flags | libc::SIGCHLD, argument)
        };
        let made = if made == -1 { Err(sys::errno()) } else { Ok(made as usize) };
        self.expect("munmap", sys::munmap(stack, LEN), Ok(0));
        made
    }

    fn forked_by_clone(&mut self, birth: Birth, held: Option<Vec<Region>>) -> Option<()> {
        extern "C" fn run(argument: *mut c_void) -> c_int {
            // SAFETY: made below. This is the child, and the parent's thread goes on in the parent.
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
    let Birth { process, parent, hold, keeps_libc, streams, counters } = birth;
    let from = me.process;
    shared().totals.processes.fetch_add(1, Relaxed);
    if hold == "lent" {
        me.parents = Some((parent, me.regions.clone()));
    }
    (me.process, me.thread) = (process, 0);
    me.call = usize::MAX;
    me.children.clear();
    me.threads.clear();
    me.may_allocate &= keeps_libc;
    me.regions.iter_mut().for_each(Region::inherit);
    shared().enter(process, 0, 0, sys::thread_id());
    threads::forget_in_child(me);
    threads::inherit_counters(me, from, &counters);
    super::stream::inherit(me, from, &streams);
    if hold == "held" {
        while shared().held[process].load(Acquire) == 1 && sys::parent() == parent {
            sys::pause(1);
        }
        for letter in shared().letters(process) {
            let (id, page) = (letter.region.load(Relaxed), letter.page.load(Relaxed));
            if let Some(region) = me.regions.iter_mut().find(|region| region.id == id) {
                region.pages[page].content = Content::Seed(letter.seed.load(Relaxed));
            }
        }
    }
    me.regions.iter().for_each(|region| _ = me.verify(region));
    me.run();
    me.finish()
}

const LEAF: [&core::ffi::CStr; 2] = [c"/proc/self/exe", c"leaf"];

fn exec_leaf() {
    let [path, leaf] = LEAF;
    let arguments = [path.as_ptr(), leaf.as_ptr(), null()];
    // SAFETY: strings and a list that end with a zero.
    unsafe { libc::execv(path.as_ptr(), arguments.as_ptr()) };
}

/// What a program is that another one starts: memory of its own, and a fork.
pub(crate) fn leaf() -> bool {
    const PAGES: usize = 256;
    let Ok(at) = sys::mmap(0, PAGES * PAGE, libc::PROT_READ | libc::PROT_WRITE, 0) else {
        return false;
    };
    let of = |page: usize| words::seed(0, 0, 0, page);
    (0..PAGES).for_each(|page| words::write(at + page * PAGE, of(page)));
    let holds = |page: usize| {
        words::wrong(&words::read(at + page * PAGE), Content::Seed(of(page))).is_none()
    };
    match sys::fork() {
        Ok(0) => sys::leave(if (0..PAGES).all(holds) { 0 } else { super::FAILED }),
        Ok(pid) => (0..PAGES).all(holds) && sys::wait(pid as i32) == Ok(0),
        Err(_) => false,
    }
}
