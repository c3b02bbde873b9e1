//! Copies between pages, by every means that reads or writes memory for a program.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use libc::{EFAULT, O_CREAT, O_RDWR, c_int};

use super::descriptors::message;
use super::{FAILED, Me, SKIP};
use crate::model::{Kind, Page};
use crate::program::Call;
use crate::shared::shared;
use crate::sys::{self, Outcome};
use crate::words::PAGE;

/// The pages that fit into a pipe at once.
const AT_ONCE: usize = 16;

/// One copy: addresses and length in bytes, and whether the pages may be read and written.
struct Order {
    from: usize,
    to: usize,
    len: usize,
    readable: bool,
    writable: bool,
}

impl Order {
    /// The expected results of reading the source, and of writing the target.
    fn sent(&self) -> Outcome {
        if self.readable { Ok(self.len) } else { Err(EFAULT) }
    }

    fn received(&self) -> Outcome {
        if self.writable { Ok(self.len) } else { Err(EFAULT) }
    }
}

/// Reads until the whole length has arrived: sockets may deliver it in parts.
fn read_all(order: &Order, read: impl Fn(usize, usize) -> Outcome) -> Outcome {
    let mut done = 0;
    while done < order.len {
        match read(order.to + done, order.len - done)? {
            0 => break,
            more => done += more,
        }
    }
    Ok(done)
}

impl Me {
    pub(super) fn copy(&mut self, call: &Call) -> Option<()> {
        let source = self.region(call.number(0))?;
        let sure = |page: &Page| (page.readable(), page.content.is_certain());
        let span = source.span(call.number(1), call.number(2).min(AT_ONCE), sure)?;
        let index = self.regions.iter().position(|region| region.id == call.number(3))?;
        let target = &self.regions[index];
        let place = target.span(call.number(4), span.len(), Page::writable)?;
        let span = span.start..span.start + place.len();
        let (from, to, len) = (source.at(span.start), target.at(place.start), place.len() * PAGE);
        let readable = source.pages[span.start].readable();
        let writable = target.pages[place.start].writable();
        let via = call.word(5);
        let overlaps = from < to + len && to < from + len;
        let unlike = |page: &Page| page.dontfork || page.wipeonfork;
        let unaligned = [source.kind, target.kind].contains(&Kind::Heap);
        if target.kind == Kind::Segment
            || !source.pages[span.start].content.is_certain()
            || overlaps
            || (via == "loads" && !(readable && writable))
            || (via == "direct" && unaligned)
            || (via == "child" && source.pages[span.clone()].iter().any(unlike))
            || (!self.may_open && !["loads", "vm-read", "vm-write"].contains(&via))
        {
            return SKIP;
        }
        let contents: Vec<_> = source.pages[span].iter().map(|page| page.content).collect();
        let order = Order { from, to, len, readable, writable };
        if self.transfer(via, &order)? {
            for (page, content) in self.pages(index, place).iter_mut().zip(contents) {
                page.content = content;
            }
        }
        Some(())
    }

    /// True if the content arrived.
    fn transfer(&self, via: &str, order: &Order) -> Option<bool> {
        let Order { from, to, len, readable, writable } = *order;
        let both = readable && writable;
        match via {
            "loads" => {
                let words = len / size_of::<u64>();
                // SAFETY: the model says that they may be read and written; they do not overlap.
                unsafe { (from as *const u64).copy_to_nonoverlapping(to as *mut u64, words) }
            }
            "pipe" | "socket" => return Some(self.through_channel(via == "socket", order)),
            "file" | "direct" => return self.through_file(via == "direct", order),
            "vm-read" | "vm-write" => {
                let right = if both { Ok(len) } else { Err(EFAULT) };
                // The first thread may have ended; the process' number then has no memory.
                let pid = sys::thread_id() as i32;
                let done = match via {
                    "vm-read" => sys::process_vm_readv(pid, to, from, len),
                    _ => sys::process_vm_writev(pid, from, to, len),
                };
                self.expect("process_vm", done, right);
            }
            // It can read and write pages that the program itself cannot.
            "mem-read" => {
                let fd = self.open("/proc/thread-self/mem", O_RDWR);
                self.expect(
                    "pread of /proc/self/mem",
                    sys::pread(fd, to, len, from),
                    order.received(),
                );
                self.close(fd);
                return Some(writable);
            }
            "mem-write" => {
                let fd = self.open("/proc/thread-self/mem", O_RDWR);
                self.expect(
                    "pwrite of /proc/self/mem",
                    sys::pwrite(fd, from, len, to),
                    order.sent(),
                );
                self.close(fd);
                return Some(readable);
            }
            "passed" => self.through_passed(order)?,
            _ => {
                if !both {
                    return None;
                }
                self.through_child(order);
            }
        }
        Some(both)
    }

