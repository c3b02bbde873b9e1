//! The memory of an idle relative: read and written from outside.

use core::ffi::c_int;
use core::sync::atomic::Ordering::{Relaxed, Release};

use libc::{EFAULT, EPERM, O_RDWR};

use super::{Me, SKIP};
use crate::model::{Page, Region};
use crate::program::Call;
use crate::shared::shared;
use crate::sys::{self, Outcome};
use crate::words::{self, Content, PAGE};

impl Me {
    pub(super) fn peek(&mut self, call: &Call) -> Option<()> {
        let child = self.children.iter().find(|child| child.process == call.number(0))?;
        let theirs = child.held.as_ref().filter(|_| !child.was_killed)?;
        let region = theirs.iter().find(|region| region.id == call.number(1))?;
        self.look_at(child.pid, region, call.number(2), call.number(3), call.word(4))
    }

    pub(super) fn look(&mut self, call: &Call) -> Option<()> {
        let parent = self.parents.as_ref()?;
        let region = parent.held.iter().find(|region| region.id == call.number(0))?;
        self.look_at(parent.thread, region, call.number(1), call.number(2), call.word(3))
    }

    /// Checks pages of an idle relative.
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
            if let Some(parent) = self.parents.as_ref().filter(|_| got != right) {
                // Another of the parent's threads may have ended it. The kernel shows no memory of a process by the number of a
                // main thread that has left.
                sys::pause(50);
                if sys::parent() != parent.pid || has_left(parent.pid) {
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

    /// Writes a page of a waiting child, and tells it the content.
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
        let Some(letter) = shared().send(process, id, page, seed) else { return SKIP };
        region.pages[page].content = Content::Seed(seed);
        let mut words = [0_u64; PAGE / size_of::<u64>()];
        words::write(words.as_mut_ptr() as usize, seed);
        let buffer = words.as_ptr() as usize;
        let got = match call.word(3) {
            "vm" => sys::process_vm_writev(pid, buffer, at, PAGE),
            _ => self.with_memory_of(pid, |fd| sys::pwrite(fd, buffer, PAGE, at)),
        };
        letter.is_written.store(true, Release);
        self.expect("a poke into a child", got, Ok(PAGE));
        Some(())
    }
}

/// True if a process' main thread has ended.
fn has_left(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z'))
}
