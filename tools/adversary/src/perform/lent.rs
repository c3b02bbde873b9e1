//! Memory that is mapped and filled by another process, which shares this one's memory but has its own
//! descriptors.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use super::threads::STACK;
use super::{FAILED, Me, SKIP};
use crate::model::{Prot, Region};
use crate::program::Call;
use crate::sys;
use crate::words::{self, Content, PAGE};

/// The request to that process, and the address of its memory.
struct Loan {
    pages: usize,
    seed: u64,
    forks: bool,
    at: usize,
    /// The process that waits for it.
    parent: i32,
}

impl Me {
    pub(super) fn lend(&mut self, call: &Call) -> Option<()> {
        let (id, pages) = (call.number(0), call.number(1).max(1));
        if self.region(id).is_some() {
            return SKIP;
        }
        let by = call.word(2);
        let forks = by == "peer-that-forks";
        let parent = std::process::id() as i32;
        let mut loan = Loan { pages, seed: self.new_seed(0), forks, at: 0, parent };
        let flags = libc::CLONE_VM | if by == "vfork" { libc::CLONE_VFORK } else { 0 };
        let stack = sys::mmap(0, STACK, libc::PROT_READ | libc::PROT_WRITE, 0);
        let stack = stack.unwrap_or_else(|errno| self.fail(&format!("mmap: errno {errno}")));
        let argument = (&raw mut loan).cast();
        // SAFETY: the stack and the loan belong to that process until it has ended, which this waits for.
        let pid = unsafe {
            let top = (stack + STACK) as *mut c_void;
            libc::clone(lend_main, top, flags | libc::SIGCHLD, argument)
        };
        if pid == -1 {
            self.fail(&format!("clone: errno {}", sys::errno()));
        }
        if forks {
            // Both processes fork at once, without libc's handlers, because the threads' storage is shared
            // too.
            for _ in 0..3 {
                match sys::under_fork() {
                    Ok(0) => sys::leave(0),
                    Ok(child) => self.waited(child as i32),
                    Err(errno) => self.fail(&format!("fork: errno {errno}")),
                }
            }
        }
        self.waited(pid);
        self.expect("munmap", sys::munmap(stack, STACK), Ok(0));
        let mut region = Region::new(id, loan.at, pages, Content::Zero, Prot::Write);
        for (page, state) in region.pages.iter_mut().enumerate() {
            state.content = Content::Seed(seed_of(loan.seed, page));
        }
        self.verify(&region);
        self.regions.push(region);
        Some(())
    }
}

/// Like [`words::seed`], for another page.
fn seed_of(first: u64, page: usize) -> u64 {
    first + ((page as u64) << 12)
}

/// The main function of that process. It allocates nothing: the threads' storage is the parent's.
extern "C" fn lend_main(loan: *mut c_void) -> c_int {
    // SAFETY: `lend` waits for this process, and keeps the loan until then.
    let loan = unsafe { &mut *loan.cast::<Loan>() };
    // A parent that is killed in a fork leaves its locks, such as libc's, held in this memory for ever.
    sys::die_with_parent(loan.parent);
    let Ok(at) = sys::mmap(0, loan.pages * PAGE, libc::PROT_READ | libc::PROT_WRITE, 0) else {
        sys::leave(FAILED)
    };
    loan.at = at;
    let content = |page: usize| seed_of(loan.seed, page);
    (0..loan.pages).for_each(|page| words::write(at + page * PAGE, content(page)));
    let holds = |page: usize| {
        let right = Content::Seed(content(page));
        words::wrong(&words::read(at + page * PAGE), right).is_none()
    };
    for _ in 0..if loan.forks { 3 } else { 0 } {
        match sys::under_fork() {
            Ok(0) => sys::leave(if (0..loan.pages).all(holds) { 0 } else { FAILED }),
            Ok(child) if sys::wait(child as i32) == Ok(0) => {}
            _ => sys::leave(FAILED),
        }
    }
    sys::leave(if (0..loan.pages).all(holds) { 0 } else { FAILED })
}