    pub(super) fn open(&self, path: &str, flags: c_int) -> c_int {
        sys::open(path, flags).unwrap_or_else(|errno| self.fail(&format!("{path}: errno {errno}")))
    }

    pub(super) fn close(&self, fd: c_int) {
        self.expect("close", sys::close(fd), Ok(0));
    }

    fn channel(&self, is_socket: bool) -> [c_int; 2] {
        sys::channel(is_socket).unwrap_or_else(|errno| self.fail(&format!("pipe: errno {errno}")))
    }

    fn through_channel(&self, is_socket: bool, order: &Order) -> bool {
        let [output, input] = self.channel(is_socket);
        let sent = match is_socket {
            true => sys::writev(input, order.from, order.len),
            false => sys::write(input, order.from, order.len),
        };
        self.expect("write", sent, order.sent());
        if order.readable {
            let received = match is_socket {
                true => read_all(order, |to, len| sys::readv(output, to, len)),
                false => read_all(order, |to, len| sys::read(output, to, len)),
            };
            self.expect("read", received, order.received());
        }
        self.close(output);
        self.close(input);
        order.readable && order.writable
    }

    pub(super) fn file(&self) -> String {
        format!("{}/file.{}.{}", self.setting.folder, self.process, self.thread)
    }

    fn through_file(&self, is_direct: bool, order: &Order) -> Option<bool> {
        let path = self.file();
        let fd = match is_direct {
            true => self.open_direct(&path)?,
            false => self.open(&path, O_RDWR | O_CREAT),
        };
        self.expect("pwrite", sys::pwrite(fd, order.from, order.len, 0), order.sent());
        if order.readable {
            let received = sys::pread(fd, order.to, order.len, 0);
            self.expect("pread", received, order.received());
        }
        self.close(fd);
        let _ = std::fs::remove_file(path);
        Some(order.readable && order.writable)
    }

    /// A child writes its copy of the memory to a socket.
    fn through_child(&self, order: &Order) {
        let [output, input] = self.channel(true);
        let child = self.helper(|| sys::write(input, order.from, order.len) == Ok(order.len));
        self.close(input);
        let received = read_all(order, |to, len| sys::read(output, to, len));
        self.expect("read from a child", received, Ok(order.len));
        self.waited(child);
        self.close(output);
    }

    /// A child opens the file, and sends the descriptor.
    fn through_passed(&self, order: &Order) -> Option<()> {
        if !order.readable || !order.writable {
            return SKIP;
        }
        let path = self.file();
        let fd = self.open(&path, O_RDWR | O_CREAT);
        self.expect("pwrite", sys::pwrite(fd, order.from, order.len, 0), Ok(order.len));
        self.close(fd);
        let ends = self.channel(true);
        let child = self.helper(|| {
            sys::open(&path, O_RDWR).is_ok_and(|fd| message(ends[1], Some(fd)).is_some())
        });
        let Some(fd) = message(ends[0], None) else { self.fail("no descriptor came") };
        self.expect("pread", sys::pread(fd, order.to, order.len, 0), Ok(order.len));
        self.waited(child);
        [fd, ends[0], ends[1]].into_iter().for_each(|fd| self.close(fd));
        let _ = std::fs::remove_file(path);
        Some(())
    }

    /// `fork` takes locks of libc. Where these may be held for ever, this uses `_Fork`, which takes none.
    pub(super) fn plain_fork(&self) -> Outcome {
        if self.may_allocate { sys::fork() } else { sys::under_fork() }
    }

    /// A child that does one thing and ends.
    pub(super) fn helper(&self, act: impl FnOnce() -> bool) -> i32 {
        shared().totals.forks.fetch_add(1, Relaxed);
        shared().totals.processes.fetch_add(1, Relaxed);
        match self.plain_fork() {
            Ok(0) => sys::leave(if act() { 0 } else { FAILED }),
            Ok(pid) => pid as i32,
            Err(errno) => self.fail(&format!("fork: errno {errno}")),
        }
    }

    pub(super) fn waited(&self, pid: i32) {
        match sys::wait(pid) {
            Ok(0) => {}
            other => self.fail(&format!("a child that helped: wait status {other:?}")),
        }
    }
}
