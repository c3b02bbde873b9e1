//! Pages that the kernel keeps for a reader, given back or replaced before that has read them.
#![allow(unsafe_code)]

use core::ffi::c_int;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};

use libc::{EAGAIN, ENOBUFS, PROT_READ, PROT_WRITE};

use super::{Me, SKIP};
use crate::model::{Page, Prot};
use crate::program::Call;
use crate::sys;
use crate::words::{self, Content, PAGE};

/// The pages that fit into a pipe at once.
const AT_ONCE: usize = 16;

#[repr(align(4096))]
struct Buffer([u8; PAGE]);

impl Me {
    pub(super) fn send(&mut self, call: &Call) -> Option<()> {
        let (index, region) = self.mapping(call.number(0))?;
        let alike = |page: &Page| (page.readable(), page.locked, page.content.is_certain());
        let span = region.span(call.number(1), call.number(2).min(AT_ONCE), alike)?;
        let first = &region.pages[span.start];
        if !first.readable() || first.locked || !first.content.is_certain() || !self.may_open {
            return SKIP;
        }
        let (at, len) = (region.at(span.start), span.len() * PAGE);
        let contents: Vec<_> = region.pages[span.clone()].iter().map(|page| page.content).collect();
        let is_pipe = call.word(3) == "pipe";
        let [output, input] = if is_pipe { sys::channel(false).ok()? } else { connection()? };
        let lent =
            if is_pipe { sys::vmsplice(input, at, len) } else { sys::send_lent(input, at, len) };
        let lent = match lent {
            Ok(lent) => lent / PAGE,
            Err(EAGAIN | ENOBUFS) => 0,
            Err(errno) => self.fail(&format!("pages lent: errno {errno}")),
        };
        match call.word(4) {
            "unmap" => {
                self.expect("munmap", sys::munmap(at, len), Ok(0));
                self.pages(index, span).iter_mut().for_each(|page| page.here = false);
            }
            "discard" => {
                self.expect("madvise", sys::madvise(at, len, libc::MADV_DONTNEED), Ok(0));
                self.pages(index, span).iter_mut().for_each(|page| page.content = Content::Zero);
            }
            "map-over" => {
                let access = PROT_READ | PROT_WRITE;
                self.expect("mmap", sys::mmap(at, len, access, libc::MAP_FIXED), Ok(at));
                self.pages(index, span).fill(Page::new(Content::Zero, Prot::Write));
            }
            _ => {}
        }
        self.regions[index].is_whole = false;
        self.regions.retain(|region| region.pages.iter().any(|page| page.here));
        if call.word(5) == "forks" {
            let child = self.helper(|| true);
            self.waited(child);
        }
        // It may get the place that was given back.
        let later = sys::mmap(0, len, PROT_READ | PROT_WRITE, 0);
        let later = later.unwrap_or_else(|errno| self.fail(&format!("mmap: errno {errno}")));
        for page in 0..contents.len() {
            words::write(later + page * PAGE, self.new_seed(page));
        }
        let mut buffer = Buffer([0; PAGE]);
        let place = buffer.0.as_mut_ptr() as usize;
        for (page, content) in contents.iter().take(lent).enumerate() {
            self.read_page(output, place);
            if let Some(what) = words::wrong(&words::read(place), *content) {
                self.fail(&format!("page {page} of those that were lent: {what}"));
            }
        }
        self.expect("munmap", sys::munmap(later, len), Ok(0));
        self.close(output);
        self.close(input);
        Some(())
    }

    fn read_page(&self, fd: c_int, place: usize) {
        let mut done = 0;
        while done < PAGE {
            match sys::read(fd, place + done, PAGE - done) {
                Ok(more) if more > 0 => done += more,
                other => self.fail(&format!("read of what was lent: {other:?}")),
            }
        }
    }
}

/// Both ends of a connection that takes much and delivers little, like a slow peer: the first reads
/// what the second sends. `None` where there is no such.
fn connection() -> Option<[c_int; 2]> {
    const LITTLE: c_int = 4096;
    const MUCH: c_int = 1 << 20;
    let door = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    sys::set_option(door.as_raw_fd(), libc::SO_RCVBUF, LITTLE).ok()?;
    let input = TcpStream::connect(door.local_addr().ok()?).ok()?;
    sys::set_option(input.as_raw_fd(), libc::SO_SNDBUF, MUCH).ok()?;
    sys::set_option(input.as_raw_fd(), libc::SO_ZEROCOPY, 1).ok()?;
    let (output, _) = door.accept().ok()?;
    Some([output.into_raw_fd(), input.into_raw_fd()])
}
